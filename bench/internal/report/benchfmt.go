package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Line is one measurement of a run: a line of JSON, or of Go's benchmark format.
type Line interface {
	// benchmark is the name of the measurement, the number of its operations (0: nothing
	// was received, there are no figures), and its figures.
	benchmark() (name string, n int, figures []figure)
}

// figure is a value with its unit, as the benchmark format has them.
type figure struct {
	value float64
	unit  string
}

// WriteUnits writes the header of the benchmark format: which figures are better if they
// are higher. benchstat takes all others to be better if they are lower.
func WriteUnits(w io.Writer) error {
	_, err := io.WriteString(w, "Unit msgs/s better=higher\nUnit conns/s better=higher\nUnit B/s better=higher\n")
	return err
}

// WriteBenchmark writes a line in the format that benchstat reads
// (https://go.dev/design/14313-benchmark-format). Nothing is written of a measurement in
// which nothing was received.
func WriteBenchmark(w io.Writer, l Line) error {
	name, n, figures := l.benchmark()
	if n == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Benchmark%s %d", strings.ReplaceAll(name, " ", ""), n)
	for _, f := range figures {
		fmt.Fprintf(&b, " %.6g %s", f.value, f.unit)
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

func (r Record) benchmark() (string, int, []figure) {
	name := fmt.Sprintf("%s/transport=%s/attach=%s/wait=%s/size=%d", benchmarkNames[r.Bench], r.Transport, r.Attach, r.Wait, r.Size)
	switch r.Bench {
	case workload.Rate, workload.OneWay:
		name += fmt.Sprintf("/batch=%d", r.Batch)
	case workload.Bandwidth:
		name += fmt.Sprintf("/mtu=%d", r.MTU)
	case workload.Connect:
		name += fmt.Sprintf("/connections=%d", r.Connections)
	}
	if r.Place != plan.Pair {
		name += "/place=" + r.Place
	}
	if r.Bench == workload.Bandwidth {
		return name, r.N / r.Size, []figure{{r.GbPerS * 1e9 / 8, "B/s"}, {r.CPUSPerGB, "cpu-ns/B"}, {float64(r.Lost), "lost-B"}}
	}
	var all []figure
	for _, l := range []struct {
		us   *float64
		unit string
	}{{r.MeanUS, "ns/op"}, {r.P50US, "p50-ns/op"}, {r.P99US, "p99-ns/op"}} {
		if l.us != nil {
			all = append(all, figure{*l.us * 1e3, l.unit})
		}
	}
	switch r.Bench {
	case workload.Rate, workload.OneWay:
		all = append(all, figure{r.MsgsPerS, "msgs/s"})
	case workload.Connect:
		all = append(all, figure{r.MsgsPerS, "conns/s"})
	}
	all = append(all, figure{r.CPUUSPerMsg * 1e3, "cpu-ns/op"}, figure{r.AllocsPerMsg, "allocs/op"})
	if r.SyscallsPerMsg != nil {
		all = append(all, figure{*r.SyscallsPerMsg, "syscalls/op"})
	}
	return name, r.N, append(all, figure{float64(r.Lost), "lost"})
}

var benchmarkNames = map[workload.Bench]string{
	workload.RTT: "RTT", workload.Rate: "Rate", workload.OneWay: "OneWay", workload.Connect: "Connect", workload.Bandwidth: "Bandwidth",
}

func (m Memory) benchmark() (string, int, []figure) {
	return fmt.Sprintf("Memory/transport=%s/attach=%s", m.Transport, m.Attach), 1,
		[]figure{{float64(m.With), "resident-B"}, {float64(m.Without), "bare-resident-B"}}
}

func (i Idle) benchmark() (string, int, []figure) {
	return fmt.Sprintf("IdleConnection/transport=%s/attach=%s", i.Transport, i.Attach), i.N,
		[]figure{{i.Client, "client-B/conn"}, {i.Server, "server-B/conn"}}
}

func (o Opening) benchmark() (string, int, []figure) {
	return fmt.Sprintf("Open/others=%d", o.Others), o.N, []figure{{o.MedianMS * 1e6, "p50-ns/op"}, {o.MaxMS * 1e6, "max-ns/op"}}
}

func (f Flow) benchmark() (string, int, []figure) {
	name := fmt.Sprintf("Goodput/link=%s/from=%s/to=%s/attach=%s/wait=%s", f.Link, f.From, f.To, f.Attach, f.Wait)
	all := []figure{{f.MbitPerS * 1e6 / 8, "B/s"}, {float64(f.Retransmitted), "retransmitted-B"}, {f.RTTMS * 1e6, "rtt-ns"}, {f.CPUMSPerMB, "cpu-ns/B"}}
	if f.Bench == workload.Share {
		name = strings.Replace(name, "Goodput", "Share", 1) + "/beside=" + f.Beside
		all = append(all, figure{f.Share, "share"})
	}
	return name, int(min(f.Bytes, 1)), all
}
