package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Record is one round of one combination, and one line of JSON. Figures that a benchmark
// does not have are null, or missing if they come after allocs_per_msg.
//
// A message of rtt is a round trip, one message out and one back. A message of connect is
// a connection, from dialling to its end.
type Record struct {
	workload.Case
	Round int `json:"round"` // from 1
	N     int `json:"n"`     // round trips, connections or operations completed; bytes (bandwidth) or different messages received
	Lost  int `json:"lost"`

	MeanUS *float64 `json:"mean_us"` // of a round trip, a connection, an operation or an opening; the next three too
	P50US  *float64 `json:"p50_us"`
	P99US  *float64 `json:"p99_us"`
	P999US *float64 `json:"p999_us"`

	MsgsPerS float64 `json:"msgs_per_s"`
	// Processor time of both processes, user and system. On veth the sender's system call
	// includes the kernel's receive path.
	CPUUSPerMsg    float64  `json:"cpu_us_per_msg"`
	SyscallsPerMsg *float64 `json:"syscalls_per_msg"` // both processes, from the counting pass; null: not counted
	AllocsPerMsg   float64  `json:"allocs_per_msg"`   // heap objects, both processes
	// Processor time of the server's process.
	ServerCPUUSPerMsg float64 `json:"server_cpu_us_per_msg,omitempty"`

	Duplicates   *int `json:"duplicates,omitempty"`
	CreditWindow int  `json:"credit_window,omitempty"` // messages; oneway
	CreditEvery  int  `json:"credit_every,omitempty"`  // messages; oneway
	Stalls       *int `json:"stalls,omitempty"`        // oneway: credits that did not come in time

	Connections  int    `json:"connections,omitempty"`   // connect: at a time
	Failed       *int   `json:"failed,omitempty"`        // connect: ended with an error at the client
	ServerFailed *int   `json:"server_failed,omitempty"` // connect: ended with an error at the server
	Failure      string `json:"failure,omitempty"`       // connect: the first error

	GbPerS    float64 `json:"gb_per_s,omitempty"`     // bandwidth and rdma: 10^9 bits of payload received a second
	CPUSPerGB float64 `json:"cpu_s_per_gb,omitempty"` // bandwidth: of both processes, for 10^9 bytes. A message of bandwidth is a write.

	IdlePercent *float64 `json:"idle_percent,omitempty"` // rtt: percent of a processor that the idle client takes; nil if it was not idle
}

// NewRecord makes the record of one round. syscalls is nil if they were not
// counted.
func NewRecord(c workload.Case, e workload.Effort, round int, out lab.Outcome, syscalls *float64) Record {
	r := Record{Case: c, Round: round, SyscallsPerMsg: syscalls, N: out.Client.N, Lost: out.Client.Lost, MsgsPerS: rate(out.Client.N, out.Client.Elapsed)}
	if l := out.Client.Latency; l.P50 > 0 {
		r.MeanUS, r.P50US, r.P99US, r.P999US = us(l.Mean), us(l.P50), us(l.P99), us(l.P999)
	}
	if e.Rest > 0 {
		idle := 100 * float64(out.Client.RestCPU) / float64(e.Rest)
		r.IdlePercent = &idle
	}
	switch c.Bench {
	case workload.Connect:
		r.Connections, r.Failed, r.ServerFailed = e.Connections, &out.Client.Failed, &out.Server.Failed
		if r.Failure = out.Client.Failure; r.Failure == "" && out.Server.Failure != "" {
			r.Failure = "server: " + out.Server.Failure
		}
	case workload.RDMA:
		r.GbPerS = r.MsgsPerS * float64(c.Size) * 8 / 1e9
	case workload.Bandwidth:
		r.N, r.Lost = out.Server.N, out.Client.Sent-out.Server.N
		r.GbPerS = rate(out.Server.InWindow, out.Server.Elapsed) * 8 / 1e9
		r.MsgsPerS = r.GbPerS * 1e9 / 8 / float64(r.Size)
	case workload.Rate, workload.OneWay:
		r.N, r.Lost, r.Duplicates = out.Server.N, out.Client.Sent-out.Server.N, &out.Server.Duplicates
		if r.MsgsPerS = rate(out.Server.InWindow, out.Server.Elapsed); c.Bench == workload.OneWay {
			r.MsgsPerS = rate(r.N, out.Client.Elapsed)
			r.CreditWindow, r.CreditEvery, r.Stalls = e.Window, e.Credit, &out.Client.Stalls
		}
	}
	r.CPUUSPerMsg = PerMessage(float64(out.Client.CPU+out.Server.CPU)/1e3, c, out)
	r.ServerCPUUSPerMsg = PerMessage(float64(out.Server.CPU)/1e3, c, out)
	r.AllocsPerMsg = PerMessage(float64(out.Client.Mallocs+out.Server.Mallocs), c, out)
	if c.Bench == workload.Bandwidth {
		r.CPUSPerGB = r.CPUUSPerMsg * 1e3 / float64(c.Size)
	}
	return r
}

// PerMessage divides by the messages that arrived while processor time, allocations and system calls were counted.
func PerMessage(total float64, c workload.Case, out lab.Outcome) float64 {
	n := float64(out.Server.N)
	switch c.Bench {
	case workload.RTT, workload.Connect, workload.RDMA:
		n = float64(out.Client.N)
	case workload.Bandwidth:
		if c.Batch == 1 { // else a flood, which is counted to its end
			n = float64(out.Client.InWindow) // of the server a short run may have none
		}
		n /= float64(c.Size)
	}
	if n == 0 {
		return 0
	}
	return total / n
}

// NewOpening is the record of endpoints that were opened through unetd, one after the other, with the default
// geometry and one tag.
func NewOpening(place string, took []time.Duration) Record {
	l := workload.Summarize(took)
	return Record{Case: opening(place), Round: 1, N: len(took), MeanUS: us(l.Mean), P50US: us(l.P50), P99US: us(l.P99), P999US: us(l.P999)}
}

func rate(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func us(d time.Duration) *float64 {
	v := float64(d) / 1e3
	return &v
}

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
	_, err := io.WriteString(w, "Unit msgs/s better=higher\nUnit conns/s better=higher\nUnit B/s better=higher\nUnit requests/s better=higher\nUnit fairness better=higher\n")
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
	if r.Bench == workload.Open {
		return fmt.Sprintf("Open/transport=%s/attach=%s/place=%s", r.Transport, r.Attach, r.Place), r.N, r.latencies()
	}
	name := fmt.Sprintf("%s/transport=%s/attach=%s/wait=%s/size=%d", benchmarkNames[r.Bench], r.Transport, r.Attach, r.Wait, r.Size)
	switch r.Bench {
	case workload.Rate, workload.OneWay:
		name += fmt.Sprintf("/batch=%d", r.Batch)
	case workload.Bandwidth:
		name += fmt.Sprintf("/mtu=%d", r.MTU)
	case workload.Connect:
		name += fmt.Sprintf("/connections=%d", r.Connections)
	}
	if r.Place != workload.Pair {
		name += "/place=" + r.Place
	}
	if r.Bench == workload.RDMA {
		name += fmt.Sprintf("/batch=%d/depth=%d/mtu=%d", r.Batch, r.Depth, r.MTU)
	}
	if r.Waiters > 0 || r.Procs > 0 {
		name += fmt.Sprintf("/waiters=%d/procs=%d", r.Waiters, r.Procs)
	}
	if r.Bench == workload.Bandwidth {
		return name, r.N / r.Size, []figure{{r.GbPerS * 1e9 / 8, "B/s"}, {r.CPUSPerGB, "cpu-ns/B"}, {float64(r.Lost), "lost-B"}}
	}
	all := r.latencies()
	switch r.Bench {
	case workload.Rate, workload.OneWay, workload.RDMA:
		all = append(all, figure{r.MsgsPerS, "msgs/s"})
	case workload.Connect:
		all = append(all, figure{r.MsgsPerS, "conns/s"})
	}
	all = append(all, figure{r.CPUUSPerMsg * 1e3, "cpu-ns/op"}, figure{r.AllocsPerMsg, "allocs/op"})
	if r.SyscallsPerMsg != nil {
		all = append(all, figure{*r.SyscallsPerMsg, "syscalls/op"})
	}
	if r.IdlePercent != nil {
		all = append(all, figure{*r.IdlePercent, "idle-%"})
	}
	return name, r.N, append(all, figure{float64(r.Lost), "lost"})
}

func (r Record) latencies() (all []figure) {
	if r.P50US == nil {
		return nil
	}
	return []figure{{*r.MeanUS * 1e3, "ns/op"}, {*r.P50US * 1e3, "p50-ns/op"}, {*r.P99US * 1e3, "p99-ns/op"}}
}

var benchmarkNames = map[workload.Bench]string{
	workload.RTT: "RTT", workload.Rate: "Rate", workload.OneWay: "OneWay", workload.Connect: "Connect", workload.Bandwidth: "Bandwidth",
	workload.RDMA: "RDMA",
}
