package unet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// blocksLease gives blocks away, one after another, and nothing else.
type blocksLease struct {
	endpoint.Lease
	mu      sync.Mutex
	refuse  error
	claims  int
	held    []endpoint.Tag
	next    uint16
	blocked chan struct{} // if set, a claim waits for it
}

func (l *blocksLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
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
	if l.refuse != nil {
		return t, l.refuse
	}
	if !t.Block || t.Port != 0 {
		return t, fmt.Errorf("%v is not any block", t)
	}
	t.Port = 32768 + l.next
	l.next += endpoint.BlockPorts
	l.held = append(l.held, t)
	return t, nil
}

func (l *blocksLease) Unclaim(_ context.Context, t endpoint.Tag) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.held, t)
	if i < 0 {
		return fmt.Errorf("%v is not held", t)
	}
	l.held = slices.Delete(l.held, i, i+1)
	return nil
}

func anyPort() endpoint.Tag { return endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:0")) }

func TestPortsOfBlocks(t *testing.T) {
	ctx := t.Context()
	l := &blocksLease{}
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

func TestPortsWithoutBlocks(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		refuse, want error
		claims       int // by two takes
	}{
		{endpoint.ErrTagDenied, nil, 1},
		{endpoint.ErrTagHeld, nil, 2},
		{errors.New("busy"), nil, 2},
		{endpoint.ErrLeaseClosed, endpoint.ErrLeaseClosed, 2},
	} {
		l := &blocksLease{refuse: c.refuse}
		p := newPorts(l, anyPort())
		for range 2 {
			if port, err := p.take(ctx); port != 0 || !errors.Is(err, c.want) {
				t.Errorf("%v: %d, %v", c.refuse, port, err)
			}
		}
		if l.claims != c.claims {
			t.Errorf("%v: %d claims", c.refuse, l.claims)
		}
	}
	// unetd is away: whoever needs a block waits as long as they like.
	p := newPorts(&blocksLease{blocked: make(chan struct{})}, anyPort())
	ended, cancel := context.WithCancel(ctx)
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
}

func TestPortsAtOnce(t *testing.T) {
	l := &blocksLease{}
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
		port, err := newPorts(&blocksLease{}, anyPort()).take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[port] = true
	}
	if len(seen) != endpoint.BlockPorts {
		t.Errorf("%d different ports", len(seen))
	}
}
