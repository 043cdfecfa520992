package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// tables are those of the benchmarks, one for each size of messages, or MTU where the size is a column.
var tables = []struct {
	bench workload.Bench
	title func(r Row, rounds string) string // r is the first row
}{
	{workload.RTT, func(r Row, rounds string) string {
		return fmt.Sprintf("Round trips of %d bytes: medians over %s (of p50: lowest..highest)", r.Size, rounds)
	}},
	{workload.Rate, func(r Row, rounds string) string {
		return fmt.Sprintf("Messages of %d bytes one way, as fast as they go: received a second, medians over %s", r.Size, rounds)
	}},
	{workload.OneWay, func(r Row, rounds string) string {
		return fmt.Sprintf("%d messages of %d bytes one way, medians over %s\n"+
			"At most %d messages are in flight; the receiver gives credit every %d. Timed from the first send until the\n"+
			"receiver's acknowledgment of all of them; nothing is subtracted. A stall is a credit that did not arrive in time.",
			r.sum(func(r Record) int { return r.N + r.Lost })/len(r.Records), r.Size, rounds, r.Records[0].CreditWindow, r.Records[0].CreditEvery)
	}},
	{workload.Connect, func(r Row, rounds string) string {
		return fmt.Sprintf("Connections opened and closed a second, %d at a time, medians over %s\n"+
			"One is: dial, %d bytes, %[3]d bytes in answer, half-close, the peer's end of file, close. Lost are those not done in time.",
			r.Records[0].Connections, rounds, r.Size)
	}},
	{workload.Bandwidth, func(r Row, rounds string) string {
		return fmt.Sprintf("Bytes one way, MTU %d: Gb/s of payload by size of the writes, medians over %s\n"+
			"cpu includes what the kernel does in system calls. Lost are bytes.", r.MTU, rounds)
	}},
	{workload.RDMA, func(r Row, rounds string) string {
		mtu := ""
		if r.MTU > 0 {
			mtu = fmt.Sprintf(", MTU %d", r.MTU)
		}
		return fmt.Sprintf("Operations of verbs%s, timed by the client until they complete, medians over %s", mtu, rounds)
	}},
	{workload.Open, func(_ Row, rounds string) string { return "Opening an endpoint of 8 MiB through unetd, time by time" }},
}

// Print writes the tables of what was measured.
func (s Summary) Print(w io.Writer) {
	columns := s.columns()
	for _, t := range tables {
		var values []int
		rows := map[int][]Row{}
		for _, r := range s.Rows {
			if r.Bench != t.bench {
				continue
			}
			v := r.MTU
			if !r.moves() {
				v = r.Size
			}
			if rows[v] == nil {
				values = append(values, v)
			}
			rows[v] = append(rows[v], r)
		}
		for _, v := range values {
			all := rows[v]
			title := t.title(all[0], roundsText(all, func(r Row) int { return len(r.Records) }))
			if t.bench != workload.Open {
				title += "\ncpu, syscalls and allocs are of both processes, for each of what is counted; lost is of all rounds."
			}
			printTable(w, title, all, columns)
			for _, r := range all {
				if i := slices.IndexFunc(r.Records, func(r Record) bool { return r.Failure != "" }); i >= 0 {
					fmt.Fprintf(w, "%s %s: %s\n", r.Transport, r.where(), r.Records[i].Failure)
				}
			}
		}
	}
}

// where is the attachment, and the place if it is not the usual one.
func (r Row) where() string {
	s := r.Attach
	if r.Place != workload.Pair {
		s += ", " + r.Place
	}
	return s
}

// moves reports whether a row is about bytes, of writes or operations of several sizes.
func (r Row) moves() bool { return r.Bench == workload.Bandwidth || r.Bench == workload.RDMA }

// columns are those of all tables. A table has those of which its rows have figures.
func (s Summary) columns() []column[Row] {
	in := func(benches ...workload.Bench) func(Row) bool {
		return func(r Row) bool { return slices.Contains(benches, r.Bench) }
	}
	waits := func(r Row) bool { return r.Waiters > 0 || r.Procs > 0 }
	timed := func(r Row) bool { return r.Records[0].P50US != nil }
	costs := func(r Row) bool { return r.Bench != workload.Open }
	counted := func(head string, of func(Record) *int) []column[Row] {
		return having(func(r Row) bool { return of(r.Records[0]) != nil }, value(head, func(r Row) int {
			return r.sum(func(r Record) int { return known(of(r)) })
		}))
	}
	return slices.Concat(
		text("transport", func(r Row) string { return r.Transport }),
		text("attach", Row.where),
		text("wait", func(r Row) string { return r.Wait }),
		having(waits, value("GOMAXPROCS", func(r Row) int { return r.Procs })),
		having(waits, value("waiting", func(r Row) int { return r.Waiters })),
		having(Row.moves, value("bytes", func(r Row) int { return r.Size })),
		having(in(workload.Rate, workload.OneWay, workload.RDMA), value("batch", func(r Row) int { return r.Batch })),
		having(in(workload.RDMA), value("in flight", func(r Row) int { return r.Depth })),
		having(in(workload.Rate, workload.OneWay, workload.Connect, workload.RDMA), extremes("k/s", msgsPerS, 1e-3, 2)),
		having(Row.moves, extremes("Gb/s", gbPerS, 1, 2)),
		having(timed, slices.Concat(extremes("p50 us", p50, 1, 2), median("mean us", mean, 1, 2), median("p99 us", p99, 1, 2), median("p99.9 us", p999, 1, 2))),
		having(costs, median("cpu us", cpu, 1, 2)),
		having(in(workload.Bandwidth), median("s/GB", cpuPerGB, 1, 2)),
		having(in(workload.RDMA), median("server", serverCPU, 1, 2)),
		having(costs, value("syscalls", func(r Row) string {
			if calls, ok := r.calls(); ok {
				return fmt.Sprintf("%.3f", calls)
			}
			return "unknown"
		})),
		having(costs, median("allocs", allocs, 1, 3)),
		having(costs, value("lost", func(r Row) int { return r.sum(func(r Record) int { return r.Lost }) })),
		counted("duplicates", func(r Record) *int { return r.Duplicates }),
		counted("stalls", func(r Record) *int { return r.Stalls }),
		counted("failed", func(r Record) *int { return r.Failed }),
		counted("at the server", func(r Record) *int { return r.ServerFailed }),
		quotient("vs kernel-udp", "x", s.overKernel(transport.KernelUDP, workload.RTT, workload.Rate, workload.OneWay)),
		quotient("vs kernel-tcp", "x", s.overKernel(transport.KernelTCP, workload.Connect, workload.Bandwidth)),
		quotient("/ floor", "", s.overFloor),
		quotient("idle %", "", Row.idle))
}

// over is the ratio of r's figure to that of another row.
func (s Summary) over(r Row, other workload.Case, of func(Row) Spread) (float64, bool) {
	o, ok := s.find(other)
	if !ok {
		return 0, false
	}
	return ratio(of(r).Median, of(o).Median)
}

// overKernel is the ratio of a row of some benchmarks to spinning kernel sockets, in the same batches and on as many
// hosts: of the kernel's round trip to the row's, or of the row's rate to the kernel's.
func (s Summary) overKernel(name string, benches ...workload.Bench) func(Row) (float64, bool) {
	return func(r Row) (float64, bool) {
		k := r.Case
		k.Transport, k.Attach, k.Wait = name, workload.None, "spin"
		if k.Place == workload.Crowd {
			k.Place = workload.Pair
		}
		switch {
		case !slices.Contains(benches, r.Bench):
			return 0, false
		case r.Bench == workload.RTT:
			v, ok := s.over(r, k, p50)
			return 1 / v, ok
		}
		return s.over(r, k, msgsPerS)
	}
}

// overFloor is r as a fraction of what no stack can exceed: raw AF_XDP over the same attachment, or on one host
// a bare memory path. Bytes are compared with a flood of full frames.
func (s Summary) overFloor(r Row) (float64, bool) {
	k, of := r.Case, msgsPerS
	switch {
	case r.Bench == workload.RTT:
		of = p50
	case r.moves() && r.MTU > 0:
		k, of = bulk(transport.Floor, r.MTU), gbPerS
	}
	k.Transport, k.Attach, k.Place, k.Wait = transport.Floor, r.Attach, r.Place, "spin"
	if r.Place == workload.Local {
		k.Transport, k.Attach = transport.Ring, workload.None
	}
	return s.over(r, k, of)
}
