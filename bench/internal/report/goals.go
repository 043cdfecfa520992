package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Goal is a figure and the bound that it has to keep.
type Goal struct {
	Figure   string
	Attach   string // "": the goal has none
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

// comparison is a goal on a ratio: a figure of one row over that of another one. A key
// without an attachment has that of the goal.
type comparison struct {
	figure      string
	over, under Key
	of          func(Row) Spread
	bound       map[string]float64 // by attachment
	atMost      bool
}

// goalSize is the size of the messages that the goals are about.
const goalSize = 64 // bytes

// goalWrite is the size of the writes that the goals of bandwidth are about.
const goalWrite = 64 << 10 // bytes

// message is the key of a benchmark of messages: spinning, one at a time, of goalSize.
func message(b workload.Bench, name string) Key {
	k := Key{Bench: b, Transport: name, Place: plan.Pair, Wait: "spin", Size: goalSize, Batch: 1}
	if t, err := transport.ByName(name); err != nil {
		panic("BUG: " + err.Error())
	} else if !t.Granted {
		k.Attach = transport.None
	}
	return k
}

func (k Key) waiting(wait string) Key          { k.Wait = wait; return k }
func (k Key) batched(n int) Key                { k.Batch = n; return k }
func (k Key) attached(attach string) Key       { k.Attach = attach; return k }
func (k Key) at(place string) Key              { k.Place = place; return k }
func (k Key) beside(waiters int) Key           { k.Waiters = waiters; return k }
func (k Key) within(procs int) Key             { k.Procs = procs; return k }
func both(bound float64) map[string]float64    { return split(bound, bound) }
func split(q, port float64) map[string]float64 { return map[string]float64{"queue": q, "port": port} }
func port(bound float64) map[string]float64    { return map[string]float64{"port": bound} }

// portOverQueue is a goal of small messages and of many endpoints.
var portOverQueue = comparison{"msg RTT over ports / over queues", message(workload.RTT, transport.Message),
	message(workload.RTT, transport.Message).attached("queue"), p50, port(1.25), true}

// speed are the goals of small messages.
var speed = []comparison{
	portOverQueue,
	{"msg RTT / floor RTT", message(workload.RTT, transport.Message), message(workload.RTT, transport.Floor), p50, both(1.15), true},
	{"udp RTT / floor RTT", message(workload.RTT, transport.UDP), message(workload.RTT, transport.Floor), p50, both(1.20), true},
	{"tcp RTT / floor RTT", message(workload.RTT, transport.TCP), message(workload.RTT, transport.Floor), p50, split(1.25, 1.20), true},
	{"kernel-tcp RTT / tcp RTT", message(workload.RTT, transport.KernelTCP), message(workload.RTT, transport.TCP), p50, split(1.9, 1.5), false},
	{"kernel-udp RTT / udp RTT", message(workload.RTT, transport.KernelUDP), message(workload.RTT, transport.UDP), p50, split(1.6, 1.35), false},
	{fmt.Sprintf("msg rate x%d / kernel-udp rate with mmsg", plan.RateBatch), message(workload.Rate, transport.Message).batched(plan.RateBatch),
		message(workload.Rate, transport.KernelUDP).batched(plan.RateBatch), msgsPerS, split(1.8, 1.3), false},
	{"oneway: msg / kernel-udp message rate", message(workload.OneWay, transport.Message), message(workload.OneWay, transport.KernelUDP), msgsPerS, split(1.6, 1.3), false},
	{"oneway: tcp / kernel-tcp message rate", message(workload.OneWay, transport.TCP), message(workload.OneWay, transport.KernelTCP), msgsPerS, both(3), false},
	{"connect: tcp / kernel-tcp connections a second", message(workload.Connect, transport.TCP), message(workload.Connect, transport.KernelTCP), msgsPerS, both(1), false},
	{"go-tcp RTT / tcp RTT, means, tcp waits adaptively", message(workload.RTT, transport.GoTCP).waiting("block"),
		message(workload.RTT, transport.TCP).waiting("adaptive"), mean, both(10), false},
}

// scale are the goals of many endpoints, and of two on one host.
var scale = []comparison{
	{"msg RTT with 256 endpoints open / with one", message(workload.RTT, transport.Message).at(plan.Crowd), message(workload.RTT, transport.Message), p50, port(1.10), true},
	portOverQueue,
	{"msg RTT on one host / between two", message(workload.RTT, transport.Message).at(plan.Local), message(workload.RTT, transport.Message), p50, port(1.0), true},
}

// bulk is the key of a transport of bandwidth.
func bulk(name string, mtu int) Key {
	k := Key{Bench: workload.Bandwidth, Transport: name, Place: plan.Pair, Wait: "spin", Size: goalWrite, Batch: 1, MTU: mtu}
	if t, err := transport.BulkByName(name); err != nil {
		panic("BUG: " + err.Error())
	} else if !t.Granted {
		k.Attach = transport.None
	}
	if name == transport.Floor {
		k.Size, k.Batch = transport.FloodPayload(mtu), plan.FloodBatch
	}
	return k
}

// bandwidth are the goals of bulk.
var bandwidth = []comparison{
	{"MTU 1500: tcp / kernel-tcp without segmentation offload", bulk(transport.TCP, 1500), bulk(transport.KernelTCPUnsegmented, 1500), gbPerS, both(1.1), false},
	{"MTU 1500: tcp / raw AF_XDP flood of full frames", bulk(transport.TCP, 1500), bulk(transport.Floor, 1500), gbPerS, both(0.7), false},
	{"MTU 1500: from kernel-tcp to tcp / kernel-tcp, with its offloads", bulk(transport.KernelToTCP, 1500), bulk(transport.KernelTCP, 1500), gbPerS, both(0.8), false},
	{"MTU 9000: tcp / kernel-tcp, with its offloads", bulk(transport.TCP, 9000), bulk(transport.KernelTCP, 9000), gbPerS, both(1.0), false},
}

// operation is the key of an operation of verbs: spinning.
func operation(name string, size, list, depth, mtu int) Key {
	if _, err := transport.OperationByName(name); err != nil {
		panic("BUG: " + err.Error())
	}
	return Key{Bench: workload.RDMA, Transport: name, Place: plan.Pair, Wait: "spin", Size: size, Batch: list, MTU: mtu, Verbs: workload.Verbs{Depth: depth, Clients: 1}}
}

// verbs are the goals of RDMA verbs.
var verbs = []comparison{
	{"rc-send RTT / udp RTT", message(workload.RTT, transport.RCSend), message(workload.RTT, transport.UDP), p50, both(1.15), true},
	{"rc-write RTT, memory polled / udp RTT", message(workload.RTT, transport.RCWrite), message(workload.RTT, transport.UDP), p50, both(1.15), true},
	{"rc-read / udp RTT", operation(transport.RCRead, goalSize, 1, 1, 0), message(workload.RTT, transport.UDP), p50, both(1.15), true},
	{"rc-fetch-add / udp RTT", operation(transport.RCFetchAdd, 8, 1, 1, 0), message(workload.RTT, transport.UDP), p50, both(1.15), true},
	{fmt.Sprintf("rc-write rate, lists of %d / msg rate x%d", plan.RateBatch, plan.RateBatch), operation(transport.RCWrite, goalSize, plan.RateBatch, plan.RDMADepth, 0),
		message(workload.Rate, transport.Message).batched(plan.RateBatch), msgsPerS, both(0.7), false},
	{"MTU 1500: rc-write of 64 KiB / raw AF_XDP flood of full frames", operation(transport.RCWrite, plan.RDMAWrite, 1, plan.RDMAWriteDepth, 1500), bulk(transport.Floor, 1500), gbPerS, both(0.7), false},
	{"MTU 9000: rc-write of 64 KiB / raw AF_XDP flood of full frames", operation(transport.RCWrite, plan.RDMAWrite, 1, plan.RDMAWriteDepth, 9000), bulk(transport.Floor, 9000), gbPerS, both(0.7), false},
}

// ipv6 are the goals of IPv6.
var ipv6 = []comparison{
	{"udp6 RTT / udp RTT", message(workload.RTT, transport.UDP6), message(workload.RTT, transport.UDP), p50, both(1.05), true},
	{"tcp6 RTT / tcp RTT", message(workload.RTT, transport.TCP6), message(workload.RTT, transport.TCP), p50, both(1.05), true},
}

// waitGoals are the goals of adaptive waiting, for each GOMAXPROCS and number of waiting goroutines in rows.
func waitGoals(rows []Row) (limits []limit, table []comparison) {
	seen := map[Key]bool{}
	for _, r := range rows {
		k := r.Key
		k.Attach = ""
		alone := message(workload.RTT, transport.TCP).waiting("adaptive").within(k.Procs)
		if k != alone.beside(k.Waiters) || seen[k] {
			continue
		}
		seen[k] = true
		on := ""
		if k.Procs > 0 {
			on = fmt.Sprintf(", GOMAXPROCS %d", k.Procs)
		}
		if k.Waiters == 0 {
			table = append(table, comparison{"tcp RTT, adaptive / spin" + on, k, k.waiting("spin"), p50, both(1.10), true})
			continue
		}
		table = append(table, comparison{fmt.Sprintf("tcp RTT, adaptive, with %d waiting / alone%s", k.Waiters, on), k, alone, p50, both(1.20), true})
		limits = append(limits, limit{fmt.Sprintf("%% of a processor, idle, tcp adaptive, %d waiting%s", k.Waiters, on), "%.2f", both(0.5), func(s Summary, attach string) (float64, bool) {
			r, ok := s.find(k.attached(attach))
			if !ok || r.IdleCPU == nil {
				return 0, false
			}
			return r.IdleCPU.Median, true
		}})
	}
	return limits, table
}

// limit is a goal on a figure that is no ratio.
type limit struct {
	figure, format string
	bound          map[string]float64 // by attachment
	measured       func(s Summary, attach string) (float64, bool)
}

// noAllocs is a number of allocations a message. Fewer count as none, because the runtime
// allocates occasionally.
const noAllocs = 0.0005

var (
	// instructions are of a message of a round trip, which has two.
	instructions = limit{"kernel instructions a message, msg, half a round trip", "%.0f", split(5600, 7700), func(s Summary, attach string) (float64, bool) {
		r, ok := s.find(message(workload.RTT, transport.Message).attached(attach))
		if !ok || r.Counts == nil {
			return 0, false
		}
		return r.Counts[perf.KernelInstructions].Median / 2, true
	}}
	// allocations are the worst of unet's own transports. Opening a connection allocates, so connect
	// is left out.
	allocations = limit{"allocations per message, worst of unet's transports", "%.3f", both(0), func(s Summary, attach string) (worst float64, ok bool) {
		for _, r := range s.Rows {
			if r.Attach == attach && r.Bench != workload.Connect && r.Transport != transport.Floor {
				if ok = true; r.Allocs.Median >= noAllocs {
					worst = max(worst, r.Allocs.Median)
				}
			}
		}
		return worst, ok
	}}
	// residentMemory is of the larger of an endpoint alone and one with a stack.
	residentMemory = limit{"MiB resident of an idle endpoint's process over a bare one", "%.1f", both(16), func(s Summary, attach string) (most float64, ok bool) {
		for _, m := range s.Memory {
			if m.Attach == attach {
				most, ok = max(most, float64(m.With-m.Without)/mebibyte), true
			}
		}
		return most, ok
	}}
	// idleMemory is of the larger of the two sides.
	idleMemory = limit{"KiB resident of an idle tcp connection", "%.2f", both(4), func(s Summary, attach string) (most float64, ok bool) {
		for _, x := range s.Idle {
			if x.Attach == attach {
				most, ok = max(most, x.Client/kibibyte, x.Server/kibibyte), true
			}
		}
		return most, ok
	}}
)

// attachments are those that goals are measured for, in the order of the tables.
var attachments = []string{"queue", "port"}

// compare evaluates the goals of an attachment.
func (s Summary) compare(table []comparison, attach string) (goals []Goal) {
	for _, c := range table {
		bound, ok := c.bound[attach]
		if !ok {
			continue
		}
		g := Goal{Figure: c.figure, Attach: attach, Bound: bound, AtMost: c.atMost, format: "%.2f"}
		for _, k := range []*Key{&c.over, &c.under} {
			if k.Attach == "" {
				k.Attach = attach
			}
		}
		if over, ok := s.find(c.over); ok {
			g.Measured, g.Known = s.over(over, c.under, c.of)
		}
		goals = append(goals, g)
	}
	return goals
}

// goals are those of some tables, for each attachment.
func (s Summary) goals(limits []limit, tables ...[]comparison) (goals []Goal) {
	for _, attach := range attachments {
		goals = append(goals, s.compare(slices.Concat(tables...), attach)...)
		for _, l := range limits {
			goals = append(goals, s.hold(l, attach))
		}
	}
	return goals
}

func (s Summary) hold(l limit, attach string) Goal {
	g := Goal{Figure: l.figure, Attach: attach, Bound: l.bound[attach], AtMost: true, format: l.format}
	g.Measured, g.Known = l.measured(s, attach)
	return g
}

// Goals are the speed and memory goals.
func (s Summary) Goals() []Goal {
	return s.goals([]limit{instructions, allocations, residentMemory, idleMemory}, speed, verbs)
}

const mostOpenMS = 30 // to open an endpoint

// ScaleGoals are the goals of many endpoints.
func (s Summary) ScaleGoals() []Goal {
	goals := s.compare(scale, "port")
	for _, o := range s.Openings {
		goals = append(goals, Goal{
			Figure: fmt.Sprintf("ms to open an endpoint, median, with %d others open", o.Others),
			Attach: "port", Bound: mostOpenMS, AtMost: true, Measured: o.MedianMS, Known: true, format: "%.1f",
		})
	}
	return goals
}

func known(g Goal) bool   { return g.Known }
func unknown(g Goal) bool { return !g.Known }

// PrintBandwidthGoals writes the goals of bulk, if any of their figures was measured.
func (s Summary) PrintBandwidthGoals(w io.Writer) {
	if goals := s.goals(nil, bandwidth); slices.ContainsFunc(goals, known) {
		PrintGoals(w, fmt.Sprintf("Figures of bandwidth to reach (writes of %d bytes, spinning, medians of interleaved rounds)", goalWrite), goals)
	}
}

// printMeasured writes the goals whose figures were measured.
func printMeasured(w io.Writer, title string, goals []Goal) {
	if goals = slices.DeleteFunc(goals, unknown); len(goals) > 0 {
		PrintGoals(w, title, goals)
	}
}

// PrintVerbsGoals writes the goals of RDMA verbs, those that were measured.
func (s Summary) PrintVerbsGoals(w io.Writer) {
	printMeasured(w, SpeedGoals, s.goals([]limit{allocations}, verbs))
}

// PrintOtherGoals writes the goals of IPv6 and of waiting, those that were measured.
func (s Summary) PrintOtherGoals(w io.Writer) {
	printMeasured(w, fmt.Sprintf("Figures of IPv6 to reach (%d bytes, spinning, medians of interleaved rounds)", goalSize), s.goals(nil, ipv6))
	if slices.ContainsFunc(s.Rows, func(r Row) bool { return r.Waiters > 0 }) {
		limits, table := waitGoals(s.Rows)
		printMeasured(w, fmt.Sprintf("Figures of waiting to reach (%d bytes, medians of interleaved rounds)", goalSize), s.goals(limits, table))
	}
}

// SpeedGoals is the title of the goals of small messages.
var SpeedGoals = fmt.Sprintf(`Figures to reach (%d bytes, spinning unless it says otherwise, medians of interleaved rounds)
Less than %v allocations a message, which are the runtime's own, count as none.`, goalSize, noAllocs)

// PrintGoals writes a table of goals, with a column for the attachment if they have one.
func PrintGoals(w io.Writer, title string, goals []Goal) {
	printTable(w, title, goals, text("figure", func(g Goal) string { return g.Figure }),
		optional(text("attach", func(g Goal) string { return cmp.Or(g.Attach, missing) })), value("bound", Goal.bound), value("measured", func(g Goal) string {
			if !g.Known {
				return missing
			}
			return fmt.Sprintf(g.format, g.Measured)
		}), value("", Goal.verdict))
}

func (g Goal) bound() string {
	if g.AtMost {
		return fmt.Sprintf("<= "+g.format, g.Bound)
	}
	return fmt.Sprintf(">= "+g.format, g.Bound)
}

func (g Goal) verdict() string {
	switch {
	case !g.Known:
		return "not measured"
	case g.Met():
		return "ok"
	}
	return "short"
}
