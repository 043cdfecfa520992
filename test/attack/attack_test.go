//go:build linux

package attack

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/test/internal/unetd"
)

var long = flag.Bool("attack.long", false, "run everything at full length: 10 million frames, 1000 cycles, 20 restarts")

// lengthOf is how often something is done: in full, in the short form, or in the
// short form under the race detector.
func lengthOf(full, short, race int) int {
	switch {
	case *long:
		return full
	case unetd.RaceEnabled:
		return race
	}
	return short
}

// TestMain runs this binary as the test or as one of the suite's processes: see agent.
func TestMain(m *testing.M) {
	if role := os.Getenv(agentVariable); role != "" {
		run := runAgent
		if role == roleSharer {
			run = runSharer
		}
		if err := run(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	code := m.Run()
	results.print(os.Stdout)
	unetd.Clean()
	os.Exit(code)
}

// TestAttacks runs all attacks while the bystanders run.
func TestAttacks(t *testing.T) {
	w := newWorld(t)
	idle := startIdleClients(t, w)
	attacker := (&caseRun{t, w, &row{}}).startAttacker(tagged(attackerTags()...)) // for the cases that need no endpoint of their own
	cases := slices.Concat(
		forgedCases(attacker), malformedCases(attacker), hiddenCases(attacker), descriptorCases(attacker),
		ringCases(), longKickCases(), memoryCases(), socketCases(), leftoverCases(), intruderCases(), kernelSideCases(), policyCases(),
		controlCases(idle), shareCases(), presentCases(), unreadCases(), connectionCases(), floodCases(attacker), superCases(attacker), resetCases(), invalidFillCases())
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { w.runCase(t, c) })
		select {
		case <-w.unetd.Done:
			t.Fatal("unetd has ended")
		default:
		}
	}
}

// attackerTags is one tag of each kind.
func attackerTags() []endpoint.Tag {
	return []endpoint.Tag{
		endpoint.UDPTag(netip.AddrPortFrom(hostA, attackerPort)),
		endpoint.TCPTag(netip.AddrPortFrom(hostA, attackerPort)),
		endpoint.UDPTag(netip.AddrPortFrom(hostA, attackerBlock)).AsBlock(),
		endpoint.TCPTag(netip.AddrPortFrom(hostA, attackerBlock)).AsBlock(),
		endpoint.UDPTag(netip.AddrPortFrom(hostA6, attackerPort)),
		endpoint.TCPTag(netip.AddrPortFrom(hostA6, attackerPort)),
		endpoint.AddrTag(attackerAddr),
		endpoint.AddrTag(attackerAddr6),
		endpoint.MessageTag(attackerTag),
	}
}

// row is a case in the table that the suite prints.
type row struct {
	name, did string
	happened  []string
	failed    bool
}

// note adds a line about what happened.
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

// print writes the table: a line for each case, and further lines if a case has several results.
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
	fmt.Fprintf(w, "%d cases, %d failed\n", len(t.rows), failed)
	for _, r := range t.rows { // again, because a log of the end of the output is often all there is
		if r.failed {
			fmt.Fprintf(w, "FAILED: %s: %s\n", r.name, strings.Join(r.happened, "; "))
		}
	}
	fmt.Fprintln(w)
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

// countsText writes each name with its count.
func countsText(counts map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	return strings.Join(parts, ", ")
}
