//go:build linux

package unet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
)

// TestFAQDocument: each message that docs/faq.md quotes is made of string literals of the sources
// and of texts of errnos, and each warning and error that unetd logs is quoted there.
func TestFAQDocument(t *testing.T) {
	quoted := quotedMessages(t, "docs/faq.md")
	if len(quoted) < 100 {
		t.Errorf("docs/faq.md quotes only %d messages", len(quoted))
	}
	literals, logged := messagesOfSources(t)
	for e := syscall.Errno(1); e < 134; e++ {
		literals = append(literals, e.Error())
	}
	literals = append(literals, net.ErrClosed.Error())
	for _, m := range quoted {
		if !isMessage(m, literals) {
			t.Errorf("docs/faq.md quotes a message that is in no source: %s", m)
		}
	}
	if len(logged) < 30 {
		t.Errorf("only %d warnings and errors are logged", len(logged))
	}
	for _, l := range logged {
		if !slices.ContainsFunc(quoted, func(m string) bool {
			return strings.HasPrefix(l, strings.TrimSuffix(m, "…"))
		}) {
			t.Errorf("docs/faq.md does not explain what unetd logs: %s", l)
		}
	}
}

// quotedMessages are the quotations in the first column of a document's tables.
func quotedMessages(t *testing.T, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	testutil.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range codeName.FindAllStringSubmatch(strings.Split(line, " | ")[0], -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// messagesOfSources are the string literals of the packages, with … for the verbs of package
// fmt, and the messages that unetd logs as warnings and errors.
func messagesOfSources(t *testing.T) (literals, logged []string) {
	t.Helper()
	verb := regexp.MustCompile(`%[#+]?[a-z]`)
	testutil.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"bench", "examples", "test"}, path):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					literals = append(literals, verb.ReplaceAllString(s, "…"))
				}
			case *ast.CallExpr:
				f, ok := n.Fun.(*ast.SelectorExpr)
				folder, _, _ := strings.Cut(filepath.ToSlash(path), "/")
				if folder != "cmd" && folder != "mux" || !ok || f.Sel.Name != "Warn" && f.Sel.Name != "Error" || len(n.Args) == 0 {
					break
				}
				message := n.Args[0]
				if sum, ok := message.(*ast.BinaryExpr); ok {
					message = sum.X
				}
				if l, ok := message.(*ast.BasicLit); ok && l.Kind == token.STRING {
					s, err := strconv.Unquote(l.Value)
					testutil.Must(t, err)
					logged = append(logged, s)
				}
			}
			return true
		})
		return nil
	}))
	return literals, logged
}

// isMessage reports whether a message, in which … stands for anything, is in one literal, or
// each of its parts between colons in one.
func isMessage(message string, literals []string) bool {
	parts := strings.Split(message, "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	pattern := regexp.MustCompile(strings.Join(parts, ".*"))
	if slices.ContainsFunc(literals, pattern.MatchString) {
		return true
	}
	first, rest, ok := strings.Cut(message, ": ")
	return ok && isMessage(first, literals) && isMessage(rest, literals)
}
