package attack

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// row is a case in the table that the suite prints.
type row struct {
	name, did string
	happened  []string
	failed    bool
}

// note says what happened.
func (r *row) note(format string, args ...any) {
	r.happened = append(r.happened, fmt.Sprintf(format, args...))
}

type table struct {
	mu   sync.Mutex
	rows []*row
}

var results table

// add makes the row of a test.
func (t *table) add(test testing.TB, name, did string) *row {
	r := &row{name: name, did: did, failed: true}
	test.Cleanup(func() { r.failed = test.Failed() })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
	return r
}

// Widths of the columns that are wrapped.
const (
	didWidth      = 60
	happenedWidth = 110
)

// print writes the table: a line per case, and more where more has happened.
func (t *table) print(w io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) == 0 {
		return
	}
	name, did, failed := 0, 0, 0
	for _, r := range t.rows {
		name, did = max(name, utf8.RuneCountInString(r.name)), max(did, min(utf8.RuneCountInString(r.did), didWidth))
	}
	fmt.Fprintf(w, "\n%-*s  %-6s  %-*s  %s\n", name, "case", "", did, "what was done", "what happened")
	for _, r := range t.rows {
		verdict := "ok"
		if r.failed {
			verdict = "FAILED"
			failed++
		}
		left := wrap(r.did, did)
		var right []string
		for _, note := range r.happened {
			right = append(right, wrap(note, happenedWidth)...)
		}
		for i := range max(len(left), len(right), 1) {
			line := fmt.Sprintf("%-*s  %-6s  %-*s  %s", name, at([]string{r.name}, i), at([]string{verdict}, i), did, at(left, i), at(right, i))
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
	}
	fmt.Fprintf(w, "%d cases, %d failed\n\n", len(t.rows), failed)
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// wrap breaks a text into lines at spaces.
func wrap(text string, limit int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > limit {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// countsText writes how often there was what.
func countsText(counts map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	return strings.Join(parts, ", ")
}
