package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// goal is a figure of a run and the bounds that it has to keep: the ratio of a figure of two rows, or
// another one. A case without an attachment has that of the bound.
type goal struct {
	figure      string
	over, under workload.Case
	of          func(Row) Spread
	bound       map[string]float64 // by attachment
	atMost      bool
	other       func(s Summary, attach string) (float64, bool) // instead of a ratio
	format      string                                         // "%.2f" if it is empty
}

// Goal is a goal for an attachment, and what was measured.
type Goal struct {
	Figure   string
	Attach   string // none: the goal is of kernel sockets
	Bound    float64
	AtMost   bool // else at least
	Measured float64
	Known    bool // there is a measurement
	format   string
}

// Met reports whether the bound is kept.
func (g Goal) Met() bool { return g.Measured == g.Bound || g.AtMost == (g.Measured < g.Bound) }

const (
	goalSize  = 64       // bytes of the messages that the goals are about
	goalWrite = 64 << 10 // bytes of the writes that the goals of bandwidth are about
	// noAllocs and noCalls are numbers of allocations and of system calls a message. Fewer count as none: the runtime
	// makes some occasionally, and each process a few at the begin.
	noAllocs   = 0.0005
	noCalls    = 0.005
	mostOpenMS = 30 // to open an endpoint
)

// change is a difference from the usual case of a goal.
type change func(*workload.Case)

// one is a case of a benchmark, of 64 bytes, spinning, one at a time, but for changes.
func one(b workload.Bench, name string, changes ...change) workload.Case {
	k := workload.Case{Bench: b, Transport: name, Place: workload.Pair, Wait: "spin", Size: goalSize, Batch: 1}
	if t, err := transport.ByName(b, name); err != nil {
		panic("BUG: " + err.Error())
	} else if !t.Granted {
		k.Attach = workload.None
	}
	for _, c := range changes {
		c(&k)
	}
	return k
}

func waiting(wait string) change    { return func(k *workload.Case) { k.Wait = wait } }
func attached(attach string) change { return func(k *workload.Case) { k.Attach = attach } }
func at(place string) change        { return func(k *workload.Case) { k.Place = place } }
func lists(k *workload.Case)        { k.Batch = plan.RateBatch }

func rtt(name string, changes ...change) workload.Case { return one(workload.RTT, name, changes...) }

// operation is an operation of verbs with a number of bytes and in flight, at an MTU.
func operation(name string, size, depth, mtu int, changes ...change) workload.Case {
	return one(workload.RDMA, name, append(changes, func(k *workload.Case) { k.Size, k.Depth, k.MTU = size, depth, mtu })...)
}

func bulkWrite(mtu int) workload.Case {
	return operation(transport.RCWrite, plan.RDMAWrite, plan.RDMAWriteDepth, mtu)
}

// bulk is a case of bandwidth.
func bulk(name string, mtu int) workload.Case {
	return one(workload.Bandwidth, name, func(k *workload.Case) {
		if k.Size, k.MTU = goalWrite, mtu; name == transport.Floor {
			k.Size, k.Batch = transport.FloodPayload(mtu), plan.FloodBatch
		}
	})
}

// opening is the case of endpoints that are opened on an empty host, or on a crowded one.
func opening(place string) workload.Case {
	return workload.Case{Bench: workload.Open, Transport: transport.Message, Attach: "port", Place: place, Wait: workload.None}
}

func both(bound float64) map[string]float64    { return split(bound, bound) }
func split(q, port float64) map[string]float64 { return map[string]float64{"queue": q, "port": port} }
func port(bound float64) map[string]float64    { return map[string]float64{"port": bound} }
func none(bound float64) map[string]float64    { return map[string]float64{workload.None: bound} }

// The goals.
var (
	speed = []goal{
		{figure: "msg RTT over ports / over queues", over: rtt(transport.Message), under: rtt(transport.Message, attached("queue")), of: p50, bound: port(1.25), atMost: true},
		{figure: "msg RTT / floor RTT", over: rtt(transport.Message), under: rtt(transport.Floor), of: p50, bound: both(1.15), atMost: true},
		{figure: "udp RTT / floor RTT", over: rtt(transport.UDP), under: rtt(transport.Floor), of: p50, bound: both(1.20), atMost: true},
		{figure: "tcp RTT / floor RTT", over: rtt(transport.TCP), under: rtt(transport.Floor), of: p50, bound: split(1.25, 1.20), atMost: true},
		{figure: "kernel-tcp RTT / tcp RTT", over: rtt(transport.KernelTCP), under: rtt(transport.TCP), of: p50, bound: split(1.9, 1.5)},
		{figure: "kernel-udp RTT / udp RTT", over: rtt(transport.KernelUDP), under: rtt(transport.UDP), of: p50, bound: split(1.6, 1.35)},
		{figure: fmt.Sprintf("msg rate x%d / kernel-udp rate with mmsg", plan.RateBatch), over: one(workload.Rate, transport.Message, lists), under: one(workload.Rate, transport.KernelUDP, lists), of: msgsPerS, bound: split(1.8, 1.3)},
		{figure: "oneway: msg / kernel-udp message rate", over: one(workload.OneWay, transport.Message), under: one(workload.OneWay, transport.KernelUDP), of: msgsPerS, bound: split(1.6, 1.3)},
		{figure: "oneway: tcp / kernel-tcp message rate", over: one(workload.OneWay, transport.TCP), under: one(workload.OneWay, transport.KernelTCP), of: msgsPerS, bound: both(3)},
		{figure: "connect: tcp / kernel-tcp connections a second", over: one(workload.Connect, transport.TCP), under: one(workload.Connect, transport.KernelTCP), of: msgsPerS, bound: both(1)},
		{figure: "go-tcp RTT / tcp RTT, means, tcp waits adaptively", over: rtt(transport.GoTCP, waiting("block")), under: rtt(transport.TCP, waiting("adaptive")), of: mean, bound: both(10)},
	}
	scale = []goal{
		{figure: "msg RTT with 256 endpoints open / with one", over: rtt(transport.Message, at(workload.Crowd)), under: rtt(transport.Message), of: p50, bound: port(1.10), atMost: true},
		{figure: "msg RTT on one host / between two", over: rtt(transport.Message, at(workload.Local)), under: rtt(transport.Message), of: p50, bound: port(1.0), atMost: true},
		toOpen("ms to open an endpoint, median, with 0 others open", workload.Pair),
		toOpen("ms to open an endpoint, median, with 255 others open", workload.Crowd),
	}
	bandwidth = []goal{
		{figure: "MTU 1500: tcp / kernel-tcp without segmentation offload", over: bulk(transport.TCP, 1500), under: bulk(transport.KernelTCPUnsegmented, 1500), of: gbPerS, bound: both(1.1)},
		{figure: "MTU 1500: tcp / raw AF_XDP flood of full frames", over: bulk(transport.TCP, 1500), under: bulk(transport.Floor, 1500), of: gbPerS, bound: both(0.7)},
		{figure: "MTU 1500: from kernel-tcp to tcp / kernel-tcp, with its offloads", over: bulk(transport.KernelToTCP, 1500), under: bulk(transport.KernelTCP, 1500), of: gbPerS, bound: both(0.8)},
		{figure: "MTU 9000: tcp / kernel-tcp, with its offloads", over: bulk(transport.TCP, 9000), under: bulk(transport.KernelTCP, 9000), of: gbPerS, bound: both(1.0)},
	}
	verbs = []goal{
		{figure: "rc-send RTT / udp RTT", over: rtt(transport.RCSend), under: rtt(transport.UDP), of: p50, bound: both(1.15), atMost: true},
		{figure: "rc-write RTT, memory polled / udp RTT", over: rtt(transport.RCWrite), under: rtt(transport.UDP), of: p50, bound: both(1.15), atMost: true},
		{figure: "rc-read / udp RTT", over: operation(transport.RCRead, goalSize, 1, 0), under: rtt(transport.UDP), of: p50, bound: both(1.15), atMost: true},
		{figure: "rc-fetch-add / udp RTT", over: operation(transport.RCFetchAdd, 8, 1, 0), under: rtt(transport.UDP), of: p50, bound: both(1.15), atMost: true},
		{figure: fmt.Sprintf("rc-write rate, lists of %d / msg rate x%[1]d", plan.RateBatch), over: operation(transport.RCWrite, goalSize, plan.RDMADepth, 0, lists),
			under: one(workload.Rate, transport.Message, lists), of: msgsPerS, bound: both(0.7)},
		{figure: "MTU 1500: rc-write of 64 KiB / raw AF_XDP flood of full frames", over: bulkWrite(1500), under: bulk(transport.Floor, 1500), of: gbPerS, bound: both(0.7)},
		{figure: "MTU 9000: rc-write of 64 KiB / raw AF_XDP flood of full frames", over: bulkWrite(9000), under: bulk(transport.Floor, 9000), of: gbPerS, bound: both(0.7)},
	}
	ipv6 = []goal{
		{figure: "udp6 RTT / udp RTT", over: rtt(transport.UDP6), under: rtt(transport.UDP), of: p50, bound: both(1.05), atMost: true},
		{figure: "tcp6 RTT / tcp RTT", over: rtt(transport.TCP6), under: rtt(transport.TCP), of: p50, bound: both(1.05), atMost: true},
	}
	kernel = []goal{
		{figure: "UDP round trip with the mux / without", over: rtt(transport.KernelUDPMux), under: rtt(transport.KernelUDP), of: p50, bound: none(1.05), atMost: true},
		{figure: "MTU 1500: TCP stream with the mux / without", over: bulk(transport.KernelTCPMux, 1500), under: bulk(transport.KernelTCP, 1500), of: gbPerS, bound: none(0.95)},
		{figure: "MTU 9000: TCP stream with the mux / without", over: bulk(transport.KernelTCPMux, 9000), under: bulk(transport.KernelTCP, 9000), of: gbPerS, bound: none(0.95)},
	}
	// oneHost are the goals of endpoints of one host beside kernel sockets over lo.
	oneHost = allAt(workload.Local, []goal{
		{figure: "kernel-udp RTT / udp RTT", over: rtt(transport.KernelUDP), under: rtt(transport.UDP), of: p50, bound: port(6)},
		{figure: "kernel-tcp RTT / tcp RTT", over: rtt(transport.KernelTCP), under: rtt(transport.TCP), of: p50, bound: port(6)},
		{figure: "go-tcp RTT / tcp RTT, means, tcp waits adaptively", over: rtt(transport.GoTCP, waiting("block")), under: rtt(transport.TCP, waiting("adaptive")), of: mean, bound: port(8)},
		{figure: "udp RTT / go-udp RTT, both block", over: rtt(transport.UDP, waiting("block")), under: rtt(transport.GoUDP, waiting("block")), of: p50, bound: port(1), atMost: true},
		{figure: "tcp RTT / go-tcp RTT, both block", over: rtt(transport.TCP, waiting("block")), under: rtt(transport.GoTCP, waiting("block")), of: p50, bound: port(1), atMost: true},
		{figure: "udp / kernel-udp rate", over: one(workload.Rate, transport.UDP), under: one(workload.Rate, transport.KernelUDP), of: msgsPerS, bound: port(6)},
		{figure: "tcp / kernel-tcp rate", over: one(workload.Rate, transport.TCP), under: one(workload.Rate, transport.KernelTCP), of: msgsPerS, bound: port(6)},
		{figure: "oneway: udp / kernel-udp message rate", over: one(workload.OneWay, transport.UDP), under: one(workload.OneWay, transport.KernelUDP), of: msgsPerS, bound: port(6)},
		{figure: "oneway: tcp / kernel-tcp message rate", over: one(workload.OneWay, transport.TCP), under: one(workload.OneWay, transport.KernelTCP), of: msgsPerS, bound: port(6)},
		{figure: "connect: tcp / kernel-tcp connections a second", over: one(workload.Connect, transport.TCP), under: one(workload.Connect, transport.KernelTCP), of: msgsPerS, bound: port(1.5)},
		{figure: "rc-send RTT / kernel-udp RTT", over: rtt(transport.RCSend), under: rtt(transport.KernelUDP), of: p50, bound: port(0.4), atMost: true},
		{figure: "rc-read / kernel-udp RTT", over: operation(transport.RCRead, goalSize, 1, 0), under: rtt(transport.KernelUDP), of: p50, bound: port(0.4), atMost: true},
		{figure: "MTU 1500: tcp / kernel-tcp, with its offloads", over: bulk(transport.TCP, 1500), under: bulk(transport.KernelTCP, 1500), of: gbPerS, bound: port(1.5)},
		{figure: "MTU 9000: tcp / kernel-tcp, with its offloads", over: bulk(transport.TCP, 9000), under: bulk(transport.KernelTCP, 9000), of: gbPerS, bound: port(1.5)},
		{figure: "allocations per message, spinning, worst of unet's transports", format: "%.3f", bound: port(0), atMost: true, other: worst(noAllocs, messagesOfOneHost, func(r Row) (float64, bool) { return allocs(r).Median, true })},
		{figure: "system calls per message, spinning, worst of unet's transports", format: "%.3f", bound: port(0), atMost: true, other: worst(noCalls, messagesOfOneHost, Row.calls)},
	})
	// allocations are the worst of unet's own transports. Opening a connection allocates, so connect
	// is left out.
	allocations = goal{figure: "allocations per message, worst of unet's transports", format: "%.3f", bound: both(0), atMost: true, other: worst(noAllocs,
		func(r Row) bool {
			return r.Place != workload.Local && r.Bench != workload.Connect && r.Bench != workload.Open && r.Transport != transport.Floor
		},
		func(r Row) (float64, bool) { return allocs(r).Median, true })}
)

// allAt has goals compare what was measured at a place.
func allAt(place string, goals []goal) []goal {
	for i := range goals {
		goals[i].over.Place, goals[i].under.Place = place, place
	}
	return goals
}

// messagesOfOneHost are those of spinning endpoints of one host.
func messagesOfOneHost(r Row) bool {
	return r.Place == workload.Local && r.Wait == "spin" && r.Bench != workload.Connect && r.Bench != workload.Bandwidth && r.Transport != transport.Floor
}

// worst is the largest figure of the rows of an attachment that has selects. Less than negligible is 0.
func worst(negligible float64, has func(Row) bool, of func(Row) (float64, bool)) func(Summary, string) (float64, bool) {
	return func(s Summary, attach string) (worst float64, ok bool) {
		for _, r := range s.Rows {
			if v, known := of(r); known && r.Attach == attach && has(r) {
				if ok = true; v >= negligible {
					worst = max(worst, v)
				}
			}
		}
		return worst, ok
	}
}

// waitGoals are the goals of adaptive waiting, for each GOMAXPROCS and number of waiting goroutines in rows.
func waitGoals(rows []Row) (goals []goal) {
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.Waiters > 0 }) {
		return nil
	}
	seen := map[workload.Case]bool{}
	for _, r := range rows {
		k, alone := r.Case, rtt(transport.TCP, waiting("adaptive"))
		k.Attach, alone.Waiters, alone.Procs = "", k.Waiters, k.Procs
		if k != alone || seen[k] {
			continue
		}
		seen[k] = true
		on := ""
		if k.Procs > 0 {
			on = fmt.Sprintf(", GOMAXPROCS %d", k.Procs)
		}
		spinning := k
		if spinning.Wait, alone.Waiters = "spin", 0; k.Waiters == 0 {
			goals = append(goals, goal{figure: "tcp RTT, adaptive / spin" + on, over: k, under: spinning, of: p50, bound: both(1.10), atMost: true})
			continue
		}
		goals = append(goals, goal{figure: fmt.Sprintf("tcp RTT, adaptive, with %d waiting / alone%s", k.Waiters, on), over: k, under: alone, of: p50, bound: both(1.20), atMost: true},
			goal{figure: fmt.Sprintf("%% of a processor, idle, tcp adaptive, %d waiting%s", k.Waiters, on), bound: both(0.5), atMost: true, other: func(s Summary, attach string) (float64, bool) {
				k.Attach = attach
				r, ok := s.find(k)
				if !ok {
					return 0, false
				}
				return r.idle()
			}})
	}
	return goals
}

// toOpen is the goal of opening endpoints at a place.
func toOpen(figure, place string) goal {
	return goal{figure: figure, format: "%.1f", bound: port(mostOpenMS), atMost: true, other: func(s Summary, _ string) (float64, bool) {
		r, ok := s.find(opening(place))
		return p50(r).Median / 1e3, ok
	}}
}

// goals evaluates goals, for each attachment.
func (s Summary) goals(tables ...[]goal) (all []Goal) {
	for _, attach := range []string{"queue", "port", workload.None} {
		for _, g := range slices.Concat(tables...) {
			if bound, ok := g.bound[attach]; ok {
				all = append(all, s.measured(g, attach, bound))
			}
		}
	}
	return all
}

func (s Summary) measured(g goal, attach string, bound float64) Goal {
	m := Goal{Figure: g.figure, Attach: attach, Bound: bound, AtMost: g.atMost, format: cmp.Or(g.format, "%.2f")}
	if g.other != nil {
		m.Measured, m.Known = g.other(s, attach)
		return m
	}
	for _, k := range []*workload.Case{&g.over, &g.under} {
		k.Attach = cmp.Or(k.Attach, attach)
	}
	if over, ok := s.find(g.over); ok {
		m.Measured, m.Known = s.over(over, g.under, g.of)
	}
	return m
}

// Goals are those that a run of all holds its figures to.
func (s Summary) Goals() []Goal { return s.goals(speed, verbs, []goal{allocations}) }

// PrintGoals writes the goals whose figures were measured, and after a run of all at some places also the others of these.
func (s Summary) PrintGoals(w io.Writer, all ...string) {
	message := fmt.Sprintf("%d bytes, spinning unless it says otherwise, medians of interleaved rounds", goalSize)
	for _, table := range []struct {
		title string
		goals []Goal
		all   string // the place of which a run of all measures them
	}{
		{fmt.Sprintf("Figures to reach (%s)\nLess than %v allocations a message, which are the runtime's own, count as none.", message, noAllocs), s.Goals(), workload.Pair},
		{fmt.Sprintf("Figures of one host to reach (%s)\nLess than %v allocations or %v system calls a message count as none.", message, noAllocs, noCalls), s.goals(oneHost), workload.Local},
		{fmt.Sprintf("Figures of scale to reach (%s)", message), s.goals(scale), ""},
		{fmt.Sprintf("Figures of bandwidth to reach (writes of %d bytes, spinning, medians of interleaved rounds)", goalWrite), s.goals(bandwidth), ""},
		{fmt.Sprintf("Figures of IPv6 to reach (%s)", message), s.goals(ipv6), ""},
		{fmt.Sprintf("Figures of waiting to reach (%d bytes, medians of interleaved rounds)", goalSize), s.goals(waitGoals(s.Rows)), ""},
		{"Figures of the kernel's own traffic to reach (sockets on interfaces that carry the mux, medians of interleaved rounds)", s.goals(kernel), ""},
	} {
		goals := slices.DeleteFunc(table.goals, func(g Goal) bool { return !g.Known && !slices.Contains(all, table.all) })
		if len(goals) > 0 {
			printGoals(w, table.title, goals)
		}
	}
}

// printGoals writes a table of goals.
func printGoals(w io.Writer, title string, goals []Goal) {
	printTable(w, title, goals, text("figure", func(g Goal) string { return g.Figure }), text("attach", func(g Goal) string { return g.Attach }),
		value("bound", Goal.bound), value("measured", func(g Goal) string {
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
