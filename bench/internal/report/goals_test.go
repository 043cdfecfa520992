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
func threeRounds(k Key, v float64) (rs []Record) {
	for i, v := range []float64{9 * v, v, v / 2} {
		us := v
		rs = append(rs, Record{Bench: k.Bench, Transport: k.Transport, Attach: k.Attach, Place: k.Place, Wait: k.Wait, Size: k.Size, Batch: k.Batch, MTU: k.MTU,
			Waiters: k.Waiters, Procs: k.Procs, Depth: k.Verbs.Depth, Clients: k.Verbs.Clients, Options: k.Verbs.Options,
			Round: i + 1, N: 100, P50US: &us, MeanUS: &us, MsgsPerS: v, GbPerS: v})
	}
	return rs
}

// TestComparisons: every ratio is that of the medians of its two rows. A ratio equal to the
// bound meets the goal, a worse one misses it. Without one of the rows nothing is measured.
func TestComparisons(t *testing.T) {
	_, waits := waitGoals(waitRows())
	for _, table := range [][]comparison{speed, verbs, scale, bandwidth, ipv6, waits} {
		for _, c := range table {
			for attach, bound := range c.bound {
				over, under := c.over, c.under
				for _, k := range []*Key{&over, &under} {
					if k.Attach == "" {
						k.Attach = attach
					}
				}
				goal := func(ratio float64, keys ...Key) Goal {
					records := append(threeRounds(over, 8*ratio), threeRounds(under, 8)...) // 8: no rounding
					return Summarize(keys, records).compare([]comparison{c}, attach)[0]
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
				for _, k := range []Key{over, under} {
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
				rows = append(rows, Row{Key: message(workload.RTT, transport.TCP).waiting(wait).beside(waiters).within(procs).attached("port")})
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
			s.Rows[i].IdleCPU = &Spread{}
		}
	}
	limits, table := waitGoals(s.Rows)
	var got []string
	for _, c := range table {
		got = append(got, c.figure)
	}
	for _, l := range limits {
		g := s.hold(l, "port")
		got = append(got, fmt.Sprint(g.Figure, " ", g.Known, " ", g.Met()))
	}
	want := []string{
		"tcp RTT, adaptive / spin", "tcp RTT, adaptive, with 63 waiting / alone", "tcp RTT, adaptive, with 1023 waiting / alone",
		"tcp RTT, adaptive / spin, GOMAXPROCS 2", "tcp RTT, adaptive, with 63 waiting / alone, GOMAXPROCS 2", "tcp RTT, adaptive, with 1023 waiting / alone, GOMAXPROCS 2",
		"% of a processor, idle, tcp adaptive, 63 waiting true true", "% of a processor, idle, tcp adaptive, 1023 waiting false true",
		"% of a processor, idle, tcp adaptive, 63 waiting, GOMAXPROCS 2 true true", "% of a processor, idle, tcp adaptive, 1023 waiting, GOMAXPROCS 2 false true",
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
		want := len(attachments)
		if figure == portOverQueue.figure {
			want = 1
		}
		if n != want {
			t.Errorf("%s: %d goals, want %d", figure, n, want)
		}
	}
}

func TestAllocationGoal(t *testing.T) {
	k := message(workload.RTT, transport.UDP).attached("port")
	opened := message(workload.Connect, transport.TCP).attached("port") // opening allocates
	for _, c := range []struct {
		allocs, want float64
	}{{0.25, 0.25}, {noAllocs / 2, 0}} {
		records := append(threeRounds(k, 1), threeRounds(opened, 1)...)
		for i := range records {
			if records[i].AllocsPerMsg = c.allocs; records[i].Bench == workload.Connect {
				records[i].AllocsPerMsg = 20
			}
		}
		g := Summarize([]Key{k, opened}, records).hold(allocations, "port")
		if !g.Known || g.Measured != c.want || g.Met() != (c.want <= 0) {
			t.Errorf("%v allocations: %+v", c.allocs, g)
		}
	}
}

// TestMemoryGoals: the larger of two figures counts, of the goal's attachment.
func TestMemoryGoals(t *testing.T) {
	const bare, mostMiB, mostKiB = 10 * mebibyte, 16, 4
	memory := []Memory{
		{Attach: "queue", With: bare + mebibyte, Without: bare}, {Attach: "queue", With: bare + mostMiB*mebibyte, Without: bare},
		{Attach: "port", With: bare + mostMiB*mebibyte + 1<<18, Without: bare},
	}
	idle := []Idle{{Attach: "queue", Client: kibibyte, Server: mostKiB * kibibyte}, {Attach: "port", Client: mostKiB*kibibyte + 1, Server: kibibyte}}
	s := Summary{Memory: memory, Idle: idle}
	for _, g := range []Goal{s.hold(residentMemory, "queue"), s.hold(idleMemory, "queue")} {
		if !g.Known || !g.Met() || g.Measured != g.Bound {
			t.Errorf("at its bound: %+v", g)
		}
	}
	for _, g := range []Goal{s.hold(residentMemory, "port"), s.hold(idleMemory, "port")} {
		if !g.Known || g.Met() {
			t.Errorf("beyond its bound: %+v", g)
		}
	}
}

func TestGoalsTable(t *testing.T) {
	var out strings.Builder
	PrintGoals(&out, "title", []Goal{
		{Figure: "a", Attach: "port", Bound: 2, Measured: 2.5, Known: true, format: "%.2f"},
		{Figure: "b", Attach: "queue", Bound: 2, AtMost: true, Measured: 2.5, Known: true, format: "%.1f"},
		{Figure: "c", Attach: "queue", Bound: 2, format: "%.1f"},
	})
	want := "\ntitle\nfigure  attach    bound  measured\na       port    >= 2.00      2.50            ok\nb       queue    <= 2.0       2.5         short\nc       queue    >= 2.0         -  not measured\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if PrintGoals(&out, "title", []Goal{{Figure: "a", format: "%.1f"}}); strings.Contains(out.String(), "attach") {
		t.Errorf("goals without attachment:\n%s", out.String())
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

func TestBandwidthGoalsArePrintedIfMeasured(t *testing.T) {
	over, under := bandwidth[0].over.attached("queue"), bandwidth[0].under
	records := append(threeRounds(over, 1), threeRounds(under, 1)...)
	var out strings.Builder
	Summarize([]Key{over, under}, records).PrintBandwidthGoals(&out)
	if n, want := strings.Count(out.String(), "not measured"), 2*len(bandwidth)-1; n != want {
		t.Errorf("%d figures are not measured, want %d:\n%s", n, want, &out)
	}
	out.Reset()
	if Summarize([]Key{over}, records).PrintBandwidthGoals(&out); out.Len() > 0 {
		t.Errorf("figures of nothing:\n%s", &out)
	}
}

// TestTablesOfOperations: udp stands in the table of latencies only in the sizes of operations, and a row of options is
// compared with the first of its operation.
func TestTablesOfOperations(t *testing.T) {
	udp, read := message(workload.RTT, transport.UDP).attached("port"), operation(transport.RCRead, goalSize, 1, 1, 0).attached("port")
	large, write := udp, operation(transport.RCWrite, goalSize, 1, 128, 0).attached("port")
	large.Size = 1400
	none, inline := write, write
	none.Verbs.Options, inline.Verbs.Options = workload.None, workload.Inline
	keys := []Key{udp, large, read, write, none, inline}
	var records []Record
	for i, k := range keys {
		records = append(records, threeRounds(k, float64(int(1)<<i))...)
	}
	var out strings.Builder
	Summarize(keys, records).PrintOperations(&out)
	text := out.String()
	if !strings.Contains(text, "One at a time") || strings.Contains(text, "1400") || strings.Contains(text, "Sequencer") || strings.Contains(text, "flood") {
		t.Errorf("tables:\n%s", text)
	}
	var of []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && (f[0] == "rc-read" || strings.Contains(line, "inline ")) {
			of = append(of, strings.Join(f, " "))
		}
	}
	if len(of) != 2 || !strings.HasSuffix(of[0], " 4.00") || !strings.Contains(of[1], " 2.00x ") {
		t.Errorf("rows %q of:\n%s", of, text)
	}
}

// TestIPv6Goals are printed if they were measured, and only then.
func TestIPv6Goals(t *testing.T) {
	row := func(name string, p50 float64) Row {
		return Row{Key: message("rtt", name).attached("port"), P50: Spread{Median: p50}}
	}
	var out strings.Builder
	Summary{Rows: []Row{row("udp", 10), row("tcp", 10)}}.PrintOtherGoals(&out)
	if out.Len() > 0 {
		t.Errorf("%s", &out)
	}
	Summary{Rows: []Row{row("udp", 10), row("udp6", 11)}}.PrintOtherGoals(&out)
	if !strings.Contains(out.String(), "udp6 RTT / udp RTT") || !strings.Contains(out.String(), "short") || strings.Contains(out.String(), "tcp6") {
		t.Errorf("%s", &out)
	}
}
