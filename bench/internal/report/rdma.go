package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// isVerbs reports whether a row is of package verbs.
func (r Row) isVerbs() bool {
	return r.Bench == workload.RDMA || slices.ContainsFunc(transport.Verbs, func(t transport.Transport) bool { return t.Name == r.Transport })
}

// oneAtATime: the row has latencies.
func (r Row) oneAtATime() bool { return r.Bench == workload.RTT || r.Verbs.Depth*r.Verbs.Clients == 1 }

// PrintOperations writes the tables of rdma, of what was measured.
func (s Summary) PrintOperations(w io.Writer) {
	spinning := func(r Row) bool { return r.Wait == "spin" && r.MTU == 0 }
	rdma := func(r Row) bool { return r.Bench == workload.RDMA && spinning(r) && r.Verbs.Options == "" }
	hasRDMA := slices.ContainsFunc(s.Rows, func(r Row) bool { return r.Bench == workload.RDMA })
	if !hasRDMA {
		return
	}
	single := func(r Row) bool { return spinning(r) && r.oneAtATime() && r.Verbs.Options == "" && r.isVerbs() }
	s.printLatencies(w, s.rows(func(r Row) bool {
		return single(r) || r.Bench == workload.RTT && r.Transport == transport.UDP && spinning(r) &&
			slices.ContainsFunc(s.Rows, func(o Row) bool { return single(o) && o.Size == r.Size })
	}))
	s.printRates(w, "Operations by size and by operations in flight", s.rows(func(r Row) bool {
		return rdma(r) && r.Verbs.Clients == 1 && r.Verbs.Depth > 1 && r.Transport != transport.UDSend && r.Transport != transport.RCFetchAdd
	}), rateColumns)
	s.printOptions(w, s.rows(func(r Row) bool { return r.Verbs.Options != "" && r.isVerbs() }))
	tickets := s.rows(func(r Row) bool {
		return rdma(r) && (r.Transport == transport.RCFetchAdd || r.Transport == transport.UDSend)
	})
	if slices.ContainsFunc(tickets, func(r Row) bool { return r.Transport == transport.UDSend }) {
		s.printRates(w, "Sequencer: tickets, by clients with one request each", tickets, sequencerColumns)
	}
	s.printTarget(w, s.rows(func(r Row) bool {
		return r.Wait == "block" && (r.Bench == workload.RDMA || r.Bench == workload.RTT && (r.Transport == transport.UDP || r.Transport == transport.GoUDP))
	}))
	s.printRates(w, "Operations of bulk, beside a flood of full frames", s.rows(func(r Row) bool {
		return r.MTU > 0 && (r.Bench == workload.RDMA || r.Bench == workload.Bandwidth && r.Transport == transport.Floor)
	}), bulkColumns)
}

func (s Summary) rows(which func(Row) bool) (rows []Row) {
	for _, r := range s.Rows {
		if which(r) {
			rows = append(rows, r)
		}
	}
	return rows
}

// column is a column of a table of operations.
type column struct {
	head string
	cell func(s Summary, r Row) string
}

func (r Row) spread(f func(Row) Spread, scale float64, digits int) string {
	v := f(r)
	return fmt.Sprintf("%.*f (%.*f..%.*f)", digits, v.Median*scale, digits, v.Min*scale, digits, v.Max*scale)
}

var (
	columnName   = column{"operation", func(_ Summary, r Row) string { return r.Transport }}
	columnAttach = column{"attach", func(_ Summary, r Row) string { return r.Attach }}
	columnSize   = column{"bytes", func(_ Summary, r Row) string { return fmt.Sprint(r.Size) }}
	columnDepth  = column{"in flight", func(_ Summary, r Row) string { return fmt.Sprint(max(r.Verbs.Depth, r.Batch)) }}
	columnList   = column{"list", func(_ Summary, r Row) string { return fmt.Sprint(r.Batch) }}
	columnRate   = column{"M op/s", func(_ Summary, r Row) string { return r.spread(msgsPerS, 1e-6, 3) }}
	columnBits   = column{"Gb/s", func(_ Summary, r Row) string { return r.spread(gbPerS, 1, 2) }}
	columnCPU    = column{"cpu us", func(_ Summary, r Row) string { return fmt.Sprintf("%.2f", r.CPU.Median) }}
	columnCalls  = column{"syscalls", func(_ Summary, r Row) string { return perMessage(r.Syscalls) }}
	columnAllocs = column{"allocs", func(_ Summary, r Row) string { return fmt.Sprintf("%.3f", r.Allocs.Median) }}
	columnLost   = column{"lost", func(_ Summary, r Row) string { return fmt.Sprint(r.Lost) }}

	rateColumns      = []column{columnName, columnAttach, columnSize, columnDepth, columnList, columnRate, columnBits, columnCPU, columnCalls, columnAllocs, columnLost}
	sequencerColumns = []column{columnName, columnAttach,
		{"clients", func(_ Summary, r Row) string { return fmt.Sprint(r.Verbs.Clients) }}, columnRate,
		{"mean us", func(_ Summary, r Row) string { return bare(ratio(float64(r.Verbs.Clients)*1e6, r.MsgsPerS.Median)) }},
		columnCPU, columnCalls, columnAllocs, columnLost}
	bulkColumns = []column{columnName, columnAttach,
		{"MTU", func(_ Summary, r Row) string { return fmt.Sprint(r.MTU) }}, columnSize, columnDepth, columnBits,
		{"/ flood", func(s Summary, r Row) string {
			flood, ok := s.find(bulk(transport.Floor, r.MTU).attached(r.Attach))
			if !ok {
				return "-"
			}
			return bare(ratio(r.GbPerS.Median, flood.GbPerS.Median))
		}}, columnCPU, columnCalls, columnAllocs, columnLost}
)

func (s Summary) printRates(w io.Writer, title string, rows []Row, columns []column) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s: completed a second, medians over %s (lowest..highest)\n", title, rounds(rows))
	fmt.Fprintln(w, "cpu, syscalls and allocs are of both processes, an operation; lost is of all rounds.")
	s.printColumns(w, rows, columns)
}

func (s Summary) printColumns(w io.Writer, rows []Row, columns []column) {
	g := grid{left: 2}
	var heads []string
	for _, c := range columns {
		heads = append(heads, c.head)
	}
	g.add(heads...)
	for _, r := range rows {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.cell(s, r))
		}
		g.add(cells...)
	}
	g.addCounts(rows)
	g.print(w)
}

// printLatencies writes the table of round trips and of operations one at a time.
func (s Summary) printLatencies(w io.Writer, rows []Row) {
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return a.Size - b.Size })
	fmt.Fprintf(w, "\nOne at a time: medians over %s (of p50: lowest..highest)\n", rounds(rows))
	fmt.Fprintln(w, "udp, rc-send, and rc-write whose receiver polls memory: there and back. The others: until they complete.")
	micros := func(of func(Row) Spread) func(Summary, Row) string {
		return func(_ Summary, r Row) string { return fmt.Sprintf("%.2f", of(r).Median) }
	}
	s.printColumns(w, rows, []column{columnName, columnAttach, columnSize,
		{"p50 us", func(_ Summary, r Row) string { return r.spread(p50, 1, 2) }},
		{"mean us", micros(mean)}, {"p99 us", micros(func(r Row) Spread { return r.P99 })}, {"p99.9 us", micros(func(r Row) Spread { return r.P999 })},
		columnCPU, columnCalls, columnAllocs, columnLost,
		{"/ udp", func(s Summary, r Row) string {
			k := message(workload.RTT, transport.UDP).attached(r.Attach)
			if k.Size = r.Size; r.Transport == transport.RCFetchAdd || r.Transport == transport.UDSend {
				k.Size = goalSize
			}
			udp, ok := s.find(k)
			if !ok {
				return "-"
			}
			return bare(ratio(r.P50.Median, udp.P50.Median))
		}},
	})
}

// printOptions writes the table of optimizations.
func (s Summary) printOptions(w io.Writer, rows []Row) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\nOptimizations, %d bytes: medians over %s (lowest..highest)\n", rows[0].Size, rounds(rows))
	fmt.Fprintln(w, "A list is how many work requests are posted together. The gain is over the first row of the same operation: of a rate, or of a round trip.")
	s.printColumns(w, rows, []column{columnName, columnAttach,
		{"optimizations", func(_ Summary, r Row) string { return r.Verbs.Options }}, columnList,
		{"in flight", func(_ Summary, r Row) string { return fmt.Sprint(max(r.Verbs.Depth, 1)) }},
		{"M op/s, or us there and back", func(_ Summary, r Row) string {
			if r.Bench == workload.RTT {
				return r.spread(p50, 1, 2) + " us"
			}
			return r.spread(msgsPerS, 1e-6, 3)
		}},
		{"gain", func(_ Summary, r Row) string {
			i := slices.IndexFunc(rows, func(o Row) bool {
				return o.Bench == r.Bench && o.Transport == r.Transport && o.Attach == r.Attach
			})
			if r.Bench == workload.RTT {
				return times(ratio(rows[i].P50.Median, r.P50.Median))
			}
			return times(ratio(r.MsgsPerS.Median, rows[i].MsgsPerS.Median))
		}},
		columnCPU, columnCalls, columnAllocs,
	})
}

// printTarget writes the table of processor time at the server.
func (s Summary) printTarget(w io.Writer, rows []Row) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\nProcessor time at the target, us an operation of %d bytes: medians over %s (lowest..highest)\n", rows[0].Size, rounds(rows))
	fmt.Fprintln(w, "One operation at a time, both processes block. udp and go-udp: a request and its reply. On veth the sender's system call")
	fmt.Fprintln(w, "includes the kernel's receive path.")
	s.printColumns(w, rows, []column{columnName, columnAttach,
		{"target us", func(_ Summary, r Row) string { return r.spread(func(r Row) Spread { return r.ServerCPU }, 1, 2) }},
		{"both us", func(_ Summary, r Row) string { return fmt.Sprintf("%.2f", r.CPU.Median) }},
		{"p50 us", func(_ Summary, r Row) string { return fmt.Sprintf("%.2f", r.P50.Median) }},
		columnCalls, columnAllocs, columnLost,
	})
}
