// Package plan turns the command line into the combinations to measure, and their order.
//
// A round measures every combination once. Rounds are interleaved, so that changes of the
// machine (its clock, its temperature, its other work) affect all transports alike. Within
// each round the order is shuffled, so that none always follows the same other one.
package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/endpoint"
)

// Bounds of what can be asked for.
const (
	MaxSize  = 1472    // bytes: one UDP datagram at an MTU of 1500
	MaxBatch = 256     // messages
	MaxWrite = 4 << 20 // bytes; bandwidth

	MaxConnections = 256 // connections at a time
	// MaxConnects bounds the connections of one round. Each leaves a pair of ports
	// in TIME-WAIT, and the kernel has 28,232 for one destination.
	MaxConnects = 20_000
)

// MTUs of the network that bandwidth can ask for.
const (
	minMTU = 576
	maxMTU = 9000
)

// FloodBatch is how many frames a flood hands over at once.
const FloodBatch = 64

// RateBatch is how many messages rate sends together; it also sends one at a time.
const RateBatch = 32

// Operations in flight of rdma, and the size in bytes of its operations that move bulk.
const (
	RDMADepth      = 128
	RDMAWrite      = 64 << 10
	RDMAWriteDepth = 16
)

// Places of client and server.
const (
	Pair  = "pair"  // on two hosts
	Crowd = "crowd" // on two hosts with many other endpoints
	Local = "local" // both on one host: two endpoints of one mux, or kernel sockets over lo
)

// Addresses that the client's host of connect can have.
const (
	Own    = "own"    // one of its own, with all ports
	Shared = "shared" // the interface's, with ports from blocks
)

// Combination is one thing to measure.
type Combination struct {
	Bench     workload.Bench
	Transport transport.Transport
	Attach    string // port, queue or none
	Place     string // pair, crowd or local
	Wait      string // spin, adaptive or block
	Size      int    // bytes of payload
	Batch     int    // messages
	MTU       int    // bandwidth, and rdma if it is given: of the network; else 0: 1500
	Depth     int    // rdma: operations in flight
	Waiters   int    // rtt: goroutines that wait on other connections, at each end
	Procs     int    // rtt: GOMAXPROCS; 0: each process is pinned to a processor
}

func (c Combination) String() string {
	s := fmt.Sprintf("%s %s", c.Bench, c.Transport.Name)
	if c.Transport.Granted {
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

// Selection is what to combine, and how long to measure.
type Selection struct {
	Bench      workload.Bench
	Transports []string
	Named      bool // each of Transports was asked for: an error if one has nothing to measure
	Attach     []string
	Places     []string
	Wait       []string
	Sizes      []int // bytes
	Batches    []int // messages
	MTUs       []int // bandwidth and rdma; else empty
	Depths     []int // rdma: operations in flight

	Rounds  int
	Every   int           // measure in one of so many rounds; 0: in each
	N       int           // messages or round trips a round
	WarmUp  int           // messages before them
	Limit   time.Duration // of a round's measured section; 0: none
	Timeout time.Duration // after which a message counts as lost
	Window  int           // oneway: messages without credit
	Credit  int           // oneway: messages a credit

	Waiters []int         // rtt: of Combination; empty: 0
	Procs   []int         // rtt: of Combination; empty: 0
	Rest    time.Duration // rtt: how long the client is idle afterwards, to read its processor time

	Connections int    // connect: connections at a time
	Address     string // connect: what the client's host has, Own or Shared
}

// Combinations checks the selection and combines it. A transport without an
// endpoint appears once for all attachments, one that waits in one way
// once for all wait modes, and one without batches once for all batches.
func (s Selection) Combinations() ([]Combination, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	var all []Combination
	for _, mtu := range orZero(s.MTUs) {
		for _, name := range s.Transports {
			t, err := transport.ByName(s.Bench, name)
			if err != nil {
				return nil, err
			}
			of, err := s.of(t, mtu)
			if err != nil {
				return nil, err
			}
			if len(of) == 0 && s.Named {
				return nil, fmt.Errorf("transport %s is not measured with --place %s and --attach %s", name, strings.Join(s.Places, ","), strings.Join(s.Attach, ","))
			}
			for _, c := range of {
				if !slices.ContainsFunc(all, c.same) { // asked for twice
					all = append(all, c)
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing to measure with --place %s and --attach %s", strings.Join(s.Places, ","), strings.Join(s.Attach, ","))
	}
	return all, nil
}

// of are the combinations of a transport.
func (s Selection) of(t transport.Transport, mtu int) (all []Combination, err error) {
	if s.Bench == workload.Connect && t.Dial == nil {
		return nil, fmt.Errorf("transport %s does not open and close connections: %s do", t.Name, strings.Join(transport.Connecting(), ", "))
	}
	attach, places, wait, batches, sizes := []string{transport.None}, placesOf(t, s.Places), t.Waits, []int{1}, s.Sizes
	if t.Granted {
		attach = s.Attach
	}
	if len(t.Waits) > 1 {
		wait = s.Wait
	}
	if t.Batches {
		batches = s.Batches
	}
	switch {
	case s.Bench == workload.Bandwidth && t.Dial == nil: // a flood has one size, that of full frames
		sizes, batches = []int{transport.FloodPayload(mtu)}, []int{FloodBatch}
	case s.Bench == workload.RDMA && t.Name == transport.RCFetchAdd:
		sizes = []int{8}
	}
	for _, size := range sizes {
		for _, v := range orZero(s.Depths) {
			for _, w := range orZero(s.Waiters) {
				for _, p := range orZero(s.Procs) {
					if w > 0 && !t.Waiters {
						return nil, fmt.Errorf("--waiters %d: transport %s has no goroutines that wait on other connections", w, t.Name)
					}
					all = append(all, product(Combination{Bench: s.Bench, Transport: t, Size: size, MTU: mtu, Depth: v, Waiters: w, Procs: p}, attach, places, wait, batches)...)
				}
			}
		}
	}
	if s.Bench == workload.RDMA {
		for i, c := range all {
			all[i].Batch = min(c.Batch, c.Depth)
		}
	}
	return all, nil
}

// placesOf are the places at which a transport is measured, of those that are asked for.
// Other endpoints do not concern one without an endpoint: a crowd is a pair to it.
func placesOf(t transport.Transport, asked []string) (all []string) {
	for _, p := range asked {
		if p == Crowd && !t.Granted {
			p = Pair
		}
		has := t.Network != transport.OneHost
		if p == Local {
			// Others are about the interface: without its offloads, with the mux, with another stack.
			has = t.Granted || t.Network == transport.Plain || t.Network == transport.OneHost
		}
		if has && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

func orZero(all []int) []int {
	if len(all) == 0 {
		return []int{0}
	}
	return all
}

// product is every combination of the given values that can be measured.
func product(c Combination, attach, places, wait []string, batches []int) (all []Combination) {
	for _, c.Attach = range attach {
		for _, c.Place = range places {
			if c.Place == Local && c.Attach == endpoint.AttachQueue.String() {
				continue // a queue is reached by the wire only
			}
			for _, c.Wait = range wait {
				for _, c.Batch = range batches {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

func (c Combination) same(d Combination) bool {
	return c.Bench == d.Bench && c.Transport.Name == d.Transport.Name && c.Attach == d.Attach && c.Place == d.Place && c.Wait == d.Wait &&
		c.Size == d.Size && c.Batch == d.Batch && c.MTU == d.MTU && c.Depth == d.Depth && c.Waiters == d.Waiters && c.Procs == d.Procs
}

// check reports the flag that is wrong.
func (s Selection) check() error {
	for flag, n := range map[string]int{
		"--transport": len(s.Transports), "--attach": len(s.Attach), "--place": len(s.Places), "--wait": len(s.Wait),
		"--size": len(s.Sizes), "--batch": len(s.Batches),
	} {
		if n == 0 {
			return fmt.Errorf("%s is empty", flag)
		}
	}
	for _, a := range s.Attach {
		if _, err := endpoint.ParseAttachment(a); err != nil {
			return err
		}
	}
	for _, p := range s.Places {
		if p != Pair && p != Crowd && p != Local {
			return fmt.Errorf("place %q: want %s, %s or %s", p, Pair, Crowd, Local)
		}
	}
	for _, w := range s.Wait {
		if _, err := endpoint.ParseWaitMode(w); err != nil {
			return err
		}
	}
	small, large, most, connections := workload.MinSize, MaxSize, maxN, []int(nil)
	switch s.Bench {
	case workload.Bandwidth, workload.RDMA:
		small, large = 1, MaxWrite
	case workload.Connect:
		most, connections = MaxConnects-s.WarmUp, []int{s.Connections} // each takes a port
	}
	for _, f := range []struct {
		flag            string
		all             []int
		lowest, highest int
	}{
		{"--size", s.Sizes, small, large}, {"--batch", s.Batches, 1, MaxBatch}, {"--waiters", s.Waiters, 0, MaxConnects},
		{"--procs", s.Procs, 0, math.MaxInt32}, {"--mtu", s.MTUs, minMTU, maxMTU}, {"--rounds", []int{s.Rounds}, 1, math.MaxInt32},
		{"--warm-up", []int{s.WarmUp}, 0, maxN}, {"--n", []int{s.N}, 1, most}, {"--connections", connections, 1, MaxConnections},
	} {
		for _, n := range f.all {
			if n < f.lowest || n > f.highest {
				return fmt.Errorf("%s %d: want %d to %d", f.flag, n, f.lowest, f.highest)
			}
		}
	}
	switch {
	case s.Bench == workload.Bandwidth && len(s.MTUs) == 0:
		return fmt.Errorf("--mtu is empty")
	case s.Rest < 0:
		return fmt.Errorf("--idle %v: want 0 or more", s.Rest)
	case s.Limit < 0 || s.Limit == 0 && s.Bench != workload.OneWay:
		return fmt.Errorf("--limit %v: want more than 0", s.Limit)
	case s.Bench == workload.Connect && s.Address != Own && s.Address != Shared:
		return fmt.Errorf("--address %q: want %s or %s", s.Address, Own, Shared)
	case s.Bench == workload.OneWay && (s.Credit < 1 || s.Window < s.Credit || s.Window < slices.Max(s.Batches)):
		return fmt.Errorf("--window %d: want at least a batch and a credit (%d), which is at least 1", s.Window, s.Credit)
	}
	return nil
}

// maxN bounds the memory of the receiver's sequence numbers and of the client's samples to
// some hundred megabytes.
const maxN = 20_000_000

// Job is the job of one combination.
func (s Selection) Job(c Combination) workload.Job {
	j := workload.Job{
		Bench: s.Bench, Attach: c.Attach, Wait: c.Wait, Size: c.Size, Batch: c.Batch,
		N: s.N, WarmUp: s.WarmUp, Limit: s.Limit, Timeout: s.Timeout,
		Window: s.Window, Credit: s.Credit, Connections: s.Connections, Own: s.Address == Own,
		MTU: c.MTU, Depth: c.Depth, Waiters: c.Waiters, Procs: c.Procs,
	}
	if c.Wait != "spin" { // who spins is never idle
		j.Rest = s.Rest
	}
	return j
}

// CountingJob is the short job in which the system calls of a combination are
// counted.
func (s Selection) CountingJob(c Combination) workload.Job {
	j := s.Job(c)
	if j.Rest = 0; j.Bench == workload.Bandwidth {
		j.Checked, j.Limit = true, min(j.Limit, 50*time.Millisecond)
	}
	if j.WarmUp = min(j.WarmUp, 1_000); j.Bench == workload.Connect {
		j.N = min(j.N, 500)
		return j
	}
	j.N = min(j.N, 20_000)
	if j.Limit > 0 {
		j.Limit = min(j.Limit, 100*time.Millisecond)
	}
	return j
}

// Order is the order of a round: a permutation of n that depends on the seed
// and the round only.
func Order(n int, seed uint64, round int) []int {
	return rand.New(rand.NewPCG(seed, uint64(round))).Perm(n)
}
