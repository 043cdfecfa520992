package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Print writes the tables of all benchmarks that were run.
func (s Summary) Print(w io.Writer) {
	for _, b := range []workload.Bench{workload.RTT, workload.Rate, workload.OneWay, workload.Connect} {
		var sizes []int
		for _, r := range s.Rows {
			if r.Bench == b && !slices.Contains(sizes, r.Size) {
				sizes = append(sizes, r.Size)
			}
		}
		for _, size := range sizes {
			s.printGroup(w, b, size)
		}
	}
}

// printGroup writes the table of one benchmark at one message size.
func (s Summary) printGroup(w io.Writer, b workload.Bench, size int) {
	var rows []Row
	for _, r := range s.Rows {
		if r.Bench == b && r.Size == size {
			rows = append(rows, r)
		}
	}
	first, over := rows[0], rounds(rows)
	var g grid
	switch b {
	case workload.RTT:
		fmt.Fprintf(w, "\nRound trips of %d bytes: medians over %s (of p50: lowest..highest)\n", size, over)
		fmt.Fprintln(w, "cpu, syscalls and allocs are of both processes, a round trip; lost is of all rounds.")
		g = grid{left: 3}
		g.add("transport", "attach", "wait", "p50 us", "", "mean us", "p99 us", "p99.9 us", "cpu us", "syscalls", "allocs", "lost", "vs kernel-udp", "/ floor")
	case workload.Rate:
		fmt.Fprintf(w, "\nMessages of %d bytes one way, as fast as they go: received a second, medians over %s\n", size, over)
		fmt.Fprintln(w, "cpu, syscalls and allocs are of both processes, a message received; lost and duplicates are of all rounds.")
		g = streamGrid()
	case workload.OneWay:
		fmt.Fprintf(w, "\n%d messages of %d bytes one way, medians over %s\n", (first.N+first.Lost)/first.Rounds, size, over)
		fmt.Fprintf(w, "At most %d messages are in flight; the receiver gives credit every %d. Timed from the first send until the\n", first.CreditWindow, first.CreditEvery)
		fmt.Fprintln(w, "receiver's acknowledgment of all of them; nothing is subtracted. A stall is a credit that did not arrive in time.")
		g = streamGrid()
	case workload.Connect:
		fmt.Fprintf(w, "\nConnections opened and closed a second, %s, medians over %s\n", atATime(first.Connections), over)
		fmt.Fprintf(w, "One is: dial, %d bytes, %d bytes in answer, half-close, the peer's end of file, close. p50 and p99 are of one.\n", size, size)
		fmt.Fprintln(w, "cpu, syscalls and allocs are of both processes, a connection; late (not done in time) and failed are of all rounds.")
		g = grid{left: 3}
		g.add("transport", "attach", "wait", "k conn/s", "", "p50 us", "p99 us", "cpu us", "syscalls", "allocs", "late", "failed", "vs kernel-tcp")
	}
	for _, r := range rows {
		switch b {
		case workload.RTT:
			g.add(s.rttCells(r)...)
		case workload.Connect:
			g.add(s.connectCells(r)...)
		default:
			g.add(s.streamCells(r)...)
		}
	}
	g.addCounts(rows)
	g.print(w)
	for _, r := range rows {
		if r.Failure != "" {
			fmt.Fprintf(w, "%s %s: %s\n", r.Transport, r.where(), r.Failure)
		}
	}
}

func atATime(n int) string {
	if n == 1 {
		return "one at a time"
	}
	return fmt.Sprintf("%d at a time", n)
}

func (s Summary) connectCells(r Row) []string {
	failed := fmt.Sprint(r.Failed)
	if r.ServerFailed > 0 {
		failed += fmt.Sprintf(", server %d", r.ServerFailed)
	}
	return []string{
		r.Transport, r.where(), r.Wait,
		fmt.Sprintf("%.2f", r.MsgsPerS.Median/1e3), fmt.Sprintf("(%.2f..%.2f)", r.MsgsPerS.Min/1e3, r.MsgsPerS.Max/1e3),
		fmt.Sprintf("%.2f", r.P50.Median), fmt.Sprintf("%.2f", r.P99.Median),
		fmt.Sprintf("%.2f", r.CPU.Median), perMessage(r.Syscalls), fmt.Sprintf("%.1f", r.Allocs.Median),
		fmt.Sprint(r.Lost), failed, times(s.overKernel(r)),
	}
}

// rounds says how many rounds the rows are about.
func rounds(rows []Row) string {
	low, high := rows[0].Rounds, rows[0].Rounds
	for _, r := range rows {
		low, high = min(low, r.Rounds), max(high, r.Rounds)
	}
	return roundsText(low, high)
}

// roundsText names a number of rounds that may differ.
func roundsText(low, high int) string {
	switch {
	case high == 1:
		return "1 round"
	case low == high:
		return fmt.Sprintf("%d rounds", high)
	}
	return fmt.Sprintf("%d to %d rounds", low, high)
}

func (s Summary) rttCells(r Row) []string {
	return []string{
		r.Transport, r.where(), r.Wait,
		fmt.Sprintf("%.2f", r.P50.Median), fmt.Sprintf("(%.2f..%.2f)", r.P50.Min, r.P50.Max),
		fmt.Sprintf("%.2f", r.Mean.Median), fmt.Sprintf("%.2f", r.P99.Median), fmt.Sprintf("%.2f", r.P999.Median),
		fmt.Sprintf("%.2f", r.CPU.Median), perMessage(r.Syscalls), fmt.Sprintf("%.3f", r.Allocs.Median), fmt.Sprint(r.Lost),
		times(s.overKernel(r)), bare(s.overFloor(r)),
	}
}

// where is the attachment, and the place if it is not the usual one.
func (r Row) where() string {
	s := r.Attach
	if r.Place != plan.Pair {
		s += ", " + r.Place
	}
	if r.Verbs.Options != "" {
		s += ", " + r.Verbs.Options
	}
	return s
}

func streamGrid() grid {
	g := grid{left: 3}
	g.add("transport", "attach", "wait", "batch", "M msg/s", "", "cpu us", "syscalls", "allocs", "lost", "duplicates", "stalls", "vs kernel-udp", "/ floor")
	return g
}

func (s Summary) streamCells(r Row) []string {
	return []string{
		r.Transport, r.where(), r.Wait, fmt.Sprint(r.Batch),
		fmt.Sprintf("%.3f", r.MsgsPerS.Median/1e6), fmt.Sprintf("(%.3f..%.3f)", r.MsgsPerS.Min/1e6, r.MsgsPerS.Max/1e6),
		fmt.Sprintf("%.2f", r.CPU.Median), perMessage(r.Syscalls), fmt.Sprintf("%.3f", r.Allocs.Median),
		fmt.Sprint(r.Lost), fmt.Sprint(r.Duplicates), fmt.Sprint(r.Stalls),
		times(s.overKernel(r)), bare(s.overFloor(r)),
	}
}

func perMessage(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.3f", *v)
}

func times(v float64, ok bool) string {
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.2fx", v)
}

func bare(v float64, ok bool) string {
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

// overKernel is the ratio of r to the spinning kernel sockets, in the same batches: of the
// kernel's round trip to r's, or of r's rate to the kernel's.
func (s Summary) overKernel(r Row) (float64, bool) {
	k := r.Key
	k.Transport, k.Attach, k.Place, k.Wait = transport.KernelUDP, transport.None, plan.Pair, "spin"
	if r.Bench == workload.Connect {
		k.Transport = transport.KernelTCP
	}
	kernel, ok := s.find(k)
	if !ok {
		return 0, false
	}
	if r.Bench == workload.RTT {
		return ratio(kernel.P50.Median, r.P50.Median)
	}
	return ratio(r.MsgsPerS.Median, kernel.MsgsPerS.Median)
}

// overFloor is r as a fraction of the floor over the same attachment.
func (s Summary) overFloor(r Row) (float64, bool) {
	k := r.Key
	k.Transport, k.Wait = transport.Floor, "spin"
	floor, ok := s.find(k)
	if !ok {
		return 0, false
	}
	if r.Bench == workload.RTT {
		return ratio(r.P50.Median, floor.P50.Median)
	}
	return ratio(r.MsgsPerS.Median, floor.MsgsPerS.Median)
}

// grid is text in columns. Columns are as wide as their widest cell.
type grid struct {
	left int // so many columns, from the first, are aligned to the left
	rows [][]string
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// addCounts adds columns of what the hardware counted, if it did, to a grid with a line for
// each row below its heading.
func (g *grid) addCounts(rows []Row) {
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.Counts != nil }) {
		return
	}
	g.rows[0] = append(g.rows[0], "user instr", "kernel instr", "user cycles", "kernel cycles")
	for i, r := range rows {
		for k := range perf.Figures {
			cell := "-"
			if r.Counts != nil {
				cell = fmt.Sprintf("%.0f", r.Counts[k].Median)
			}
			g.rows[i+1] = append(g.rows[i+1], cell)
		}
	}
}

func (g *grid) print(w io.Writer) {
	var widths []int
	for _, row := range g.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range g.rows {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i > 0 {
				line.WriteString("  ")
			}
			if i < g.left {
				line.WriteString(c + pad)
			} else {
				line.WriteString(pad + c)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// PrintMuxCost writes what the attached mux costs the kernel's own traffic.
func (s Summary) PrintMuxCost(w io.Writer) {
	separator := "\n"
	for _, r := range s.Rows {
		if r.Transport != transport.KernelUDPMux || r.Bench != workload.RTT {
			continue
		}
		k := r.Key
		k.Transport = transport.KernelUDP
		if without, ok := s.find(k); ok {
			if v, ok := ratio(r.P50.Median, without.P50.Median); ok {
				fmt.Fprintf(w, "%sThe kernel's own round trips of %d bytes take %.2f times as long on an interface that carries the mux.\n", separator, r.Size, v)
				separator = ""
			}
		}
	}
}
