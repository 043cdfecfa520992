package report

import (
	"fmt"
	"io"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Goal is one line of the speed table: a figure and the bound it has to keep.
type Goal struct {
	Figure   string
	Attach   string
	Bound    float64
	AtMost   bool // else at least
	Measured float64
	Known    bool // there is a measurement
	format   string
}

// Met reports whether the bound is kept.
func (g Goal) Met() bool {
	if g.AtMost {
		return g.Measured <= g.Bound
	}
	return g.Measured >= g.Bound
}

// Weight is the resident memory of an idle process, in bytes.
type Weight struct {
	Bench     workload.Bench `json:"bench"`
	Transport string         `json:"transport"`
	Attach    string         `json:"attach"`
	With      int64          `json:"resident_bytes"`      // with an endpoint
	Without   int64          `json:"bare_resident_bytes"` // the same program without one
}

// The bounds hold for messages of this size, sent one at a time or in batches
// of the largest size measured, by processes that spin.
const goalSize = 64 // bytes

// noAllocs is the number of allocations a message below which there are none:
// the runtime's own, now and then, are not a message's.
const noAllocs = 0.0005

const mebibyte = 1 << 20

// Goals are the speed and memory figures that unet is held to.
func (s Summary) Goals(weights []Weight, idle []Idle) []Goal {
	var goals []Goal
	for _, attach := range []string{"queue", "port"} {
		pick := func(queue, port float64) float64 {
			if attach == "queue" {
				return queue
			}
			return port
		}
		row := func(b workload.Bench, name string, batch int) (Row, bool) {
			k := Key{b, name, attach, plan.Pair, "spin", goalSize, batch, 0}
			if name == transport.KernelUDP || name == transport.KernelTCP {
				k.Attach = transport.None
			}
			return s.find(k)
		}
		compare := func(figure string, over, under string, b workload.Bench, batch int, bound float64, atMost bool) {
			g := Goal{Figure: figure, Attach: attach, Bound: bound, AtMost: atMost, format: "%.2f"}
			o, ok1 := row(b, over, batch)
			u, ok2 := row(b, under, batch)
			if ok1 && ok2 {
				if b == workload.RTT {
					g.Measured, g.Known = ratio(o.P50.Median, u.P50.Median)
				} else {
					g.Measured, g.Known = ratio(o.MsgsPerS.Median, u.MsgsPerS.Median)
				}
			}
			goals = append(goals, g)
		}
		batch := s.largestBatch(workload.Rate)
		compare("msg RTT / floor RTT", transport.Message, transport.Floor, workload.RTT, 1, 1.15, true)
		compare("udp RTT / floor RTT", transport.UDP, transport.Floor, workload.RTT, 1, 1.20, true)
		compare("tcp RTT / floor RTT", transport.TCP, transport.Floor, workload.RTT, 1, 1.40, true)
		compare("kernel-tcp RTT / tcp RTT", transport.KernelTCP, transport.TCP, workload.RTT, 1, pick(2.1, 1.85), false)
		compare("kernel-udp RTT / udp RTT", transport.KernelUDP, transport.UDP, workload.RTT, 1, pick(1.55, 1.35), false)
		compare(fmt.Sprintf("msg rate x%d / kernel-udp rate with mmsg", batch), transport.Message, transport.KernelUDP, workload.Rate, batch, pick(1.8, 1.3), false)
		compare("oneway: msg / kernel-udp message rate", transport.Message, transport.KernelUDP, workload.OneWay, 1, pick(1.6, 1.2), false)
		compare("oneway: tcp / kernel-tcp message rate", transport.TCP, transport.KernelTCP, workload.OneWay, 1, 3, false)
		compare("connect: tcp / kernel-tcp connections a second", transport.TCP, transport.KernelTCP, workload.Connect, 1, 1, false)
		goals = append(goals, s.sleeperGoal(attach), s.allocationGoal(attach), memoryGoal(attach, weights), idleGoal(attach, idle))
	}
	return goals
}

// ScaleGoals are the figures of many endpoints, and of endpoints as neighbours.
func (s Summary) ScaleGoals(openings []Opening) []Goal {
	msg := func(attach, place string) Key {
		return Key{workload.RTT, transport.Message, attach, place, "spin", goalSize, 1, 0}
	}
	compare := func(figure, attach string, bound float64, over, under Key) Goal {
		g := Goal{Figure: figure, Attach: attach, Bound: bound, AtMost: true, format: "%.2f"}
		o, ok1 := s.find(over)
		u, ok2 := s.find(under)
		if ok1 && ok2 {
			g.Measured, g.Known = ratio(o.P50.Median, u.P50.Median)
		}
		return g
	}
	goals := []Goal{
		compare("msg RTT with 256 endpoints open / with one", "port", 1.10, msg("port", plan.Crowd), msg("port", plan.Pair)),
		compare("msg RTT over ports / over queues", "both", 1.25, msg("port", plan.Pair), msg("queue", plan.Pair)),
		compare("msg RTT on one host / between two", "port", 1.0, msg("port", plan.Local), msg("port", plan.Pair)),
	}
	for _, o := range openings {
		goals = append(goals, Goal{
			Figure: fmt.Sprintf("ms to open an endpoint, median, with %d others open", o.Others),
			Attach: "port", Bound: 30, AtMost: true, Measured: o.MedianMS, Known: true, format: "%.1f",
		})
	}
	return goals
}

func (s Summary) largestBatch(b workload.Bench) int {
	n := 1
	for _, r := range s.Rows {
		if r.Bench == b {
			n = max(n, r.Batch)
		}
	}
	return n
}

// sleeperGoal is about connections as programs use them, by processes that need
// not spin for ever.
func (s Summary) sleeperGoal(attach string) Goal {
	g := Goal{Figure: "go-tcp RTT / tcp RTT, means, tcp waits adaptively", Attach: attach, Bound: 10, format: "%.2f"}
	over, ok1 := s.find(Key{workload.RTT, transport.GoTCP, transport.None, plan.Pair, "block", goalSize, 1, 0})
	under, ok2 := s.find(Key{workload.RTT, transport.TCP, attach, plan.Pair, "adaptive", goalSize, 1, 0})
	if ok1 && ok2 {
		g.Measured, g.Known = ratio(over.Mean.Median, under.Mean.Median)
	}
	return g
}

// allocationGoal is about the worst of unet's own paths. A connection that is
// opened is not one of them.
func (s Summary) allocationGoal(attach string) Goal {
	g := Goal{Figure: "allocations per message, worst of msg, udp and tcp", Attach: attach, Bound: 0, AtMost: true, format: "%.3f"}
	for _, r := range s.Rows {
		if r.Attach == attach && r.Bench != workload.Connect && (r.Transport == transport.Message || r.Transport == transport.UDP || r.Transport == transport.TCP) {
			g.Known = true
			if r.Allocs.Median >= noAllocs {
				g.Measured = max(g.Measured, r.Allocs.Median)
			}
		}
	}
	return g
}

// memoryGoal is about the heavier of an endpoint alone and one with a stack.
func memoryGoal(attach string, weights []Weight) Goal {
	g := Goal{Figure: "MiB resident of an idle endpoint's process over a bare one", Attach: attach, Bound: 16, AtMost: true, format: "%.1f"}
	for _, w := range weights {
		if w.Attach == attach {
			g.Known = true
			g.Measured = max(g.Measured, float64(w.With-w.Without)/mebibyte)
		}
	}
	return g
}

// PrintGoals writes the speed table.
func PrintGoals(w io.Writer, goals []Goal) {
	fmt.Fprintf(w, "\nFigures to reach (%d bytes, spinning unless it says otherwise, medians of interleaved rounds)\n", goalSize)
	fmt.Fprintf(w, "Less than %v allocations a message, which are the runtime's own, count as none.\n", noAllocs)
	printGoals(w, goals, true)
}

func printGoals(w io.Writer, goals []Goal, attached bool) {
	g := grid{left: 2}
	add := func(figure, attach string, cells ...string) {
		if attached {
			cells = append([]string{attach}, cells...)
		}
		g.add(append([]string{figure}, cells...)...)
	}
	if !attached {
		g.left = 1
	}
	add("figure", "attach", "bound", "measured", "")
	for _, goal := range goals {
		sign, verdict, measured := ">=", "ok", fmt.Sprintf(goal.format, goal.Measured)
		if goal.AtMost {
			sign = "<="
		}
		switch {
		case !goal.Known:
			verdict, measured = "not measured", "-"
		case !goal.Met():
			verdict = "short"
		}
		add(goal.Figure, goal.Attach, fmt.Sprintf("%s "+goal.format, sign, goal.Bound), measured, verdict)
	}
	g.print(w)
}

// PrintWeights writes the memory table.
func PrintWeights(w io.Writer, weights []Weight) {
	fmt.Fprintln(w, "\nResident memory of an idle process (VmRSS; the segment's shared pages are in it), MiB")
	fmt.Fprintln(w, "The bare process is the same program without an endpoint.")
	g := grid{left: 2}
	g.add("endpoint of", "attach", "with", "bare", "over bare")
	mib := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/mebibyte) }
	for _, x := range weights {
		g.add(x.Transport, x.Attach, mib(x.With), mib(x.Without), mib(x.With-x.Without))
	}
	g.print(w)
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
