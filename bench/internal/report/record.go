package report

import (
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

	Duplicates   *int `json:"duplicates,omitempty"`
	CreditWindow int  `json:"credit_window,omitempty"` // messages; oneway
	CreditEvery  int  `json:"credit_every,omitempty"`  // messages; oneway
	Stalls       *int `json:"stalls,omitempty"`        // oneway: credits that did not come in time

	Connections  int    `json:"connections,omitempty"`   // connect: at a time
	Failed       *int   `json:"failed,omitempty"`        // connect: ended with an error at the client
	ServerFailed *int   `json:"server_failed,omitempty"` // connect: ended with an error at the server
	Failure      string `json:"failure,omitempty"`       // connect: the first error

	MTU       int     `json:"mtu,omitempty"`          // bandwidth: of the network; n and lost are bytes then, and a message is a write
	GbPerS    float64 `json:"gb_per_s,omitempty"`     // bandwidth: 10^9 bits of payload received a second
	CPUSPerGB float64 `json:"cpu_s_per_gb,omitempty"` // bandwidth: of both processes, for 10^9 bytes
}

// NewRecord makes the record of one round. syscalls is nil if they were not
// counted.
func NewRecord(c plan.Combination, j workload.Job, round int, out lab.Outcome, syscalls *float64) Record {
	r := Record{
		Bench: c.Bench, Transport: c.Transport.Name, Attach: c.Attach, Place: c.Place, Wait: c.Wait,
		Size: c.Size, Batch: c.Batch, Round: round,
		SyscallsPerMsg: syscalls,
	}
	switch c.Bench {
	case workload.RTT, workload.Connect:
		r.N, r.Lost = out.Client.N, out.Client.Lost
		r.MsgsPerS = rate(r.N, out.Client.Elapsed)
		l := out.Client.Latency
		r.MeanUS, r.P50US, r.P99US, r.P999US = us(l.Mean), us(l.P50), us(l.P99), us(l.P999)
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
	r.AllocsPerMsg = PerMessage(float64(out.Client.Mallocs+out.Server.Mallocs), out, c.Bench)
	return r
}

// PerMessage divides by the messages that arrived.
func PerMessage(total float64, out lab.Outcome, b workload.Bench) float64 {
	n := out.Server.N
	if b == workload.RTT || b == workload.Connect {
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
