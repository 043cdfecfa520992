package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Record is one round of one combination, and one line of JSON. Figures that a benchmark
// does not have are null, or missing if they come after allocs_per_msg.
//
// A message of rtt is a round trip, one message out and one back. A message of connect is
// a connection, from dialling to its end.
type Record struct {
	Bench     workload.Bench `json:"bench"`
	Transport string         `json:"transport"`
	Attach    string         `json:"attach"` // port, queue, or none
	Place     string         `json:"place"`  // pair, crowd or local
	Wait      string         `json:"wait"`
	Size      int            `json:"size"`  // bytes of payload
	Batch     int            `json:"batch"` // messages sent together
	Round     int            `json:"round"` // from 1
	N         int            `json:"n"`     // round trips or connections completed, or different messages received
	Lost      int            `json:"lost"`

	MeanUS *float64 `json:"mean_us"` // round-trip time, or of connect the time of one connection; the next three too
	P50US  *float64 `json:"p50_us"`
	P99US  *float64 `json:"p99_us"`
	P999US *float64 `json:"p999_us"`

	MsgsPerS float64 `json:"msgs_per_s"`
	// Processor time of both processes, user and system. On veth the sender's system call
	// includes the kernel's receive path.
	CPUUSPerMsg    float64  `json:"cpu_us_per_msg"`
	SyscallsPerMsg *float64 `json:"syscalls_per_msg"` // both processes, from the counting pass; null: not counted
	AllocsPerMsg   float64  `json:"allocs_per_msg"`   // heap objects, both processes
	// Processor time of the server's process; missing in bandwidth.
	ServerCPUUSPerMsg float64 `json:"server_cpu_us_per_msg,omitempty"`

	Duplicates   *int `json:"duplicates,omitempty"`
	CreditWindow int  `json:"credit_window,omitempty"` // messages; oneway
	CreditEvery  int  `json:"credit_every,omitempty"`  // messages; oneway
	Stalls       *int `json:"stalls,omitempty"`        // oneway: credits that did not come in time

	Connections  int    `json:"connections,omitempty"`   // connect: at a time
	Failed       *int   `json:"failed,omitempty"`        // connect: ended with an error at the client
	ServerFailed *int   `json:"server_failed,omitempty"` // connect: ended with an error at the server
	Failure      string `json:"failure,omitempty"`       // connect: the first error

	MTU       int     `json:"mtu,omitempty"`          // bandwidth and rdma: of the network; of bandwidth n and lost are bytes, and a message is a write
	GbPerS    float64 `json:"gb_per_s,omitempty"`     // bandwidth and rdma: 10^9 bits of payload received a second
	CPUSPerGB float64 `json:"cpu_s_per_gb,omitempty"` // bandwidth: of both processes, for 10^9 bytes

	Depth int `json:"depth,omitempty"` // rdma: operations in flight. A message of rdma is an operation; n counts completions.

	// Of rtt beside goroutines that wait.
	Waiters     int      `json:"waiters,omitempty"`      // goroutines that wait at each end, not counting the measured one
	Procs       int      `json:"procs,omitempty"`        // GOMAXPROCS. 0 pins each process to one processor
	IdlePercent *float64 `json:"idle_percent,omitempty"` // percent of a processor that the idle client takes; nil if it was not idle
}

// NewRecord makes the record of one round. syscalls is nil if they were not
// counted.
func NewRecord(c plan.Combination, j workload.Job, round int, out lab.Outcome, syscalls *float64) Record {
	r := Record{
		Bench: c.Bench, Transport: c.Transport.Name, Attach: c.Attach, Place: c.Place, Wait: c.Wait,
		Size: c.Size, Batch: c.Batch, Round: round,
		SyscallsPerMsg: syscalls, Depth: c.Depth,
	}
	switch c.Bench {
	case workload.RTT, workload.Connect:
		r.N, r.Lost = out.Client.N, out.Client.Lost
		r.MsgsPerS = rate(r.N, out.Client.Elapsed)
		l := out.Client.Latency
		r.MeanUS, r.P50US, r.P99US, r.P999US = us(l.Mean), us(l.P50), us(l.P99), us(l.P999)
		r.Waiters, r.Procs = c.Waiters, c.Procs
		if j.Rest > 0 {
			idle := 100 * float64(out.Client.RestCPU) / float64(j.Rest)
			r.IdlePercent = &idle
		}
		if c.Bench == workload.Connect {
			failed, serverFailed := out.Client.Failed, out.Server.Failed
			r.Connections, r.Failed, r.ServerFailed = j.Connections, &failed, &serverFailed
			if r.Failure = out.Client.Failure; r.Failure == "" && out.Server.Failure != "" {
				r.Failure = "server: " + out.Server.Failure
			}
		}
	case workload.Bandwidth:
		r.bandwidth(c, out)
		return r
	case workload.RDMA:
		r.MTU, r.N, r.Lost = c.MTU, out.Client.N, out.Client.Lost
		r.MsgsPerS = rate(r.N, out.Client.Elapsed)
		r.GbPerS = r.MsgsPerS * float64(c.Size) * 8 / 1e9
		if l := out.Client.Latency; l.P50 > 0 {
			r.MeanUS, r.P50US, r.P99US, r.P999US = us(l.Mean), us(l.P50), us(l.P99), us(l.P999)
		}
	default:
		duplicates := out.Server.Duplicates
		r.N, r.Lost, r.Duplicates = out.Server.N, out.Client.Sent-out.Server.N, &duplicates
		if c.Bench == workload.Rate {
			r.MsgsPerS = rate(out.Server.InWindow, out.Server.Elapsed)
		} else {
			stalls := out.Client.Stalls
			r.MsgsPerS = rate(r.N, out.Client.Elapsed)
			r.CreditWindow, r.CreditEvery, r.Stalls = j.Window, j.Credit, &stalls
		}
	}
	r.CPUUSPerMsg = PerMessage(float64(out.Client.CPU+out.Server.CPU)/1e3, out, c.Bench)
	r.ServerCPUUSPerMsg = PerMessage(float64(out.Server.CPU)/1e3, out, c.Bench)
	r.AllocsPerMsg = PerMessage(float64(out.Client.Mallocs+out.Server.Mallocs), out, c.Bench)
	return r
}

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

// PerMessage divides by the messages that arrived.
func PerMessage(total float64, out lab.Outcome, b workload.Bench) float64 {
	n := out.Server.N
	if b == workload.RTT || b == workload.Connect || b == workload.RDMA {
		n = out.Client.N
	}
	if n == 0 {
		return 0
	}
	return total / float64(n)
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
	if r.Bench == workload.RDMA {
		name += fmt.Sprintf("/batch=%d/depth=%d/mtu=%d", r.Batch, r.Depth, r.MTU)
	}
	if r.Waiters > 0 || r.Procs > 0 {
		name += fmt.Sprintf("/waiters=%d/procs=%d", r.Waiters, r.Procs)
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

var benchmarkNames = map[workload.Bench]string{
	workload.RTT: "RTT", workload.Rate: "Rate", workload.OneWay: "OneWay", workload.Connect: "Connect", workload.Bandwidth: "Bandwidth",
	workload.RDMA: "RDMA",
}

func (o Opening) benchmark() (string, int, []figure) {
	return fmt.Sprintf("Open/others=%d", o.Others), o.N, []figure{{o.MedianMS * 1e6, "p50-ns/op"}, {o.MaxMS * 1e6, "max-ns/op"}}
}
