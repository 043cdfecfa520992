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

	MaxDepth = 4096 // operations in flight

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
	Waiters    []int // rtt; empty: 0
	Procs      []int // rtt; empty: 0
	Rounds     int
	workload.Effort
}

// Cases checks the selection and combines it. A transport without an endpoint appears once for all
// attachments, one that waits in one way once for all wait modes, and one without batches once for all
// batches.
func (s Selection) Cases() (all []workload.Case, err error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	where := fmt.Sprintf("with --place %s and --attach %s", strings.Join(s.Places, ","), strings.Join(s.Attach, ","))
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
				return nil, fmt.Errorf("transport %s is not measured %s", name, where)
			}
			for _, c := range of {
				if !slices.Contains(all, c) { // asked for twice
					all = append(all, c)
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing to measure %s", where)
	}
	return all, nil
}

// of are the cases of a transport.
func (s Selection) of(t transport.Transport, mtu int) ([]workload.Case, error) {
	if s.Bench == workload.Connect && t.Dial == nil {
		return nil, fmt.Errorf("transport %s does not open and close connections: %s do", t.Name, strings.Join(transport.Connecting(), ", "))
	}
	if slices.Max(orZero(s.Waiters)) > 0 && !t.Waiters {
		return nil, fmt.Errorf("--waiters: transport %s has no goroutines that wait on other connections", t.Name)
	}
	attach, wait, batches, sizes := []string{workload.None}, t.Waits, []int{1}, s.Sizes
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
	all := []workload.Case{{Bench: s.Bench, Transport: t.Name, MTU: mtu}}
	all = each(all, sizes, func(c *workload.Case, v int) { c.Size = v })
	all = each(all, orZero(s.Depths), func(c *workload.Case, v int) { c.Depth = v })
	all = each(all, orZero(s.Waiters), func(c *workload.Case, v int) { c.Waiters = v })
	all = each(all, orZero(s.Procs), func(c *workload.Case, v int) { c.Procs = v })
	all = each(all, attach, func(c *workload.Case, v string) { c.Attach = v })
	all = each(all, placesOf(t, s.Places), func(c *workload.Case, v string) { c.Place = v })
	all = each(all, wait, func(c *workload.Case, v string) { c.Wait = v })
	all = each(all, batches, func(c *workload.Case, v int) {
		if c.Batch = v; s.Bench == workload.RDMA {
			c.Batch = min(v, c.Depth)
		}
	})
	return slices.DeleteFunc(all, func(c workload.Case) bool { // a queue is reached by the wire only
		return c.Place == workload.Local && c.Attach == endpoint.AttachQueue.String()
	}), nil
}

// each is every case with every value.
func each[V any](cases []workload.Case, values []V, set func(*workload.Case, V)) (all []workload.Case) {
	for _, c := range cases {
		for _, v := range values {
			set(&c, v)
			all = append(all, c)
		}
	}
	return all
}

// placesOf are the places at which a transport is measured, of those that are asked for.
// Other endpoints do not concern one without an endpoint: a crowd is a pair to it.
func placesOf(t transport.Transport, asked []string) (all []string) {
	for _, p := range asked {
		if p == workload.Crowd && !t.Granted {
			p = workload.Pair
		}
		has := t.Network != transport.OneHost
		if p == workload.Local {
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
		if p != workload.Pair && p != workload.Crowd && p != workload.Local {
			return fmt.Errorf("place %q: want %s, %s or %s", p, workload.Pair, workload.Crowd, workload.Local)
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
		{"--procs", s.Procs, 0, math.MaxInt32}, {"--mtu", s.MTUs, minMTU, maxMTU}, {"--depth", s.Depths, 1, MaxDepth}, {"--rounds", []int{s.Rounds}, 1, math.MaxInt32},
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
	case s.Bench == workload.Connect && s.Address != workload.Own && s.Address != workload.Shared:
		return fmt.Errorf("--address %q: want %s or %s", s.Address, workload.Own, workload.Shared)
	case s.Bench == workload.OneWay && (s.Credit < 1 || s.Window < s.Credit || s.Window < slices.Max(s.Batches)):
		return fmt.Errorf("--window %d: want at least a batch and a credit (%d), which is at least 1", s.Window, s.Credit)
	}
	return nil
}

// maxN bounds the memory of the receiver's sequence numbers and of the client's samples to
// some hundred megabytes.
const maxN = 20_000_000

// EffortOf is the effort of a case.
func (s Selection) EffortOf(c workload.Case) workload.Effort {
	e := s.Effort
	if c.Wait == "spin" { // who spins is never idle
		e.Rest = 0
	}
	return e
}

// Counting is the short effort with which the system calls of the selection are counted.
func (s Selection) Counting() workload.Effort {
	e := s.Effort
	e.Rest, e.WarmUp = 0, min(e.WarmUp, 1_000)
	switch s.Bench {
	case workload.Connect:
		e.N = min(e.N, 500)
	case workload.Bandwidth:
		e.Checked, e.Limit = true, min(e.Limit, 50*time.Millisecond)
	default:
		e.N, e.Limit = min(e.N, 20_000), min(e.Limit, 100*time.Millisecond)
	}
	return e
}

// Order is the order of a round: a permutation of n that depends on the seed
// and the round only.
func Order(n int, seed uint64, round int) []int {
	return rand.New(rand.NewPCG(seed, uint64(round))).Perm(n)
}
