package report

import (
	"fmt"
	"io"
	"math"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

// bandwidth fills in the figures of bandwidth.
func (r *Record) bandwidth(c plan.Combination, out lab.Outcome) {
	s := out.Server
	r.MTU, r.N, r.Lost = c.MTU, s.N, out.Client.Sent-s.N
	r.GbPerS = rate(s.InWindow, s.Elapsed) * 8 / 1e9
	r.MsgsPerS = r.GbPerS * 1e9 / 8 / float64(c.Size)
	bytes := s.InWindow // which the readings are of, but for a flood's
	if c.Transport.Dial == nil {
		bytes = s.N
	}
	if bytes == 0 {
		return
	}
	cpu := (out.Client.CPU + s.CPU).Seconds()
	writes := float64(bytes) / float64(c.Size)
	r.CPUSPerGB, r.CPUUSPerMsg = cpu/float64(bytes)*1e9, cpu*1e6/writes
	r.AllocsPerMsg = float64(out.Client.Mallocs+s.Mallocs) / writes
}

// PrintBandwidth writes a table for each MTU.
func (s Summary) PrintBandwidth(w io.Writer) {
	var mtus []int
	tables := map[int][]Row{}
	for _, r := range s.Rows {
		if r.Bench == workload.Bandwidth {
			if tables[r.MTU] == nil {
				mtus = append(mtus, r.MTU)
			}
			tables[r.MTU] = append(tables[r.MTU], r)
		}
	}
	for _, mtu := range mtus {
		rows := tables[mtu]
		fmt.Fprintf(w, "\nBytes one way, MTU %d: Gb/s of payload by size of the writes, medians over %s\n", mtu, rounds(rows))
		fmt.Fprintln(w, "cpu is of both processes, what the kernel does in their system calls included; lost is of all rounds.")
		g := grid{left: 3}
		g.add("transport", "attach", "wait", "write", "Gb/s", "", "cpu s/GB", "syscalls", "allocs", "lost", "half at")
		var last Row
		for _, r := range rows {
			half := ""
			if r.Transport != last.Transport || r.Attach != last.Attach || r.Wait != last.Wait {
				half = halfPower(series(rows, r))
			}
			last = r
			g.add(r.Transport, r.Attach, r.Wait, fmt.Sprint(r.Size),
				fmt.Sprintf("%.2f", r.GbPerS.Median), fmt.Sprintf("(%.2f..%.2f)", r.GbPerS.Min, r.GbPerS.Max),
				fmt.Sprintf("%.2f", r.CPUPerGB.Median), perMessage(r.Syscalls), fmt.Sprintf("%.3f", r.Allocs.Median),
				fmt.Sprint(r.Lost), half)
		}
		g.print(w)
	}
	if len(mtus) > 0 {
		fmt.Fprintln(w, "syscalls and allocs are a write. Half at: the size of writes, in bytes, with which half of the transport's best is reached.")
	}
}

// series is the rows that differ from r in the size of writes only.
func series(rows []Row, r Row) (all []Row) {
	for _, o := range rows {
		k := o.Key
		if k.Size = r.Size; k == r.Key {
			all = append(all, o)
		}
	}
	return all
}

// halfPower is U-Net's n1/2, found between two sizes on logarithmic axes. Rows come by
// growing sizes.
func halfPower(rows []Row) string {
	best := 0.0
	for _, r := range rows {
		best = max(best, r.GbPerS.Median)
	}
	for i, r := range rows {
		if r.GbPerS.Median < best/2 {
			continue
		}
		switch {
		case len(rows) == 1:
			return ""
		case i == 0:
			return fmt.Sprintf("<=%d", r.Size)
		}
		low := rows[i-1]
		share := math.Log(best/2/low.GbPerS.Median) / math.Log(r.GbPerS.Median/low.GbPerS.Median)
		return fmt.Sprintf("%.0f", float64(low.Size)*math.Pow(float64(r.Size)/float64(low.Size), share))
	}
	return ""
}
