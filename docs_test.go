//go:build linux

package unet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
)

// names has the names that Go files declare, their string literals, and the names of the files.
type names struct{ declared, literals, files map[string]bool }

// namesOfAll returns the names of all packages, which nobody may change. The keys are the path in the
// repository, the last part of the path, and "unet".
var namesOfAll = sync.OnceValues(func() (map[string]names, error) {
	all := map[string]names{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		for _, name := range []string{folder, filepath.Base(folder)} {
			if name == "." {
				name = "unet"
			}
			if _, ok := all[name]; !ok {
				all[name] = names{map[string]bool{}, map[string]bool{}, map[string]bool{}}
			}
			all[name].add(filepath.Base(path), file)
		}
		return nil
	})
	return all, err
})

// add adds what a file declares.
func (n names) add(name string, file *ast.File) {
	n.files[name] = true
	ast.Inspect(file, func(node ast.Node) bool {
		switch d := node.(type) {
		case *ast.FuncDecl:
			n.declared[d.Name.Name] = true
		case *ast.TypeSpec:
			n.declared[d.Name.Name] = true
		case *ast.ValueSpec:
			for _, name := range d.Names {
				n.declared[name.Name] = true
			}
		case *ast.Field:
			for _, name := range d.Names {
				n.declared[name.Name] = true
			}
		case *ast.BasicLit:
			if s, err := strconv.Unquote(d.Value); err == nil && d.Kind == token.STRING {
				n.literals[s] = true
			}
		}
		return true
	})
}

var (
	testName   = regexp.MustCompile("(?:`([a-z/]+)` )?\\b((?:Test|Fuzz)[A-Z]\\w*)")
	scriptName = regexp.MustCompile(`/\*([^*]+)\*`)
	codeName   = regexp.MustCompile("`([^`]+)`")
)

// document is a file whose tables name tests, and may name places in the code, scripts of tests
// and counters.
type document struct {
	path                   string
	folder                 string   // of what is named without one
	counters               []string // folders whose literals have the counters' names
	tests, scripts, places int      // that are named, at least
}

func TestTCPDocument(t *testing.T) {
	document{"docs/tcp.md", "tcp", []string{"tcp"}, 100, 50, 100}.check(t)
}

func TestDriversDocument(t *testing.T) {
	document{"docs/drivers.md", "test/drivers", nil, 4, 0, 0}.check(t)
}

func TestRDMADocument(t *testing.T) {
	document{"docs/rdma.md", "proto/rdma", []string{"proto/rdma", "proto/rdma/cm", "verbs"}, 100, 0, 0}.check(t)
}

// check compares the tables with the code: every test, script, function, file and counter that
// they name exists.
func (d document) check(t *testing.T) {
	text, err := os.ReadFile(d.path)
	testutil.Must(t, err)
	folders, err := namesOfAll()
	testutil.Must(t, err)
	anywhere := func(name string) bool {
		for _, f := range folders {
			if f.declared[name] {
				return true
			}
		}
		return false
	}
	tests, scripts, places := 0, 0, 0
	where, counter, test := -1, -1, -1 // columns, while a table is being read
	for i, line := range strings.Split(string(text), "\n") {
		report := func(format string, args ...any) {
			t.Errorf("%s:%d: "+format, append([]any{d.path, i + 1}, args...)...)
		}
		if !strings.HasPrefix(line, "|") {
			where, counter, test = -1, -1, -1
			for _, m := range testName.FindAllStringSubmatch(line, -1) { // outside of tables the test may be in any package
				if !anywhere(m[2]) {
					report("there is no %s", m[2])
				}
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for c := range cells {
			cells[c] = strings.TrimSpace(cells[c])
		}
		if test < 0 {
			where, counter, test = slices.Index(cells, "where"), slices.Index(cells, "counter"), slices.Index(cells, "test")
			if test < 0 {
				test = len(cells) // a table without tests
			}
			continue
		}
		if test >= len(cells) {
			continue
		}
		folder := d.folder
		for _, m := range testName.FindAllStringSubmatch(cells[test], -1) {
			tests++
			if m[1] != "" {
				folder = m[1]
			}
			if !folders[folder].declared[m[2]] && !folders[d.folder].declared[m[2]] {
				report("package %s has no %s", folder, m[2])
			}
		}
		for _, m := range scriptName.FindAllStringSubmatch(cells[test], -1) {
			scripts++
			begin, cut := strings.CutSuffix(m[1], "…")
			known := folders[d.folder].literals[m[1]] || folders[folder].literals[m[1]]
			for s := range folders[d.folder].literals {
				known = known || cut && strings.HasPrefix(s, begin)
			}
			if !known {
				report("there is no script %q", m[1])
			}
		}
		if counter >= 0 {
			for _, m := range codeName.FindAllStringSubmatch(cells[counter], -1) {
				if !slices.ContainsFunc(d.counters, func(f string) bool {
					return folders[f].literals[m[1]] || folders[f].literals[strings.TrimPrefix(m[1], "cm_")]
				}) {
					report("there is no counter %s", m[1])
				}
			}
		}
		if where < 0 {
			continue
		}
		for _, m := range codeName.FindAllStringSubmatch(cells[where], -1) {
			places++
			folder, name := d.folder, m[1]
			switch {
			case strings.HasSuffix(name, ".go"):
				if i := strings.LastIndexByte(name, '/'); i >= 0 {
					folder, name = name[:i], name[i+1:]
				}
			default:
				if first, rest, ok := strings.Cut(name, "."); ok {
					name = rest // Conn.sndWnd
					if _, is := folders[first]; is && !folders[d.folder].declared[first] {
						folder = first // stack.ttl
					}
				}
			}
			if n := folders[folder]; !n.declared[name] && !n.files[name] {
				report("package %s has no %s", folder, name)
			}
		}
	}
	if tests < d.tests || scripts < d.scripts || places < d.places {
		t.Errorf("only %d tests, %d scripts and %d places are named", tests, scripts, places)
	}
}

// TestDocumentsQuoteCode: each block of Go in docs/architecture.md is in a file of the
// repository, without a difference.
func TestDocumentsQuoteCode(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	testutil.Must(t, err)
	var source strings.Builder
	testutil.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		source.WriteString("\n" + string(b))
		return err
	}))
	all := source.String()
	blocks := strings.Split(string(text), "```go\n")[1:]
	for _, block := range blocks {
		if code, _, _ := strings.Cut(block, "```"); !strings.Contains(all, "\n"+code) {
			t.Errorf("docs/architecture.md quotes code that is in no file:\n%s", code)
		}
	}
	if len(blocks) < 2 {
		t.Errorf("%d blocks of Go in docs/architecture.md", len(blocks))
	}
}
