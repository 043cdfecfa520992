package unet

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/proto/tcp"
)

// portsLease gives blocks and ports away, one after another, and nothing else.
type portsLease struct {
	endpoint.Lease
	mu            sync.Mutex
	blocks, ports error // why a block, or a single port, is refused
	claims        int
	held          []endpoint.Tag
	nextBlock     uint16
	nextPort      uint16
	blocked       chan struct{} // if set, a claim waits for it
}

func (l *portsLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if l.blocked != nil {
		select {
		case <-l.blocked:
		case <-ctx.Done():
			return t, context.Cause(ctx)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims++
	switch {
	case t.Port != 0:
		return t, fmt.Errorf("%v is not any port", t)
	case t.Block && l.blocks != nil:
		return t, l.blocks
	case t.Block:
		t.Port = 32768 + l.nextBlock
		l.nextBlock += endpoint.BlockPorts
	case l.ports != nil:
		return t, l.ports
	default:
		t.Port = 50000 + l.nextPort
		l.nextPort++
	}
	l.held = append(l.held, t)
	return t, nil
}

func (l *portsLease) Unclaim(_ context.Context, t endpoint.Tag) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.held, t)
	if i < 0 {
		return fmt.Errorf("%v is not held", t)
	}
	l.held = slices.Delete(l.held, i, i+1)
	return nil
}

func (l *portsLease) count() (claims, held int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claims, len(l.held)
}

func anyPort() endpoint.Tag { return endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:0")) }

func TestPortsOfBlocks(t *testing.T) {
	ctx := t.Context()
	l := &portsLease{}
	p := newPorts(l, anyPort())
	used := map[uint16]bool{}
	take := func() uint16 {
		t.Helper()
		port, err := p.take(ctx)
		if err != nil || port < 32768 || used[port] {
			t.Fatalf("took %d, %v", port, err)
		}
		used[port] = true
		return port
	}
	give := func(port uint16) {
		t.Helper()
		delete(used, port)
		if block, idle := p.give(port); idle {
			if err := l.Unclaim(ctx, block); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range endpoint.BlockPorts {
		if port := take(); port >= 32768+endpoint.BlockPorts {
			t.Fatalf("port %d is in no block", port)
		}
	}
	if l.claims != 1 {
		t.Errorf("%d claims for one block", l.claims)
	}
	give(32768 + 17)
	if port := take(); port != 32768+17 || l.claims != 1 {
		t.Errorf("took %d of one free port, with %d claims", port, l.claims)
	}
	for range 10 {
		take()
	}
	if l.claims != 2 {
		t.Errorf("%d claims for two blocks", l.claims)
	}
	// By number.
	for _, c := range []struct {
		port      uint16
		own, free bool
	}{{32767, false, false}, {32768, true, false}, {32768 + 2*endpoint.BlockPorts, false, false}} {
		if own, free := p.takeThis(c.port); own != c.own || free != c.free {
			t.Errorf("port %d: own %v, free %v", c.port, own, free)
		}
	}
	give(32768 + 3)
	if own, free := p.takeThis(32768 + 3); !own || !free {
		t.Errorf("a free port: own %v, free %v", own, free)
	}
	used[32768+3] = true

	// A block that nobody needs is given back, the last one is not.
	for port := range uint16(endpoint.BlockPorts) {
		give(32768 + port)
	}
	if len(l.held) != 1 || l.held[0].Port != 32768+endpoint.BlockPorts {
		t.Errorf("held: %v", l.held)
	}
	for port := range used {
		give(port)
	}
	if len(l.held) != 1 {
		t.Errorf("held in the end: %v", l.held)
	}
	take()
	if l.claims != 2 {
		t.Errorf("%d claims", l.claims)
	}
}

// Where no block is to be had single ports are claimed, and given back when their last
// socket has gone. The true end is EADDRNOTAVAIL.
func TestPortsWithoutBlocks(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		blocks, ports error
		want          error
		claims        int // by two takes, the first of which gets a port if there are any
	}{
		{endpoint.ErrTagDenied, nil, nil, 3},
		{endpoint.ErrTagHeld, nil, nil, 4},
		{control.ErrBusy, nil, nil, 4},
		{endpoint.ErrTagDenied, endpoint.ErrTagDenied, endpoint.ErrTagDenied, 4},
		{endpoint.ErrTagHeld, endpoint.ErrTagHeld, syscall.EADDRNOTAVAIL, 4},
		{control.ErrBusy, control.ErrBusy, syscall.EADDRNOTAVAIL, 4},
		{endpoint.ErrLeaseClosed, nil, endpoint.ErrLeaseClosed, 2},
	} {
		l := &portsLease{blocks: c.blocks, ports: c.ports}
		p := newPorts(l, anyPort())
		for range 2 {
			port, err := p.take(ctx)
			if !errors.Is(err, c.want) || (port != 0) != (c.want == nil) {
				t.Errorf("%v, %v: %d, %v", c.blocks, c.ports, port, err)
			}
			if c.want == syscall.EADDRNOTAVAIL && (errors.Is(new(Host).openError(ctx, "bind", err), syscall.EADDRINUSE) || !errors.Is(err, c.ports)) {
				t.Errorf("%v, %v: %v", c.blocks, c.ports, err)
			}
		}
		if l.claims != c.claims {
			t.Errorf("%v, %v: %d claims", c.blocks, c.ports, l.claims)
		}
		for _, tag := range slices.Clone(l.held) {
			if got, idle := p.give(tag.Port); got != tag || !idle {
				t.Errorf("%v given back: %v, %v", tag, got, idle)
			}
		}
		if len(p.blocks) != 0 || len(p.free) != 0 {
			t.Errorf("%v, %v: left %v", c.blocks, c.ports, p.free)
		}
	}
	// What is denied now that there are ports is only their end.
	l := &portsLease{blocks: endpoint.ErrTagDenied}
	p := newPorts(l, anyPort())
	if _, err := p.take(ctx); err != nil {
		t.Fatal(err)
	}
	l.ports = endpoint.ErrTagDenied
	if _, err := p.take(ctx); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("the end: %v", err)
	}
	// While the host has lost its address, ports are denied, too. Then there are blocks again.
	l = &portsLease{blocks: endpoint.ErrTagDenied, ports: endpoint.ErrTagDenied}
	p = newPorts(l, anyPort())
	if _, err := p.take(ctx); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("without the address: %v", err)
	}
	l.blocks, l.ports = nil, nil
	if _, err := p.take(ctx); err != nil || !l.held[0].Block {
		t.Errorf("with the address again: %v, held %v", err, l.held)
	}
}

// unetd is away: who needs a port waits until a socket is closed, as long as they like,
// and who needs none does not wait.
func TestPortsWhileNobodyAnswers(t *testing.T) {
	l := &portsLease{}
	p := newPorts(l, anyPort())
	var ports []uint16
	for range endpoint.BlockPorts {
		port, err := p.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	l.blocked = make(chan struct{})
	ended, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if port, err := p.take(ended); port != 0 || !errors.Is(err, context.Canceled) {
				t.Errorf("took %d, %v", port, err)
			}
		})
	}
	cancel()
	wg.Wait()
	got := make(chan uint16)
	go func() {
		port, err := p.take(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- port
	}()
	p.give(ports[5])
	if port := <-got; port != ports[5] {
		t.Errorf("took %d when %d was free", port, ports[5])
	}
	// One that is given back after a look, and before the wait.
	_, seen := p.takeFree()
	p.give(ports[6])
	if err := p.more(ended, seen); err != nil {
		t.Errorf("a port has been given back: %v", err)
	}
	if port, _ := p.takeFree(); port != ports[6] {
		t.Errorf("took %d when %d was free", port, ports[6])
	}
	if own, free := p.takeThis(ports[7]); !own || free {
		t.Errorf("port %d: %v, %v", ports[7], own, free)
	}
	close(l.blocked)
	if port, err := p.take(t.Context()); err != nil || port < 32768+endpoint.BlockPorts {
		t.Errorf("took %d, %v", port, err)
	}
	if claims, _ := l.count(); claims != 2 {
		t.Errorf("%d claims, one of which everybody waited for", claims)
	}
}

// onDone is a context that calls f when somebody is about to wait for it.
type onDone struct {
	context.Context
	f func()
}

func (c onDone) Done() <-chan struct{} {
	c.f()
	return c.Context.Done()
}

// A port is given back and then a claim is refused, before who waits for either has
// looked: the port counts, whichever is noticed.
func TestPortsGivenBackBeforeARefusal(t *testing.T) {
	for range 32 { // the runtime notices either
		l := &portsLease{}
		p := newPorts(l, anyPort())
		for range endpoint.BlockPorts {
			if _, err := p.take(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		l.blocks, l.ports, l.blocked = endpoint.ErrTagHeld, endpoint.ErrTagHeld, make(chan struct{})
		ctx := onDone{t.Context(), func() {
			p.give(32768 + 5)
			p.mu.Lock()
			c := p.claim
			p.mu.Unlock()
			close(l.blocked)
			<-c.done
		}}
		if port, err := p.take(ctx); port != 32768+5 || err != nil {
			t.Fatalf("took %d, %v", port, err)
		}
	}
}

func TestPortsAtOnce(t *testing.T) {
	l := &portsLease{}
	p := newPorts(l, anyPort())
	const takers = 10 * endpoint.BlockPorts
	var mu sync.Mutex
	seen := map[uint16]bool{}
	var wg sync.WaitGroup
	for range takers {
		wg.Go(func() {
			port, err := p.take(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err != nil || port == 0 || seen[port] {
				t.Errorf("took %d, %v", port, err)
			}
			seen[port] = true
		})
	}
	wg.Wait()
	if l.claims != takers/endpoint.BlockPorts {
		t.Errorf("%d claims for %d ports", l.claims, takers)
	}
}

// Which port is next nobody can tell.
func TestPortsAreRandom(t *testing.T) {
	seen := map[uint16]bool{}
	for range 2000 {
		port, err := newPorts(&portsLease{}, anyPort()).take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[port] = true
	}
	if len(seen) != endpoint.BlockPorts {
		t.Errorf("%d different ports", len(seen))
	}
}

// In any order of connections that share ports, sockets that have one alone, and blocks
// and single ports that are claimed and given back, what may be chosen is what is
// claimed and nobody's alone; and what has been left is given back.
func TestPortsAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	l := &portsLease{}
	p := newPorts(l, anyPort())
	var sharing, alone []uint16
	remove := func(list *[]uint16) uint16 {
		i := random.IntN(len(*list))
		port := (*list)[i]
		*list = slices.Delete(*list, i, i+1)
		return port
	}
	check := func() {
		want := map[uint16]bool{} // what may be chosen
		for _, tag := range l.held {
			for port := int(tag.Port); port <= int(tag.LastPort()); port++ {
				want[uint16(port)] = true
			}
		}
		for _, port := range alone {
			if !want[port] {
				t.Fatalf("port %d is in use and not claimed", port)
			}
			delete(want, port)
		}
		for _, port := range sharing {
			if !want[port] {
				t.Fatalf("port %d is shared and not claimed, or somebody's alone", port)
			}
		}
		n := 0
		for i, b := range p.free {
			n += bits.OnesCount64(b.Ports)
			if p.blocks[b.First].at != i {
				t.Fatalf("block %d is not at %d", b.First, i)
			}
			for i := range uint16(endpoint.BlockPorts) {
				if b.Ports>>i&1 == 1 && !want[b.First+i] {
					t.Fatalf("port %d may be chosen", b.First+i)
				}
			}
		}
		if n != len(want) {
			t.Fatalf("%d ports may be chosen, want %d", n, len(want))
		}
	}
	unclaim := func(tag endpoint.Tag, idle bool) {
		if idle {
			if err := l.Unclaim(t.Context(), tag); err != nil {
				t.Fatal(err)
			}
		}
	}
	any := func(from []tcp.PortBlock) uint16 {
		for _, i := range random.Perm(len(from)) {
			if from[i].Ports != 0 {
				return from[i].First + uint16(bits.TrailingZeros64(from[i].Ports))
			}
		}
		return 0
	}
	for i := range 20000 {
		if i%4000 == 0 {
			l.blocks = []error{nil, endpoint.ErrTagHeld}[i/4000%2]
		}
		grow, n := i%2000 < 1000, random.IntN(10)
		switch {
		case n < 6 && grow || n == 0:
			if random.IntN(100) == 0 || len(p.free) == 0 {
				if err := p.more(t.Context(), p.count()); err != nil {
					t.Fatal(err)
				}
			}
			if port := p.Choose(any); port != 0 {
				sharing = append(sharing, port)
			}
		case n < 9 && grow || n == 1:
			port := any(p.free)
			if port == 0 {
				continue
			}
			own, free := p.takeThis(port)
			if !own || free == slices.Contains(sharing, port) {
				t.Fatalf("port %d: %v, %v", port, own, free)
			}
			if free {
				alone = append(alone, port)
			}
		case n%2 == 0 && len(alone) > 0:
			unclaim(p.give(remove(&alone)))
		case len(sharing) > 0:
			// As Release, which leaves the request to others.
			port := remove(&sharing)
			p.mu.Lock()
			tag, idle := p.release(port)
			p.mu.Unlock()
			unclaim(tag, idle)
		}
		check()
	}
	for len(sharing) > 0 {
		p.Release(remove(&sharing))
	}
	for len(alone) > 0 {
		p.give(remove(&alone))
	}
	if len(p.blocks) > 1 {
		t.Errorf("%d blocks are left", len(p.blocks))
	}
}

// What decides whether a block is given back are the ports that nobody uses, not how
// many connections share the others.
func TestBlocksBesideASharedOne(t *testing.T) {
	l := &portsLease{}
	p := newPorts(l, anyPort())
	choose := func(block, port int) {
		t.Helper()
		first := uint16(32768 + block*endpoint.BlockPorts)
		if got := p.Choose(func([]tcp.PortBlock) uint16 { return first + uint16(port) }); got == 0 {
			t.Fatal("no port")
		}
	}
	for range 3 {
		if err := p.more(t.Context(), p.count()); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // destinations
		for i := range endpoint.BlockPorts {
			choose(0, i)
		}
	}
	choose(1, 0)
	choose(2, 0)
	p.Release(32768 + endpoint.BlockPorts) // the third block has 63 ports left
	if held := l.held; len(held) != 2 || held[1].Port != 32768+2*endpoint.BlockPorts {
		t.Errorf("held with an empty block: %v", held)
	}
	p.Release(32768 + 2*endpoint.BlockPorts) // the first has none
	if held := l.held; len(held) != 2 {
		t.Errorf("held in the end: %v", held)
	}
}
