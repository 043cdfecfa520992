package unet

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/proto/tcp"
)

// ports is where outgoing sockets get their local ports if the host shares its
// address: from blocks that it has claimed as a whole, or from single ports where it
// may claim no block. A dial needs unetd only when no port that the host has can be used.
//
// TCP connections share a port as the kernel's connect has it: any number of them, each
// to another destination (the engine knows which, [tcp.Table.ChoosePort]). A port that
// was asked for by number, a listener's or a UDP socket's is its owner's alone.
type ports struct {
	lease endpoint.Lease
	any   endpoint.Tag // any free port

	mu       sync.Mutex
	blocks   map[uint16]*block // by their first port
	free     []tcp.PortBlock   // of each block the ports that are ours and that nobody has alone
	changes  int               // how often there was something new to choose: a block, a port, or one less user of a port
	noBlocks bool              // blocks are not allowed here
	claim    *portClaim        // that is in progress
	given    chan struct{}     // closed when a port is given back; nil: nobody waits for that
}

// block is 64 ports from a multiple of 64 on, all of which are the host's, or some.
type block struct {
	whole   bool                        // all, by one tag
	own     uint64                      // those that are the host's: a bit for each, the lowest for the first
	alone   uint64                      // those that one socket has alone
	shared  uint64                      // those that connections share
	sharing [endpoint.BlockPorts]uint32 // how many connections share each
	at      int                         // in ports.free
}

// Each port of a block has a bit.
var _ [64]struct{} = [endpoint.BlockPorts]struct{}{}

// portClaim is a request for more ports.
type portClaim struct {
	done chan struct{} // closed when it has been answered
	err  error
}

func newPorts(lease endpoint.Lease, any endpoint.Tag) *ports {
	return &ports{lease: lease, any: any, blocks: make(map[uint16]*block)}
}

// take hands out a port that nobody else uses, at random among those that there are
// (RFC 6056, section 3.3.1). For its errors see more.
func (p *ports) take(ctx context.Context) (uint16, error) {
	for refused := error(nil); ; {
		port, seen := p.takeFree()
		if port != 0 {
			return port, nil
		}
		if refused != nil {
			return 0, refused
		}
		refused = p.more(ctx, seen)
	}
}

// takeFree hands out a port without asking for more; 0: there is none. seen is for more.
func (p *ports) takeFree() (port uint16, seen int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for i := range p.free {
		n += bits.OnesCount64(p.free[i].Ports)
	}
	if n == 0 {
		return 0, p.changes
	}
	nth := rand.IntN(n)
	for i := range p.free {
		b := &p.free[i]
		left := b.Ports
		if n := bits.OnesCount64(left); nth >= n {
			nth -= n
			continue
		}
		for range nth {
			left &= left - 1
		}
		port = b.First + uint16(bits.TrailingZeros64(left))
		p.own(port)
		return port, p.changes
	}
	panic("BUG: unet: a free port has gone")
}

// takeThis takes a port that was asked for by number. own is false if it is none of
// ours, free if somebody uses it already.
func (p *ports) takeThis(port uint16) (own, free bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, bit := p.find(port)
	if b == nil {
		return false, false
	}
	if (b.alone|b.shared)&bit != 0 {
		return true, false
	}
	p.own(port)
	return true, true
}

// own makes a port one socket's. p.mu is held.
func (p *ports) own(port uint16) {
	b, bit := p.find(port)
	b.alone |= bit
	p.free[b.at].Ports = b.own &^ b.alone
}

// give takes a port back from take or takeThis. If idle, unused is no longer the
// host's: the caller unclaims it.
func (p *ports) give(port uint16) (unused endpoint.Tag, idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, bit := p.find(port)
	b.alone &^= bit
	p.free[b.at].Ports = b.own &^ b.alone
	return p.left(b, port)
}

// Choose is for a connection, which may share its port: see [stack.TCPPorts].
func (p *ports) Choose(pick func([]tcp.PortBlock) uint16) uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	port := pick(p.free)
	if port != 0 {
		b, bit := p.find(port)
		b.sharing[port%endpoint.BlockPorts]++
		b.shared |= bit
	}
	return port
}

// Release takes a port back from Choose.
func (p *ports) Release(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if unused, idle := p.release(port); idle {
		p.lease.Unclaim(context.Background(), unused) // returns at once
	}
}

// release is Release without the request to unclaim. p.mu is held.
func (p *ports) release(port uint16) (unused endpoint.Tag, idle bool) {
	b, bit := p.find(port)
	n := &b.sharing[port%endpoint.BlockPorts]
	if *n--; *n == 0 {
		b.shared &^= bit
	}
	return p.left(b, port)
}

// left notes that a socket on a port of b has gone. If idle, unused is not needed any
// more, and no longer the host's: a single port without a socket, or a block without one
// if the other blocks have half a block of ports without a socket. p.mu is held.
func (p *ports) left(b *block, port uint16) (unused endpoint.Tag, idle bool) {
	p.changes++
	if p.given != nil {
		close(p.given)
		p.given = nil
	}
	unused = p.any
	unused.Port = port
	if !b.whole {
		bit := uint64(1) << (port % endpoint.BlockPorts)
		if idle = (b.alone|b.shared)&bit == 0; idle {
			p.forget(b, bit)
		}
		return unused, idle
	}
	if b.alone|b.shared != 0 {
		return unused, false
	}
	room := 0
	for _, other := range p.blocks {
		if other.whole && other != b {
			room += endpoint.BlockPorts - bits.OnesCount64(other.alone|other.shared)
		}
	}
	if idle = room >= endpoint.BlockPorts/2; idle {
		p.forget(b, ^uint64(0))
	}
	return unused.AsBlock(), idle
}

// forget takes ports of a block out. p.mu is held.
func (p *ports) forget(b *block, ports uint64) {
	b.own &^= ports
	p.free[b.at].Ports = b.own &^ b.alone
	if b.own != 0 {
		return
	}
	first, last := p.free[b.at].First, len(p.free)-1
	p.free[b.at] = p.free[last]
	p.blocks[p.free[b.at].First].at = b.at // of the last one, which may be b
	p.free = p.free[:last]
	delete(p.blocks, first)
}

// find is the block of a port that is the host's, or nil, and the port's bit. p.mu is
// held.
func (p *ports) find(port uint16) (*block, uint64) {
	b, bit := p.blocks[port-port%endpoint.BlockPorts], uint64(1)<<(port%endpoint.BlockPorts)
	if b == nil || b.own&bit == 0 {
		return nil, 0
	}
	return b, bit
}

// count is p.changes, for more.
func (p *ports) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changes
}

// more waits until the host has more ports than when seen was read, or one has been
// given back since: then it is worth to look again. After an error the caller looks once
// more, too: what was in use may have become free meanwhile. However many wait, there is
// one request for all of them, and it goes on when ctx ends.
//
// Errors: that of ctx; [endpoint.ErrLeaseClosed]; [endpoint.ErrTagDenied] if the host may
// have no port at all; EADDRNOTAVAIL if it gets no more than it has.
func (p *ports) more(ctx context.Context, seen int) error {
	p.mu.Lock()
	if p.changes != seen {
		p.mu.Unlock()
		return nil
	}
	c := p.claim
	if c == nil {
		c = &portClaim{done: make(chan struct{})}
		p.claim = c
		go p.ask(c)
	}
	if p.given == nil {
		p.given = make(chan struct{})
	}
	given := p.given
	p.mu.Unlock()
	select {
	case <-given:
		return nil
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ask claims a block, or a port if no block is to be had.
func (p *ports) ask(c *portClaim) {
	defer close(c.done)
	ctx := context.Background() // it ends with the lease
	p.mu.Lock()
	noBlocks := p.noBlocks
	p.mu.Unlock()
	var tag endpoint.Tag
	var err error
	if !noBlocks {
		tag, err = p.lease.Claim(ctx, p.any.AsBlock())
		noBlocks = errors.Is(err, endpoint.ErrTagDenied)
	}
	if noBlocks || err != nil && !errors.Is(err, endpoint.ErrLeaseClosed) {
		tag, err = p.lease.Claim(ctx, p.any)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claim = nil
	switch {
	case err == nil:
		p.noBlocks = noBlocks // not if a port is denied, too: perhaps the host has lost its address for now
		p.add(tag)
	case errors.Is(err, endpoint.ErrTagHeld), errors.Is(err, control.ErrBusy), errors.Is(err, endpoint.ErrTagDenied) && len(p.blocks) > 0:
		c.err = fmt.Errorf("%w: %w", os.NewSyscallError("connect", syscall.EADDRNOTAVAIL), err)
	default:
		c.err = err
	}
}

// add enters a block or a port that was claimed. p.mu is held.
func (p *ports) add(tag endpoint.Tag) {
	first := tag.AsBlock().Port
	b := p.blocks[first]
	if b == nil {
		b = &block{at: len(p.free)}
		p.blocks[first] = b
		p.free = append(p.free, tcp.PortBlock{First: first})
	}
	if b.whole = tag.Block; b.whole {
		b.own = ^uint64(0)
	} else {
		b.own |= 1 << (tag.Port % endpoint.BlockPorts)
	}
	p.free[b.at].Ports = b.own &^ b.alone
	p.changes++
}
