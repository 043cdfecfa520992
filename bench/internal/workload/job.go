package workload

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/unet-go/unet/wire"
)

// Bench is the name of a benchmark.
type Bench string

const (
	RTT       Bench = "rtt"
	Rate      Bench = "rate"
	OneWay    Bench = "oneway"
	Connect   Bench = "connect"
	Open      Bench = "open"      // endpoints that are opened through unetd, one after the other
	Bandwidth Bench = "bandwidth" // bytes over one connection
	RDMA      Bench = "rdma"      // operations of package verbs
)

// Role is the side of a process.
type Role string

const (
	Client Role = "client"
	Server Role = "server"
)

// Case is what all rounds of a measurement have in common.
type Case struct {
	Bench     Bench  `json:"bench"`
	Transport string `json:"transport"`
	Attach    string `json:"attach"`            // port, queue or none
	Place     string `json:"place"`             // pair, crowd or local
	Wait      string `json:"wait"`              // spin, adaptive or block
	Size      int    `json:"size"`              // bytes of payload
	Batch     int    `json:"batch"`             // messages a SendBatch; 1 uses Send
	MTU       int    `json:"mtu,omitempty"`     // bandwidth and rdma: of the network; 0: 1500
	Depth     int    `json:"depth,omitempty"`   // rdma: operations in flight
	Waiters   int    `json:"waiters,omitempty"` // rtt over TCP: goroutines at each end that wait for data on connections of their own
	Procs     int    `json:"procs,omitempty"`   // rtt: GOMAXPROCS of processes that are not pinned; 0: each is pinned to one processor
}

// Places of client and server.
const (
	Pair  = "pair"  // on two hosts
	Crowd = "crowd" // on two hosts with many other endpoints
	Local = "local" // both on one host: two endpoints of one mux, or kernel sockets over lo
)

// Addresses that the client's endpoint of connect can have.
const (
	Own    = "own"    // one of its own, with all ports
	Shared = "shared" // the interface's, with ports from blocks
)

// None is the attachment of a transport that has no endpoint.
const None = "none"

func (c Case) String() string {
	s := fmt.Sprintf("%s %s", c.Bench, c.Transport)
	if c.Attach != None {
		s += fmt.Sprintf(" %s %s", c.Attach, c.Wait)
	}
	s += fmt.Sprintf(" %d B", c.Size)
	if c.Depth > 0 {
		s += fmt.Sprintf(" depth %d", c.Depth)
	}
	if c.MTU > 0 {
		s += fmt.Sprintf(" MTU %d", c.MTU)
	} else if c.Batch > 1 {
		s += fmt.Sprintf(" x%d", c.Batch)
	}
	if c.Place != Pair {
		s += " " + c.Place
	}
	if c.Waiters > 0 || c.Procs > 0 {
		s += fmt.Sprintf(", %d waiting, GOMAXPROCS %d", c.Waiters, c.Procs)
	}
	return s
}

// Effort is how long and with how much a case is measured.
type Effort struct {
	N       int           `json:"n"` // measured messages or round trips, at most
	WarmUp  int           `json:"warm_up"`
	Limit   time.Duration `json:"limit_ns"`   // ends the measured section (not of oneway)
	Timeout time.Duration `json:"timeout_ns"` // after which a message counts as lost

	Window      int           `json:"window,omitempty"`      // oneway: messages sent without credit, at most
	Credit      int           `json:"credit,omitempty"`      // oneway: messages a credit
	Rest        time.Duration `json:"rest_ns,omitempty"`     // rtt: after the measured section the client is idle for so long
	Connections int           `json:"connections,omitempty"` // connect: at a time
	Address     string        `json:"address,omitempty"`     // connect: what the client's endpoint has, Own or Shared
	Checked     bool          `json:"checked,omitempty"`     // bandwidth: the receiver compares every byte
}

// Job is the input of one process of a measurement, as one line of JSON.
type Job struct {
	Case
	Effort
	Role          Role `json:"role"`
	Local, Remote Address
	Socket        string `json:"socket,omitempty"` // of this host's unetd
}

// Address is one side as each kind of transport sees it.
type Address struct {
	UDP      netip.AddrPort `json:"udp"`
	LinkAddr wire.LinkAddr  `json:"link_addr"`
	Tag      uint32         `json:"tag"` // U-Net message tag
	// Own is the address that the side's endpoint owns. It is the zero value if the endpoint shares the
	// interface's.
	Own netip.Addr `json:"own,omitzero"`
}

// Report is what one process measured.
type Report struct {
	N          int           `json:"n"`                    // rtt: round trips; connect: connections; bandwidth: bytes received; else messages received (server)
	Sent       int           `json:"sent,omitempty"`       // rate and oneway, client; bandwidth: bytes
	Lost       int           `json:"lost,omitempty"`       // rtt and connect, client: not done in time
	Failed     int           `json:"failed,omitempty"`     // connect: ended with an error
	Failure    string        `json:"failure,omitempty"`    // connect: the first error
	Duplicates int           `json:"duplicates,omitempty"` // received more than once
	Stalls     int           `json:"stalls,omitempty"`     // oneway, client: credits that did not come in time
	Elapsed    time.Duration `json:"elapsed_ns,omitempty"` // rate: the server's window; else of the client
	InWindow   int           `json:"in_window,omitempty"`  // rate: messages received in Elapsed; bandwidth: bytes
	Latency    Latency       `json:"latency,omitzero"`     // rtt and connect, client

	RestCPU time.Duration `json:"rest_cpu_ns,omitempty"` // user and system time of the client in Job.Rest
	CPU     time.Duration `json:"cpu_ns"`                // user and system time in the measured section
	Mallocs uint64        `json:"mallocs"`               // heap objects allocated in the measured section
}

// Latency is the exact distribution of round trips, or of connect the times of its cycles.
type Latency struct {
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
}

// Reporter takes what a process has measured.
type Reporter func(Report) error

// meter reads the processor time and the allocations of this process.
type meter struct {
	cpu     time.Duration
	mallocs uint64
}

// start takes the baseline. The allocation count is read first, so that
// reading it is not measured.
func (m *meter) start() error {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m.mallocs = ms.Mallocs
	cpu, err := cpuTime()
	m.cpu = cpu
	return err
}

// stop writes what was used since start into r.
func (m *meter) stop(r *Report) error {
	cpu, err := cpuTime()
	if err != nil {
		return err
	}
	r.CPU = cpu - m.cpu
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	r.Mallocs = ms.Mallocs - m.mallocs
	return nil
}

// cpuTime is the user and system time of this process.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

var epoch = time.Now()

// clock is the monotonic clock: one vDSO call, without the wall clock.
func clock() time.Duration { return time.Since(epoch) }

// Summarize sorts samples and describes them exactly, by nearest rank.
func Summarize(samples []time.Duration) Latency {
	if len(samples) == 0 {
		return Latency{}
	}
	slices.Sort(samples)
	var sum time.Duration
	for _, s := range samples {
		sum += s
	}
	return Latency{
		Mean: sum / time.Duration(len(samples)),
		P50:  nearestRank(samples, 500),
		P99:  nearestRank(samples, 990),
		P999: nearestRank(samples, 999),
	}
}

// nearestRank is the smallest sample that at least permille thousandths of all
// samples do not exceed.
func nearestRank(sorted []time.Duration, permille int) time.Duration {
	rank := (len(sorted)*permille + 999) / 1000
	return sorted[max(rank, 1)-1]
}
