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

// table is a table of rows.
type table struct {
	title   func(rows []Row) string
	has     func(Row) bool
	by      func(Row) int // a table for each of its values
	columns [][]column[Row]
}

func bySize(r Row) int  { return r.Size }
func byMTU(r Row) int   { return r.MTU }
func oneTable(Row) int  { return 0 }
func lost(r Record) int { return r.Lost }

// Columns of several tables.
var (
	whereColumns = slices.Concat(
		text("transport", func(r Row) string { return r.Transport }),
		text("attach", Row.where),
		text("wait", func(r Row) string { return r.Wait }),
		optional(waitingColumn("GOMAXPROCS", func(r Row) int { return r.Procs })),
		optional(waitingColumn("waiting", func(r Row) int { return r.Waiters })))
	operationColumns = slices.Concat(text("operation", func(r Row) string { return r.Transport }), text("attach", Row.where))
	cpuColumn        = median("cpu us", cpu, 1, 2)
	callsColumn      = value("syscalls", func(r Row) string {
		if calls, ok := r.calls(); ok {
			return fmt.Sprintf("%.3f", calls)
		}
		return "unknown"
	})
	effortColumns = slices.Concat(cpuColumn, callsColumn, median("allocs", allocs, 1, 3))
	lostColumn    = value("lost", func(r Row) int { return r.sum(lost) })
	timeColumns   = slices.Concat(extremes("p50 us", p50, 1, 2), median("mean us", mean, 1, 2), median("p99 us", p99, 1, 2), median("p99.9 us", p999, 1, 2))
	sizeColumn    = value("bytes", bySize)
	depthColumn   = value("in flight", func(r Row) int { return max(r.Depth, r.Batch) })
	listColumn    = value("list", func(r Row) int { return r.Batch })
	rateColumn    = extremes("M op/s", msgsPerS, 1e-6, 3)
	bitsColumn    = extremes("Gb/s", gbPerS, 1, 2)
)

// waitingColumn is a column about goroutines that wait, of rows that were measured so.
func waitingColumn(head string, of func(Row) int) []column[Row] {
	return value(head, func(r Row) string {
		if r.Waiters == 0 && r.Procs == 0 {
			return missing
		}
		return fmt.Sprint(of(r))
	})
}

// Print writes the tables of what was measured.
func (s Summary) Print(w io.Writer) {
	s.print(w, s.tables())
	s.PrintOperations(w)
	if len(s.Openings) > 0 {
		ms := func(head string, of func(Opening) float64) []column[Opening] {
			return value(head, func(o Opening) string { return fmt.Sprintf("%.1f", of(o)) })
		}
		printTable(w, "Opening an endpoint of 8 MiB through unetd, ms", s.Openings,
			value("others open", func(o Opening) int { return o.Others }), value("times", func(o Opening) int { return o.N }),
			ms("median", func(o Opening) float64 { return o.MedianMS }), ms("lowest", func(o Opening) float64 { return o.MinMS }), ms("highest", func(o Opening) float64 { return o.MaxMS }))
	}
}

// PrintOperations writes the tables of rdma.
func (s Summary) PrintOperations(w io.Writer) {
	if slices.ContainsFunc(s.Rows, func(r Row) bool { return r.Bench == workload.RDMA }) {
		s.print(w, s.operationTables())
	}
}

func (s Summary) print(w io.Writer, tables []table) {
	for _, t := range tables {
		all := s.rows(t.has)
		var values []int
		for _, r := range all {
			if v := t.by(r); !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		for _, v := range values {
			var rows []Row
			for _, r := range all {
				if t.by(r) == v {
					rows = append(rows, r)
				}
			}
			printTable(w, t.title(rows), rows, t.columns...)
			for _, r := range rows {
				if i := slices.IndexFunc(r.Records, func(r Record) bool { return r.Failure != "" }); i >= 0 {
					fmt.Fprintf(w, "%s %s: %s\n", r.Transport, r.where(), r.Records[i].Failure)
				}
			}
		}
	}
}

func (s Summary) rows(which func(Row) bool) (rows []Row) {
	for _, r := range s.Rows {
		if which(r) {
			rows = append(rows, r)
		}
	}
	return rows
}

// where is the attachment, and the place if it is not the usual one.
func (r Row) where() string {
	s := r.Attach
	if r.Place != plan.Pair {
		s += ", " + r.Place
	}
	return s
}

func rounds(rows []Row) string { return roundsText(rows, func(r Row) int { return len(r.Records) }) }

// tables are those of all benchmarks but rdma.
func (s Summary) tables() []table {
	of := func(b workload.Bench) func(Row) bool { return func(r Row) bool { return r.Bench == b } }
	overKernel, overFloor := quotient("vs kernel-udp", "x", s.overKernel), quotient("/ floor", "", s.overFloor)
	stream := [][]column[Row]{whereColumns, value("batch", func(r Row) int { return r.Batch }), extremes("M msg/s", msgsPerS, 1e-6, 3), effortColumns, lostColumn,
		value("duplicates", func(r Row) int { return r.sum(func(r Record) int { return known(r.Duplicates) }) }), value("stalls", func(r Row) int { return r.sum(func(r Record) int { return known(r.Stalls) }) }), overKernel, overFloor}
	return []table{
		{func(rows []Row) string {
			return fmt.Sprintf("Round trips of %d bytes: medians over %s (of p50: lowest..highest)\n"+
				"cpu, syscalls and allocs are of both processes, a round trip; lost is of all rounds.", rows[0].Size, rounds(rows))
		}, of(workload.RTT), bySize, [][]column[Row]{whereColumns, timeColumns, effortColumns, lostColumn, overKernel, overFloor,
			optional(quotient("idle %", "", Row.idle))}},
		{func(rows []Row) string {
			return fmt.Sprintf("Messages of %d bytes one way, as fast as they go: received a second, medians over %s\n"+
				"cpu, syscalls and allocs are of both processes, a message received; lost and duplicates are of all rounds.", rows[0].Size, rounds(rows))
		}, of(workload.Rate), bySize, stream},
		{func(rows []Row) string {
			r := rows[0]
			return fmt.Sprintf("%d messages of %d bytes one way, medians over %s\n"+
				"At most %d messages are in flight; the receiver gives credit every %d. Timed from the first send until the\n"+
				"receiver's acknowledgment of all of them; nothing is subtracted. A stall is a credit that did not arrive in time.",
				r.sum(func(r Record) int { return r.N + r.Lost })/len(r.Records), r.Size, rounds(rows), r.Records[0].CreditWindow, r.Records[0].CreditEvery)
		}, of(workload.OneWay), bySize, stream},
		{func(rows []Row) string {
			n := fmt.Sprintf("%d at a time", rows[0].Records[0].Connections)
			if rows[0].Records[0].Connections == 1 {
				n = "one at a time"
			}
			return fmt.Sprintf("Connections opened and closed a second, %s, medians over %s\n"+
				"One is: dial, %d bytes, %[3]d bytes in answer, half-close, the peer's end of file, close. p50 and p99 are of one.\n"+
				"cpu, syscalls and allocs are of both processes, a connection; late (not done in time) and failed are of all rounds.", n, rounds(rows), rows[0].Size)
		}, of(workload.Connect), bySize, [][]column[Row]{whereColumns, extremes("k conn/s", msgsPerS, 1e-3, 2), median("p50 us", p50, 1, 2), median("p99 us", p99, 1, 2),
			cpuColumn, callsColumn, median("allocs", allocs, 1, 1), value("late", func(r Row) int { return r.sum(lost) }),
			value("failed", func(r Row) string {
				text := fmt.Sprint(r.sum(func(r Record) int { return known(r.Failed) }))
				if n := r.sum(func(r Record) int { return known(r.ServerFailed) }); n > 0 {
					text += fmt.Sprintf(", server %d", n)
				}
				return text
			}), quotient("vs kernel-tcp", "x", s.overKernel)}},
		{func(rows []Row) string {
			return fmt.Sprintf("Bytes one way, MTU %d: Gb/s of payload by size of the writes, medians over %s\n"+
				"cpu is of both processes, what the kernel does in their system calls included; syscalls and allocs are a write; lost is of all rounds.", rows[0].MTU, rounds(rows))
		}, of(workload.Bandwidth), byMTU, [][]column[Row]{whereColumns, value("write", bySize), bitsColumn, median("cpu s/GB", cpuPerGB, 1, 2),
			callsColumn, median("allocs", allocs, 1, 3), lostColumn}},
	}
}

// isVerbs reports whether a row is of package verbs.
func (r Row) isVerbs() bool {
	return r.Bench == workload.RDMA || slices.ContainsFunc(transport.Verbs, func(t transport.Transport) bool { return t.Name == r.Transport })
}

// operationTables are those of rdma.
func (s Summary) operationTables() []table {
	spinning := func(r Row) bool { return r.Wait == "spin" && r.MTU == 0 }
	single := func(r Row) bool {
		return spinning(r) && (r.Bench == workload.RTT || r.Depth == 1) && r.isVerbs()
	}
	completed := func(title string) func([]Row) string {
		return func(rows []Row) string {
			return fmt.Sprintf("%s: completed a second, medians over %s (lowest..highest)\n"+
				"cpu, syscalls and allocs are of both processes, an operation; lost is of all rounds.", title, rounds(rows))
		}
	}
	return []table{
		{func(rows []Row) string {
			return fmt.Sprintf("One at a time: medians over %s (of p50: lowest..highest)\n"+
				"udp, kernel-udp, rc-send, and rc-write whose receiver polls memory: there and back. The others: until they complete.", rounds(rows))
		}, func(r Row) bool {
			return single(r) || r.Bench == workload.RTT && (r.Transport == transport.UDP || r.Transport == transport.KernelUDP) && spinning(r) &&
				slices.ContainsFunc(s.Rows, func(o Row) bool { return single(o) && o.Size == r.Size })
		}, oneTable, [][]column[Row]{operationColumns, sizeColumn, timeColumns, effortColumns, lostColumn, quotient("/ udp", "", s.overRTT(transport.UDP)), optional(quotient("/ kernel-udp", "", s.overRTT(transport.KernelUDP)))}},
		{completed("Operations by size and by operations in flight"), func(r Row) bool {
			return r.Bench == workload.RDMA && spinning(r) && r.Depth > 1
		}, oneTable, [][]column[Row]{operationColumns, sizeColumn, depthColumn, listColumn, rateColumn, bitsColumn, effortColumns, lostColumn}},
		{func(rows []Row) string {
			return fmt.Sprintf("Processor time at the target, us an operation of %d bytes: medians over %s (lowest..highest)\n"+
				"One operation at a time, both processes block. udp and go-udp: a request and its reply. On veth the sender's system call\n"+
				"includes the kernel's receive path.", rows[0].Size, rounds(rows))
		}, func(r Row) bool {
			return r.Wait == "block" && (r.Bench == workload.RDMA || r.Bench == workload.RTT && (r.Transport == transport.UDP || r.Transport == transport.GoUDP))
		}, oneTable, [][]column[Row]{operationColumns, extremes("target us", serverCPU, 1, 2), median("both us", cpu, 1, 2), median("p50 us", p50, 1, 2),
			callsColumn, median("allocs", allocs, 1, 3), lostColumn}},
		{completed("Operations of bulk, beside a flood of full frames"), func(r Row) bool {
			return r.MTU > 0 && (r.Bench == workload.RDMA || r.Bench == workload.Bandwidth && (r.Transport == transport.Floor || r.Transport == transport.Ring))
		}, oneTable, [][]column[Row]{operationColumns, value("MTU", byMTU), sizeColumn, depthColumn, bitsColumn,
			quotient("/ flood", "", func(r Row) (float64, bool) { return s.over(r, bulk(transport.Floor, r.MTU).floor(r), gbPerS) }), effortColumns, lostColumn}},
	}
}

// over is the ratio of r's figure to that of another row.
func (s Summary) over(r Row, other Key, of func(Row) Spread) (float64, bool) {
	o, ok := s.find(other)
	if !ok {
		return 0, false
	}
	return ratio(of(r).Median, of(o).Median)
}

// overKernel is the ratio of r to the spinning kernel sockets, in the same batches and on as many hosts: of the
// kernel's round trip to r's, or of r's rate to the kernel's.
func (s Summary) overKernel(r Row) (float64, bool) {
	k := r.Key
	k.Transport, k.Attach, k.Wait = transport.KernelUDP, transport.None, "spin"
	if k.Place == plan.Crowd {
		k.Place = plan.Pair
	}
	if r.Bench == workload.Connect {
		k.Transport = transport.KernelTCP
	}
	if r.Bench == workload.RTT {
		v, ok := s.over(r, k, p50)
		return 1 / v, ok
	}
	return s.over(r, k, msgsPerS)
}

// floor is the key of what no stack can exceed where r was measured: raw AF_XDP over the same attachment, or on one host
// a bare memory path.
func (k Key) floor(r Row) Key {
	k.Transport, k.Attach, k.Place, k.Wait = transport.Floor, r.Attach, r.Place, "spin"
	if r.Place == plan.Local {
		k.Transport, k.Attach = transport.Ring, transport.None
	}
	return k
}

// overFloor is r as a fraction of the floor.
func (s Summary) overFloor(r Row) (float64, bool) {
	if r.Bench == workload.RTT {
		return s.over(r, r.floor(r), p50)
	}
	return s.over(r, r.floor(r), msgsPerS)
}

// overRTT is the ratio of an operation to a round trip of its size at its place over a transport.
func (s Summary) overRTT(name string) func(Row) (float64, bool) {
	return func(r Row) (float64, bool) {
		k := rtt(name)
		if k.Attach = cmp.Or(k.Attach, r.Attach); r.Transport != transport.RCFetchAdd {
			k.Size = r.Size
		}
		return s.over(r, k.at(r.Place), p50)
	}
}
