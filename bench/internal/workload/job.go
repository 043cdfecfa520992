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

// Job is the input of one process of a measurement, as one line of JSON.
type Job struct {
	Bench     Bench  `json:"bench"`
	Role      Role   `json:"role"`
	Transport string `json:"transport"`
	Attach    string `json:"attach"` // port, queue or none
	Wait      string `json:"wait"`   // spin, adaptive or block

	Size    int           `json:"size"`  // bytes of payload
	Batch   int           `json:"batch"` // messages a SendBatch; 1 uses Send
	N       int           `json:"n"`     // measured messages or round trips, at most
	WarmUp  int           `json:"warm_up"`
	Limit   time.Duration `json:"limit_ns"`   // ends the measured section (not of oneway)
	Timeout time.Duration `json:"timeout_ns"` // after which a message counts as lost

	Window int `json:"window,omitempty"` // oneway: messages sent without credit, at most
	Credit int `json:"credit,omitempty"` // oneway: messages a credit

	// Of rtt over TCP. Each Waiter is a goroutine, at each end, that waits for data on a
	// connection of its own.
	Waiters int           `json:"waiters,omitempty"`
	Procs   int           `json:"procs,omitempty"`   // GOMAXPROCS of a process that is not pinned; 0: it is pinned to one processor
	Rest    time.Duration `json:"rest_ns,omitempty"` // after the measured section the client is idle for so long

	MTU     int  `json:"mtu,omitempty"`     // bandwidth: of the network
	Checked bool `json:"checked,omitempty"` // bandwidth: the receiver compares every byte

	Depth int `json:"depth,omitempty"` // rdma: operations in flight

	Connections int  `json:"connections,omitempty"` // connect: at a time
	Own         bool `json:"own,omitempty"`         // connect: the client owns an address, where it has an endpoint

	Local, Remote Address
	Socket        string `json:"socket,omitempty"` // of this host's unetd
}

// Address is one side as each kind of transport sees it.
type Address struct {
	UDP      netip.AddrPort `json:"udp"`
	LinkAddr wire.LinkAddr  `json:"link_addr"`
	Tag      uint32         `json:"tag"` // U-Net message tag
	// Own is an address that the side may own; the zero value: none.
	Own netip.Addr `json:"own,omitzero"`
}

// Check reports a job that cannot be done.
func (j Job) Check() error {
	switch {
	case j.Bench == Bandwidth && (j.Size < 1 || j.Limit <= 0):
		return fmt.Errorf("writes of %d bytes for %v: want more than 0", j.Size, j.Limit)
	case j.Bench == RDMA && (j.Size < 1 || j.Depth < 1 || j.Batch > j.Depth || j.Limit <= 0):
		return fmt.Errorf("operations of %d bytes, %d in flight, posted %d at a time: want more than 0, and a list within the depth", j.Size, j.Depth, j.Batch)
	case j.Size < MinSize && j.Bench != Bandwidth && j.Bench != RDMA:
		return fmt.Errorf("messages of %d bytes: want at least %d", j.Size, MinSize)
	case j.N < 1 || j.Batch < 1 || j.Timeout <= 0:
		return fmt.Errorf("job without messages, batch or timeout: %+v", j)
	case j.Bench == Connect && j.Connections < 1:
		return fmt.Errorf("%d connections at a time: want at least 1", j.Connections)
	case j.Bench == OneWay && (j.Credit < 1 || j.Window < j.Credit || j.Window < j.Batch):
		return fmt.Errorf("credit window of %d messages, credit every %d, batches of %d: want credit and batch within the window",
			j.Window, j.Credit, j.Batch)
	}
	return nil
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
