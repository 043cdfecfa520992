package ports

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

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/proto/tcp"
)

// portsLease grants blocks and single ports in order, and refuses ports that are claimed by number.
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

func TestPortsAreTakenFromBlocks(t *testing.T) {
	ctx := t.Context()
	l := &portsLease{}
	p := newPorts(l, anyPort(), false)
	used := map[uint16]bool{}
	take := func() uint16 {
		t.Helper()
		port, err := p.getFree(ctx)
		if err != nil || port < 32768 || used[port] {
			t.Fatalf("got port %d, %v", port, err)
		}
		used[port] = true
		return port
	}
	give := func(port uint16) {
		t.Helper()
		delete(used, port)
		p.Release(port)
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
	// Ports by number. A port outside of the blocks of the host is claimed, and this lease refuses it.
	for _, c := range []struct {
		port uint16
		own  bool
	}{{32767, false}, {32768, true}, {32768 + 2*endpoint.BlockPorts, false}} {
		port, release, err := p.Get(ctx, c.port, false)
		if (err == nil) != c.own || c.own && port != c.port {
			t.Errorf("port %d: %d, %v", c.port, port, err)
		}
		if err == nil {
			release()
		}
	}
	give(32768 + 3)
	if _, _, err := p.Get(ctx, 32768+3, true); err != nil {
		t.Errorf("a free port of a block: %v", err)
	}
	used[32768+3] = true

	// A block of which no port is used is given back, unless it is the only one.
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
	before := l.claims
	take()
	if l.claims != before {
		t.Errorf("%d claims more", l.claims-before)
	}
}

// When unetd grants no block, single ports are claimed, and given back when their last socket is
// closed. If no single port is free either, the error is EADDRNOTAVAIL.
func TestPortsWithoutBlocks(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		blocks, ports error
		want          error
		claims        int // of two requests, the first of which gets a port if there are any
	}{
		{endpoint.ErrTagDenied, nil, nil, 3},
		{endpoint.ErrTagHeld, nil, nil, 4},
		{endpoint.ErrBusy, nil, nil, 4},
		{endpoint.ErrTagDenied, endpoint.ErrTagDenied, endpoint.ErrTagDenied, 4},
		{endpoint.ErrTagHeld, endpoint.ErrTagHeld, syscall.EADDRNOTAVAIL, 4},
		{endpoint.ErrBusy, endpoint.ErrBusy, syscall.EADDRNOTAVAIL, 4},
		{endpoint.ErrLeaseClosed, nil, endpoint.ErrLeaseClosed, 2},
	} {
		l := &portsLease{blocks: c.blocks, ports: c.ports}
		p := newPorts(l, anyPort(), false)
		for range 2 {
			port, err := p.getFree(ctx)
			if !errors.Is(err, c.want) || (port != 0) != (c.want == nil) {
				t.Errorf("%v, %v: %d, %v", c.blocks, c.ports, port, err)
			}
			if c.want == syscall.EADDRNOTAVAIL && !errors.Is(err, c.ports) {
				t.Errorf("%v, %v: %v", c.blocks, c.ports, err)
			}
		}
		if l.claims != c.claims {
			t.Errorf("%v, %v: %d claims", c.blocks, c.ports, l.claims)
		}
		for _, tag := range slices.Clone(l.held) {
			p.Release(tag.Port)
		}
		if len(p.blocks) != 0 || len(p.free) != 0 || len(l.held) != 0 {
			t.Errorf("%v, %v: left %v, held %v", c.blocks, c.ports, p.free, l.held)
		}
	}
	// When the host has a port, a denied claim means that there are no more: EADDRNOTAVAIL.
	l := &portsLease{blocks: endpoint.ErrTagDenied}
	p := newPorts(l, anyPort(), false)
	if _, err := p.getFree(ctx); err != nil {
		t.Fatal(err)
	}
	l.ports = endpoint.ErrTagDenied
	if _, err := p.getFree(ctx); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("no port is left: %v", err)
	}
	// The port of a listener is not used for outgoing sockets.
	l = &portsLease{blocks: endpoint.ErrTagDenied}
	p = newPorts(l, anyPort(), false)
	if _, _, err := p.Get(ctx, 0, false); err != nil {
		t.Fatal(err)
	}
	l.ports = endpoint.ErrTagDenied
	if _, err := p.getFree(ctx); !errors.Is(err, endpoint.ErrTagDenied) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("beside a listener: %v", err)
	}
	if len(p.free) != 0 {
		t.Errorf("the port of a listener may be chosen: %v", p.free)
	}
	// Without its address the host is denied ports. When it has the address again it gets blocks.
	l = &portsLease{blocks: endpoint.ErrTagDenied, ports: endpoint.ErrTagDenied}
	p = newPorts(l, anyPort(), false)
	if _, err := p.getFree(ctx); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("without the address: %v", err)
	}
	l.blocks, l.ports = nil, nil
	if _, err := p.getFree(ctx); err != nil || !l.held[0].Block {
		t.Errorf("with the address again: %v, held %v", err, l.held)
	}
}

// While unetd does not answer, a dial that needs a new port waits until a socket is closed
// or its context ends; a dial that finds a port does not wait.
func TestPortsWhileUnetdDoesNotAnswer(t *testing.T) {
	l := &portsLease{}
	p := newPorts(l, anyPort(), false)
	var ports []uint16
	for range endpoint.BlockPorts {
		port, err := p.getFree(t.Context())
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
			if port, err := p.getFree(ended); port != 0 || !errors.Is(err, context.Canceled) {
				t.Errorf("took %d, %v", port, err)
			}
		})
	}
	cancel()
	wg.Wait()
	got := make(chan uint16)
	go func() {
		port, err := p.getFree(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- port
	}()
	p.Release(ports[5])
	if port := <-got; port != ports[5] {
		t.Errorf("took %d when %d was free", port, ports[5])
	}
	// A port that is released between the choice and the wait.
	_, seen := p.chooseFree()
	p.Release(ports[6])
	if err := p.Obtain(ended, seen); err != nil {
		t.Errorf("after a port was released: %v", err)
	}
	if port, _ := p.chooseFree(); port != ports[6] {
		t.Errorf("took %d when %d was free", port, ports[6])
	}
	if _, _, err := p.Get(t.Context(), ports[7], false); err != nil {
		t.Errorf("port %d of a block: %v", ports[7], err)
	}
	close(l.blocked)
	if port, err := p.getFree(t.Context()); err != nil || port < 32768+endpoint.BlockPorts {
		t.Errorf("took %d, %v", port, err)
	}
	if claims, _ := l.count(); claims != 2 {
		t.Errorf("%d claims, want 2, the second one for all requests that waited", claims)
	}
}

// onDone is a context that calls f when its Done is called, which is before a wait.
type onDone struct {
	context.Context
	f func()
}

func (c onDone) Done() <-chan struct{} {
	c.f()
	return c.Context.Done()
}

// A port is released and then a claim is refused, before the goroutine that waits for either runs:
// it gets the port, whichever event it sees first.
func TestPortReleasedBeforeAClaimIsRefused(t *testing.T) {
	for range 32 { // if both events have happened, select chooses at random
		l := &portsLease{}
		p := newPorts(l, anyPort(), false)
		for range endpoint.BlockPorts {
			if _, err := p.getFree(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		l.blocks, l.ports, l.blocked = endpoint.ErrTagHeld, endpoint.ErrTagHeld, make(chan struct{})
		ctx := onDone{t.Context(), func() {
			p.Release(32768 + 5)
			p.mu.Lock()
			c := p.more
			p.mu.Unlock()
			close(l.blocked)
			<-c.done
		}}
		if port, err := p.getFree(ctx); port != 32768+5 || err != nil {
			t.Fatalf("took %d, %v", port, err)
		}
	}
}

// blockGrantingLease refuses ports by number, after it has granted a block to another goroutine.
type blockGrantingLease struct {
	portsLease
	claimBlock func()
	granted    chan struct{}
}

func (l *blockGrantingLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if t.Port != 0 {
		l.claimBlock()
		<-l.granted
		return t, endpoint.ErrTagHeld
	}
	defer close(l.granted)
	return l.portsLease.Claim(ctx, t)
}

// A port is claimed by number while unetd grants the host a block with that port: the port of the
// block is used.
func TestPortOfABlockGrantedDuringItsClaim(t *testing.T) {
	l := &blockGrantingLease{granted: make(chan struct{})}
	p := newPorts(l, anyPort(), false)
	var wg sync.WaitGroup
	l.claimBlock = func() {
		wg.Go(func() {
			if _, err := p.getFree(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if port, _, err := p.Get(t.Context(), 32768+5, false); port != 32768+5 || err != nil {
		t.Errorf("got port %d, %v", port, err)
	}
	wg.Wait()
}

// Concurrent requests get different ports, with one claim for each block.
func TestConcurrentPortRequests(t *testing.T) {
	l := &portsLease{}
	p := newPorts(l, anyPort(), false)
	const requests = 10 * endpoint.BlockPorts
	var mu sync.Mutex
	seen := map[uint16]bool{}
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			port, err := p.getFree(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err != nil || port == 0 || seen[port] {
				t.Errorf("took %d, %v", port, err)
			}
			seen[port] = true
		})
	}
	wg.Wait()
	if l.claims != requests/endpoint.BlockPorts {
		t.Errorf("%d claims for %d ports", l.claims, requests)
	}
}

// The first port of a block that is used is chosen at random: each of the 64 is chosen in 2,000
// attempts.
func TestPortsAreRandom(t *testing.T) {
	seen := map[uint16]bool{}
	for range 2000 {
		port, err := newPorts(&portsLease{}, anyPort(), false).getFree(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[port] = true
	}
	if len(seen) != endpoint.BlockPorts {
		t.Errorf("%d different ports", len(seen))
	}
}

// Connections that share ports and sockets that do not share theirs are opened and closed at random.
// The ports that may be chosen are always those that are claimed and that no socket has alone, and
// blocks without users are given back.
func TestPortsAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	l := &portsLease{}
	p := newPorts(l, anyPort(), false)
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
		}
		for _, port := range alone {
			delete(want, port)
		}
		for _, port := range sharing {
			if !want[port] {
				t.Fatalf("port %d is shared and not claimed", port)
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
	choose := func(from []tcp.PortBlock) uint16 {
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
				if err := p.Obtain(t.Context(), p.Changes()); err != nil {
					t.Fatal(err)
				}
			}
			if port := p.Choose(choose); port != 0 {
				sharing = append(sharing, port)
			}
		case n < 9 && grow || n == 1:
			port := choose(p.free)
			if len(alone) > 0 && random.IntN(4) == 0 {
				port = alone[random.IntN(len(alone))] // by number: the sockets share it
			}
			if port == 0 {
				continue
			}
			_, _, err := p.Get(t.Context(), port, true)
			if (err == syscall.EADDRINUSE) != slices.Contains(sharing, port) {
				t.Fatalf("port %d: %v", port, err)
			}
			if err == nil {
				alone = append(alone, port)
			}
		case n%2 == 0 && len(alone) > 0:
			p.Release(remove(&alone))
		case len(sharing) > 0:
			p.Release(remove(&sharing))
		}
		check()
	}
	for len(sharing) > 0 {
		p.Release(remove(&sharing))
	}
	for len(alone) > 0 {
		p.Release(remove(&alone))
	}
	if len(p.blocks) > 1 {
		t.Errorf("%d blocks are left", len(p.blocks))
	}
}

// Whether a block is given back depends on the number of ports without users, not on how
// many connections share the others.
func TestEmptyBlockIsUnclaimedBesideASharedOne(t *testing.T) {
	l := &portsLease{}
	p := newPorts(l, anyPort(), false)
	choose := func(block, port int) {
		t.Helper()
		first := uint16(32768 + block*endpoint.BlockPorts)
		if got := p.Choose(func([]tcp.PortBlock) uint16 { return first + uint16(port) }); got == 0 {
			t.Fatal("no port")
		}
	}
	for range 3 {
		if err := p.Obtain(t.Context(), p.Changes()); err != nil {
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
