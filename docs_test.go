package unet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// names are what a folder's Go files declare, their string literals, and the files.
type names struct{ declared, literals, files map[string]bool }

func namesIn(t *testing.T, folder string) names {
	t.Helper()
	n := names{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	must(t, err)
	for _, path := range paths {
		n.files[filepath.Base(path)] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		must(t, err)
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
	return n
}

var (
	testName   = regexp.MustCompile("(?:`([a-z]+)` )?\\b((?:Test|Fuzz)[A-Z]\\w*)")
	scriptName = regexp.MustCompile(`/\*([^*]+)\*`)
	codeName   = regexp.MustCompile("`([^`]+)`")
)

// TestTCPDocument holds the tables of docs/tcp.md against the code: every test, script,
// function and file that they name exists.
func TestTCPDocument(t *testing.T) {
	text, err := os.ReadFile("docs/tcp.md")
	must(t, err)
	folders := map[string]names{
		"tcp": namesIn(t, "proto/tcp"), "seq": namesIn(t, "proto/tcp/seq"), "stack": namesIn(t, "stack"), "wire": namesIn(t, "wire"),
		"unet": namesIn(t, "."), "badday": namesIn(t, "test/badday"),
	}
	tests, scripts, places := 0, 0, 0
	where, test := -1, -1 // columns, while a table is being read
	for i, line := range strings.Split(string(text), "\n") {
		complain := func(format string, args ...any) {
			t.Errorf("docs/tcp.md:%d: "+format, append([]any{i + 1}, args...)...)
		}
		if !strings.HasPrefix(line, "|") {
			where, test = -1, -1
			for _, m := range testName.FindAllStringSubmatch(line, -1) { // outside of tables any place will do
				if !slices.ContainsFunc([]string{"tcp", "seq", "stack", "wire", "unet", "badday"}, func(f string) bool { return folders[f].declared[m[2]] }) {
					complain("there is no %s", m[2])
				}
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for c := range cells {
			cells[c] = strings.TrimSpace(cells[c])
		}
		if test < 0 {
			where, test = slices.Index(cells, "where"), slices.Index(cells, "test")
			if test < 0 {
				test = len(cells) // a table without tests
			}
			continue
		}
		if test >= len(cells) {
			continue
		}
		folder := "tcp"
		for _, m := range testName.FindAllStringSubmatch(cells[test], -1) {
			tests++
			if m[1] != "" {
				folder = m[1]
			}
			if !folders[folder].declared[m[2]] && !folders["tcp"].declared[m[2]] {
				complain("package %s has no %s", folder, m[2])
			}
		}
		for _, m := range scriptName.FindAllStringSubmatch(cells[test], -1) {
			scripts++
			begin, cut := strings.CutSuffix(m[1], "…")
			known := folders["tcp"].literals[m[1]] || folders[folder].literals[m[1]]
			for s := range folders["tcp"].literals {
				known = known || cut && strings.HasPrefix(s, begin)
			}
			if !known {
				complain("there is no script %q", m[1])
			}
		}
		for _, m := range codeName.FindAllStringSubmatch(cells[where], -1) {
			places++
			folder, name := "tcp", m[1]
			switch {
			case strings.HasPrefix(name, "stack/"):
				folder, name = "stack", strings.TrimPrefix(name, "stack/")
			case strings.HasSuffix(name, ".go"):
			default:
				if first, rest, ok := strings.Cut(name, "."); ok {
					if _, is := folders[first]; is {
						folder, name = first, rest
					} else {
						name = rest // Conn.sndWnd
					}
				}
			}
			if n := folders[folder]; !n.declared[name] && !n.files[name] {
				complain("package %s has no %s", folder, name)
			}
		}
	}
	if tests < 100 || scripts < 50 || places < 100 {
		t.Errorf("only %d tests, %d scripts and %d places are named", tests, scripts, places)
	}
}
