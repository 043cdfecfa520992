package report

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// threeRounds are records whose median is v, and whose mean is not.
func threeRounds(k workload.Case, v float64) (rs []Record) {
	for i, v := range []float64{9 * v, v, v / 2} {
		us := v
		rs = append(rs, Record{Case: k, Round: i + 1, N: 100, P50US: &us, MeanUS: &us, MsgsPerS: v, GbPerS: v})
	}
	return rs
}

// TestComparisons: every ratio is that of the medians of its two rows. A ratio equal to the
// bound meets the goal, a worse one misses it. Without one of the rows nothing is measured.
func TestComparisons(t *testing.T) {
	for _, table := range [][]goal{speed, oneHost, verbs, scale, bandwidth, ipv6, kernel, waitGoals(waitRows())} {
		for _, c := range table {
			if c.other != nil {
				continue
			}
			for attach, bound := range c.bound {
				over, under := c.over, c.under
				for _, k := range []*workload.Case{&over, &under} {
					if k.Attach == "" {
						k.Attach = attach
					}
				}
				goal := func(ratio float64, keys ...workload.Case) Goal {
					records := append(threeRounds(over, 8*ratio), threeRounds(under, 8)...) // 8: no rounding
					return Summarize(keys, records).measured(c, attach, bound)
				}
				worse := bound * 0.99
				if c.atMost {
					worse = bound * 1.01
				}
				if g := goal(bound, over, under); !g.Known || !g.Met() || g.Measured != bound || g.Attach != attach {
					t.Errorf("%s, %s: at its bound: %+v", c.figure, attach, g)
				}
				if g := goal(worse, over, under); !g.Known || g.Met() {
					t.Errorf("%s, %s: beyond its bound: %+v", c.figure, attach, g)
				}
				for _, k := range []workload.Case{over, under} {
					if g := goal(bound, k); g.Known {
						t.Errorf("%s, %s: with %v alone: %+v", c.figure, attach, k, g)
					}
				}
			}
		}
	}
}

// waitRows are rows of adaptive and spinning waits, alone and beside waiting goroutines, on one and on two processors.
func waitRows() (rows []Row) {
	for _, procs := range []int{0, 2} {
		for _, waiters := range []int{0, 63, 1023} {
			for _, wait := range []string{"adaptive", "spin"} {
				k := rtt(transport.TCP, waiting(wait), attached("port"))
				k.Waiters, k.Procs = waiters, procs
				rows = append(rows, Row{k, []Record{{}}})
			}
		}
	}
	return rows
}

// TestWaitGoals: each GOMAXPROCS and number of waiting goroutines has its goals. An idle client that takes no time
// meets its goal; one that had no rest is not measured.
func TestWaitGoals(t *testing.T) {
	s := Summary{Rows: waitRows()}
	for i := range s.Rows {
		if s.Rows[i].Waiters == 63 {
			s.Rows[i].Records[0].IdlePercent = new(float64)
		}
	}
	var got []string
	for _, g := range waitGoals(s.Rows) {
		if got = append(got, g.figure); g.other != nil {
			m := s.measured(g, "port", g.bound["port"])
			got[len(got)-1] += fmt.Sprint(" ", m.Known, " ", m.Met())
		}
	}
	want := []string{
		"tcp RTT, adaptive / spin",
		"tcp RTT, adaptive, with 63 waiting / alone", "% of a processor, idle, tcp adaptive, 63 waiting true true",
		"tcp RTT, adaptive, with 1023 waiting / alone", "% of a processor, idle, tcp adaptive, 1023 waiting false true",
		"tcp RTT, adaptive / spin, GOMAXPROCS 2",
		"tcp RTT, adaptive, with 63 waiting / alone, GOMAXPROCS 2", "% of a processor, idle, tcp adaptive, 63 waiting, GOMAXPROCS 2 true true",
		"tcp RTT, adaptive, with 1023 waiting / alone, GOMAXPROCS 2", "% of a processor, idle, tcp adaptive, 1023 waiting, GOMAXPROCS 2 false true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSpeedGoalsAreOfBothAttachments: each has a bound for a queue and for a port, but the
// one that compares them.
func TestSpeedGoalsAreOfBothAttachments(t *testing.T) {
	count := map[string]int{}
	for _, g := range (Summary{}).Goals() {
		count[g.Figure]++
		if g.Known {
			t.Errorf("measured without records: %+v", g)
		}
	}
	for figure, n := range count {
		want := 2
		if figure == speed[0].figure {
			want = 1
		}
		if n != want {
			t.Errorf("%s: %d goals, want %d", figure, n, want)
		}
	}
}

func TestAllocationGoal(t *testing.T) {
	k := rtt(transport.UDP, attached("port"))
	opened := one(workload.Connect, transport.TCP, attached("port")) // opening allocates
	for _, c := range []struct {
		allocs, want float64
	}{{0.25, 0.25}, {noAllocs / 2, 0}} {
		records := append(threeRounds(k, 1), threeRounds(opened, 1)...)
		for i := range records {
			if records[i].AllocsPerMsg = c.allocs; records[i].Bench == workload.Connect {
				records[i].AllocsPerMsg = 20
			}
		}
		g := Summarize([]workload.Case{k, opened}, records).measured(allocations, "port", 0)
		if !g.Known || g.Measured != c.want || g.Met() != (c.want <= 0) {
			t.Errorf("%v allocations: %+v", c.allocs, g)
		}
	}
}

// TestOneHostIsFreeOfCalls: the worst figure of messages counts, and one that was not counted is not known.
func TestOneHostIsFreeOfCalls(t *testing.T) {
	udp, kernel := rtt(transport.UDP, attached("port"), at(workload.Local)), rtt(transport.KernelUDP, at(workload.Local))
	elsewhere, bulk := rtt(transport.UDP, attached("port")), bulk(transport.TCP, 1500)
	bulk.Attach, bulk.Place = "port", workload.Local
	calls := oneHost[len(oneHost)-1]
	for _, c := range []struct {
		udp, want float64
	}{{2, 2}, {noCalls / 2, 0}} {
		many := 100.0
		var records []Record
		for _, k := range []workload.Case{udp, kernel, elsewhere, bulk} {
			records = append(records, threeRounds(k, 1)...)
		}
		for i := range records {
			if records[i].SyscallsPerMsg = &many; i < 3 {
				records[i].SyscallsPerMsg = &c.udp
			}
		}
		g := Summarize([]workload.Case{udp, kernel, elsewhere, bulk}, records).measured(calls, "port", 0)
		if !g.Known || g.Measured != c.want || g.Met() != (c.want == 0) {
			t.Errorf("%v system calls: %+v", c.udp, g)
		}
	}
	if g := Summarize([]workload.Case{udp}, threeRounds(udp, 1)).measured(calls, "port", 0); g.Known {
		t.Errorf("not counted: %+v", g)
	}
}

func TestGoalsTable(t *testing.T) {
	var out strings.Builder
	printGoals(&out, "title", []Goal{
		{Figure: "a", Attach: "port", Bound: 2, Measured: 2.5, Known: true, format: "%.2f"},
		{Figure: "b", Attach: "queue", Bound: 2, AtMost: true, Measured: 2.5, Known: true, format: "%.1f"},
		{Figure: "c", Attach: "queue", Bound: 2, format: "%.1f"},
	})
	want := "\ntitle\nfigure  attach    bound  measured\na       port    >= 2.00      2.50            ok\nb       queue    <= 2.0       2.5         short\nc       queue    >= 2.0         -  not measured\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestDocumentHasTheGoals: the run in docs/figures.md was held to the goals of this table.
func TestDocumentHasTheGoals(t *testing.T) {
	text, err := os.ReadFile("../../../docs/figures.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	document := strings.Join(lines, "\n")
	for _, g := range (Summary{}).Goals() {
		if line := strings.Join([]string{g.Figure, g.Attach, g.bound()}, " "); !strings.Contains(document, "\n"+line+" ") {
			t.Errorf("docs/figures.md has no line of %q", line)
		}
	}
}

// TestGoalsArePrintedIfMeasured: those without a measurement are printed after a run of all.
func TestGoalsArePrintedIfMeasured(t *testing.T) {
	over, under := bandwidth[0].over, bandwidth[0].under
	over.Attach = "queue"
	records := append(threeRounds(over, 1), threeRounds(under, 1)...)
	lines := func(all []string, keys ...workload.Case) (measured, not int) {
		var out strings.Builder
		Summarize(keys, records).PrintGoals(&out, all...)
		return strings.Count(out.String(), bandwidth[0].figure), strings.Count(out.String(), "not measured")
	}
	if measured, not := lines(nil, over, under); measured != 1 || not != 0 {
		t.Errorf("%d lines, %d not measured", measured, not)
	}
	if measured, not := lines(nil, over); measured != 0 || not != 0 {
		t.Errorf("%d lines of one row, %d not measured", measured, not)
	}
	if _, not := lines([]string{workload.Pair}, over); not != len((Summary{}).Goals())-1 { // the allocations of over are known
		t.Errorf("%d lines not measured", not)
	}
	if _, not := lines([]string{workload.Local}, over); not != len(oneHost) {
		t.Errorf("%d lines of one host not measured", not)
	}
}

// TestTablesOfOperations: each MTU has a table, in which rates are compared with a flood.
func TestTablesOfOperations(t *testing.T) {
	keys := []workload.Case{
		operation(transport.RCRead, goalSize, 1, 0, attached("port")), operation(transport.RCWrite, goalSize, 128, 0, attached("port")),
		bulkWrite(1500), bulk(transport.Floor, 1500),
	}
	keys[2].Attach, keys[3].Attach = "port", "port"
	var records []Record
	for i, k := range keys {
		records = append(records, threeRounds(k, float64(int(1)<<i))...)
	}
	var out strings.Builder
	Summarize(keys, records).Print(&out)
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"Operations of verbs, timed", "Operations of verbs, MTU 1500, timed", "rc-read port spin 64 1 1 ", "rc-write port spin 64 1 128 ", "unknown 0.000 0 0.50"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// TestIPv6Goals are printed if they were measured, and only then.
func TestIPv6Goals(t *testing.T) {
	row := func(name string, p50 float64) Row {
		k := rtt(name, attached("port"))
		return Row{k, threeRounds(k, p50)}
	}
	var out strings.Builder
	Summary{Rows: []Row{row("udp", 10), row("tcp", 10)}}.PrintGoals(&out)
	if strings.Contains(out.String(), "IPv6") {
		t.Errorf("%s", &out)
	}
	Summary{Rows: []Row{row("udp", 10), row("udp6", 11)}}.PrintGoals(&out)
	if !strings.Contains(out.String(), "udp6 RTT / udp RTT") || !strings.Contains(out.String(), "short") || strings.Contains(out.String(), "tcp6") {
		t.Errorf("%s", &out)
	}
}
