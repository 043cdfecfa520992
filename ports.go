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

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/proto/tcp"
)

// ports is the local ports that a host has of one protocol. It claims them, counts the
// users of each, and gives back those that have none.
//
// A port that is asked for by number is claimed by itself. Its users share it: a TCP
// listener, the connections that were accepted there, and those that were dialled from
// that number. Which of them exclude one another is for the stack to say.
//
// The port of an outgoing socket is of a block that is claimed as a whole, or a single
// one where the host may claim no block. So a dial needs unetd only when no port that
// the host has can be used. UDP sockets have such a port alone. TCP connections share it,
// each to another destination ([tcp.Table.ChoosePort]), as in the kernel's connect.
type ports struct {
	lease endpoint.Lease
	any   endpoint.Tag // any free port
	whole bool         // the address is the host's: nothing is claimed

	mu       sync.Mutex
	blocks   map[uint16]*block        // by their first port
	free     []tcp.PortBlock          // of each block the ports that may be chosen, if there are any
	claiming map[uint16]chan struct{} // ports that are being claimed by number; closed after the answer
	more     *portClaim               // of ports for outgoing sockets, in progress
	had      bool                     // one of these was granted
	noBlocks bool                     // blocks are not allowed here
	changes  int                      // how often there was something new to choose: a block, a port, or one less user of a port
	released chan struct{}            // closed when a user leaves a port; nil: nobody waits for that
}

// block is 64 ports from a multiple of 64 on, all of which are the host's, or some.
type block struct {
	first uint16
	whole bool                        // all, by one tag
	own   uint64                      // those that are the host's: a bit for each, the lowest for the first
	used  uint64                      // those that have users
	alone uint64                      // of these, those that no connection may choose
	users [endpoint.BlockPorts]uint32 // of each
	at    int                         // in ports.free; -1: not there
}

// Each port of a block has a bit.
var _ [64]struct{} = [endpoint.BlockPorts]struct{}{}

// portClaim is a request for more ports.
type portClaim struct {
	done chan struct{} // closed when it has been answered
	err  error
}

// newPorts gives the ports of a host at the address of any. If it has that as a whole,
// no port is claimed.
func newPorts(lease endpoint.Lease, any endpoint.Tag, whole bool) *ports {
	return &ports{lease: lease, any: any, whole: whole, blocks: make(map[uint16]*block), claiming: make(map[uint16]chan struct{})}
}

// get makes the caller a user of a port until it calls giveBack, which never blocks. 0 is
// a free port: one of a block if it is for an outgoing socket. A TCP connection that may
// share its port gets it by Choose instead.
//
// Errors: EADDRINUSE if connections share the port; those of the lease, and of obtain.
func (p *ports) get(ctx context.Context, number uint16, outgoing bool) (port uint16, giveBack func(), err error) {
	switch {
	case p.whole:
		return number, func() {}, nil
	case number != 0:
		err = p.getThis(ctx, number)
	case outgoing:
		number, err = p.getFree(ctx)
	default:
		number, err = p.claim(ctx, 0)
	}
	if err != nil {
		return 0, nil, err
	}
	return number, func() { p.Release(number) }, nil
}

// getThis is get of a port by number. It waits for no claim of another port.
func (p *ports) getThis(ctx context.Context, number uint16) error {
	for {
		p.mu.Lock()
		if b, bit := p.find(number); b != nil {
			defer p.mu.Unlock()
			if b.used&^b.alone&bit != 0 {
				return syscall.EADDRINUSE
			}
			p.use(number, true)
			return nil
		}
		claimed := p.claiming[number]
		if claimed == nil {
			claimed = make(chan struct{})
			p.claiming[number] = claimed
			p.mu.Unlock()
			_, err := p.claim(ctx, number)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.claiming, number)
			close(claimed)
			return err
		}
		p.mu.Unlock()
		select {
		case <-claimed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// claim claims a port for one user; 0 is any.
func (p *ports) claim(ctx context.Context, number uint16) (uint16, error) {
	tag := p.any
	tag.Port = number
	tag, err := p.lease.Claim(ctx, tag)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(tag)
	p.use(tag.Port, true)
	return tag.Port, nil
}

// getFree is get of a port that nobody uses, for an outgoing socket, at random among
// those that there are (RFC 6056, section 3.3.1). For its errors see obtain.
func (p *ports) getFree(ctx context.Context) (uint16, error) {
	for refused := error(nil); ; {
		port, seen := p.chooseFree()
		if port != 0 {
			return port, nil
		}
		if refused != nil {
			return 0, refused
		}
		refused = p.obtain(ctx, seen)
	}
}

// chooseFree is getFree without asking for more ports; 0: there is none. seen is for
// obtain.
func (p *ports) chooseFree() (port uint16, seen int) {
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
		p.use(port, true)
		return port, p.changes
	}
	panic("BUG: unet: a free port has gone")
}

// Choose is for a connection, which may share its port: see [stack.TCPPorts].
func (p *ports) Choose(pick func([]tcp.PortBlock) uint16) uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	port := pick(p.free)
	if port != 0 {
		p.use(port, false)
	}
	return port
}

// Release ends one use of a port. It never blocks. A single port without users is given
// back. So is a block without users if the other blocks have half a block of ports
// without users.
func (p *ports) Release(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, bit := p.find(port)
	n := &b.users[port%endpoint.BlockPorts]
	if *n--; *n == 0 {
		b.used &^= bit
		b.alone &^= bit
		p.offer(b)
	}
	p.changes++
	if p.released != nil {
		close(p.released)
		p.released = nil
	}
	unused := p.any
	unused.Port = port
	switch {
	case !b.whole && b.used&bit == 0:
		p.forget(b, bit)
	case b.whole && b.used == 0 && p.room(b) >= endpoint.BlockPorts/2:
		p.forget(b, ^uint64(0))
		unused = unused.AsBlock()
	default:
		return
	}
	p.lease.Unclaim(context.Background(), unused) // returns at once: see givingLease
}

// room is how many ports of blocks other than b have no users. p.mu is held.
func (p *ports) room(b *block) (n int) {
	for _, other := range p.blocks {
		if other.whole && other != b {
			n += endpoint.BlockPorts - bits.OnesCount64(other.used)
		}
	}
	return n
}

// use counts a user of a port; alone: from now on no connection may choose it. p.mu is
// held.
func (p *ports) use(port uint16, alone bool) {
	b, bit := p.find(port)
	b.users[port%endpoint.BlockPorts]++
	b.used |= bit
	if alone {
		b.alone |= bit
		p.offer(b)
	}
}

// offer enters in p.free which ports of a block may be chosen. p.mu is held.
func (p *ports) offer(b *block) {
	free, last := b.own&^b.alone, len(p.free)-1
	switch {
	case free != 0 && b.at < 0:
		b.at = len(p.free)
		p.free = append(p.free, tcp.PortBlock{First: b.first, Ports: free})
	case free != 0:
		p.free[b.at].Ports = free
	case b.at >= 0:
		p.free[b.at] = p.free[last]
		p.blocks[p.free[b.at].First].at = b.at // of the last one, which may be b
		p.free, b.at = p.free[:last], -1
	}
}

// forget takes ports of a block out. p.mu is held.
func (p *ports) forget(b *block, ports uint64) {
	b.own &^= ports
	p.offer(b)
	if b.own == 0 {
		delete(p.blocks, b.first)
	}
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

// add enters a block or a port that was claimed. p.mu is held.
func (p *ports) add(tag endpoint.Tag) {
	first := tag.AsBlock().Port
	b := p.blocks[first]
	if b == nil {
		b = &block{first: first, at: -1}
		p.blocks[first] = b
	}
	if b.whole = tag.Block; b.whole {
		b.own = ^uint64(0)
	} else {
		b.own |= 1 << (tag.Port % endpoint.BlockPorts)
	}
	p.offer(b)
	p.changes++
}

// count is p.changes, for obtain.
func (p *ports) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changes
}

// obtain waits until the host has more ports for outgoing sockets than when seen was
// read, or a user has left one since: then the caller looks again. After an error it
// looks once more, too: what was in use may have become free meanwhile. However many
// wait, there is one request for all of them, and it goes on when ctx ends.
//
// Errors: that of ctx; [endpoint.ErrLeaseClosed]; [endpoint.ErrTagDenied] if the host may
// have no port at all; EADDRNOTAVAIL if it gets no more than it has.
func (p *ports) obtain(ctx context.Context, seen int) error {
	p.mu.Lock()
	if p.changes != seen {
		p.mu.Unlock()
		return nil
	}
	c := p.more
	if c == nil {
		c = &portClaim{done: make(chan struct{})}
		p.more = c
		go p.ask(c)
	}
	if p.released == nil {
		p.released = make(chan struct{})
	}
	released := p.released
	p.mu.Unlock()
	select {
	case <-released:
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
	p.more = nil
	switch {
	case err == nil:
		p.noBlocks = noBlocks // not if a port is denied, too: perhaps the host has lost its address for now
		p.had = true
		p.add(tag)
	case errors.Is(err, endpoint.ErrTagHeld), errors.Is(err, endpoint.ErrBusy), errors.Is(err, endpoint.ErrTagDenied) && p.had:
		c.err = fmt.Errorf("%w: %w", os.NewSyscallError("connect", syscall.EADDRNOTAVAIL), err)
	default:
		c.err = err
	}
}
