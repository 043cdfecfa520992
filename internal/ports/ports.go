package ports

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

// Ports has the local ports of one protocol that a host has claimed. It claims them,
// counts the users of each, and releases those without users.
//
// A port that is asked for by number is claimed singly. Its users share it: a TCP
// listener, the connections that were accepted there, and those that were dialled from
// that port. The stack returns EADDRINUSE to users that exclude each other.
//
// The port of an outgoing socket is in a block that is claimed as a whole, or is claimed
// singly if the host gets no block. So a dial asks unetd only if none of the host's ports
// can be used. A UDP socket does not share such a port. TCP connections to different
// destinations share one ([tcp.Table.ChoosePort]), as with the kernel's connect(2).
type Ports struct {
	lease endpoint.Lease
	any   endpoint.Tag // with port 0, by which any free port is claimed
	owned bool         // the host has the owned address: no port is claimed

	mu sync.Mutex
	// +checklocks:mu
	blocks map[uint16]*block // by their first port
	// +checklocks:mu
	free []tcp.PortBlock // the ports of each block that may be chosen; blocks with none are left out
	// +checklocks:mu
	claiming map[uint16]chan struct{} // claims of single ports by number, in progress; closed after the answer
	// +checklocks:mu
	more *portClaim // the claim of ports for outgoing sockets in progress; nil: none
	// +checklocks:mu
	had bool // a claim of ports for outgoing sockets has succeeded
	// +checklocks:mu
	noBlocks bool // policy allows no blocks
	// +checklocks:mu
	gone bool // the address is gone: blocks without users are released
	// +checklocks:mu
	changes int // count of events after which a choice may succeed: a claim, or a Release
	// +checklocks:mu
	released chan struct{} // closed by the next Release; nil: no caller waits for it
}

// block is 64 ports, the first of which is a multiple of 64. The host has all of them, or
// some that it has claimed singly.
type block struct {
	first uint16
	whole bool                        // claimed as a whole, by one tag
	own   uint64                      // ports that the host has: bit i stands for first + i
	used  uint64                      // ports that have users
	alone uint64                      // ports in use that Choose does not offer to connections
	users [endpoint.BlockPorts]uint32 // of each port
	at    int                         // index in Ports.free; -1: not there
}

// Each port of a block has a bit.
var _ [64]struct{} = [endpoint.BlockPorts]struct{}{}

// portClaim is a request for more ports.
type portClaim struct {
	done chan struct{} // closed when it has been answered
	err  error
}

// newPorts makes the ports of a host at the address of any; owned: the host owns that
// address.
func newPorts(lease endpoint.Lease, any endpoint.Tag, owned bool) *Ports {
	return &Ports{lease: lease, any: any, owned: owned, blocks: make(map[uint16]*block), claiming: make(map[uint16]chan struct{})}
}

// Get makes the caller a user of a port until it calls release, which does not block.
// Number 0 asks for a free port; that of an outgoing socket is in a block, if the host gets
// one. A TCP connection from a free port gets it by Choose instead, and may share it.
//
// Errors: EADDRINUSE if connections use the port that they got by Choose; those of the
// lease and of Obtain; that of ctx.
func (p *Ports) Get(ctx context.Context, number uint16, outgoing bool) (port uint16, release func(), err error) {
	switch {
	case p.owned:
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

// getThis is Get of a port by number. It does not wait for claims of other ports.
func (p *Ports) getThis(ctx context.Context, number uint16) error {
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
			delete(p.claiming, number)
			close(claimed)
			more := p.more
			p.mu.Unlock()
			if !errors.Is(err, endpoint.ErrTagHeld) {
				return err
			}
			// The port may be in a block that the host has been granted meanwhile.
			if more != nil {
				select {
				case <-more.done:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			p.mu.Lock()
			b, _ := p.find(number)
			p.mu.Unlock()
			if b == nil {
				return err
			}
			continue
		}
		p.mu.Unlock()
		select {
		case <-claimed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// claim claims a single port for one user; number 0: any.
func (p *Ports) claim(ctx context.Context, number uint16) (uint16, error) {
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

// getFree is Get of a port without users, for an outgoing socket, at random among those
// that the host has (RFC 6056, section 3.3.1). Its errors are those of Obtain.
func (p *Ports) getFree(ctx context.Context) (uint16, error) {
	for refused := error(nil); ; {
		port, seen := p.chooseFree()
		if port != 0 {
			return port, nil
		}
		if refused != nil {
			return 0, refused
		}
		refused = p.Obtain(ctx, seen)
	}
}

// chooseFree is getFree without a claim; port 0: all ports of the host have users. seen is
// the argument for Obtain.
func (p *Ports) chooseFree() (port uint16, seen int) {
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
	panic("BUG: ports: a free port has gone")
}

// Choose makes a connection a user of the port that pick returns: see [stack.TCPPorts].
func (p *Ports) Choose(pick func([]tcp.PortBlock) uint16) uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	port := pick(p.free)
	if port != 0 {
		p.use(port, false)
	}
	return port
}

// Release ends one use of a port. It does not block. A port that was claimed singly is
// released when it has no users. A block is released when it has no users and at least
// 32 ports of other blocks have none: half a block in reserve.
func (p *Ports) Release(port uint16) {
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
		p.remove(b, bit)
	case b.whole && b.used == 0 && (p.gone || p.room(b) >= endpoint.BlockPorts/2):
		p.remove(b, ^uint64(0))
		unused = unused.AsBlock()
	default:
		return
	}
	p.lease.Unclaim(context.Background(), unused) // does not wait: see Lease
}

// giveUp releases all blocks without users, and the others when they have none.
func (p *Ports) giveUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	for _, b := range p.blocks {
		if b.whole && b.used == 0 {
			p.remove(b, ^uint64(0))
			unused := p.any
			unused.Port = b.first
			p.lease.Unclaim(context.Background(), unused.AsBlock()) // does not wait: see Lease
		}
	}
}

// room is the number of ports without users in blocks other than b. p.mu is held.
//
// +checklocks:p.mu
func (p *Ports) room(b *block) (n int) {
	for _, other := range p.blocks {
		if other.whole && other != b {
			n += endpoint.BlockPorts - bits.OnesCount64(other.used)
		}
	}
	return n
}

// use counts a user of a port; alone: Choose does not offer the port while it has users.
// p.mu is held.
//
// +checklocks:p.mu
func (p *Ports) use(port uint16, alone bool) {
	b, bit := p.find(port)
	b.users[port%endpoint.BlockPorts]++
	b.used |= bit
	if alone {
		b.alone |= bit
		p.offer(b)
	}
}

// offer updates p.free with the ports of a block that may be chosen. p.mu is held.
//
// +checklocks:p.mu
func (p *Ports) offer(b *block) {
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

// remove takes ports out of a block. p.mu is held.
//
// +checklocks:p.mu
func (p *Ports) remove(b *block, ports uint64) {
	b.own &^= ports
	p.offer(b)
	if b.own == 0 {
		delete(p.blocks, b.first)
	}
}

// find returns the block of a port and the port's bit; nil: the port is not the host's.
// p.mu is held.
//
// +checklocks:p.mu
func (p *Ports) find(port uint16) (*block, uint64) {
	b, bit := p.blocks[port-port%endpoint.BlockPorts], uint64(1)<<(port%endpoint.BlockPorts)
	if b == nil || b.own&bit == 0 {
		return nil, 0
	}
	return b, bit
}

// add adds a block or a port that was claimed. p.mu is held.
//
// +checklocks:p.mu
func (p *Ports) add(tag endpoint.Tag) {
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

// Changes counts the events after which a choice may succeed: the argument for Obtain.
func (p *Ports) Changes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changes
}

// Obtain claims ports for outgoing sockets. It returns nil when ports have been added or a
// use of a port has ended, at once if that has happened since p.changes was seen. Then the
// caller chooses again. After an error it chooses once more, because a port may have become
// free meanwhile. All callers wait for the same claim, which goes on when ctx ends.
//
// Errors: that of ctx; [endpoint.ErrLeaseClosed]; [endpoint.ErrTagDenied] if the host may
// have no port at all; EADDRNOTAVAIL if it gets no more ports than it has.
func (p *Ports) Obtain(ctx context.Context, seen int) error {
	p.mu.Lock()
	if p.changes != seen {
		p.mu.Unlock()
		return nil
	}
	c := p.claimMore()
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

// Prepare begins the claim that an outgoing socket is going to need here, unless the host already has ports. It does not
// wait.
func (p *Ports) Prepare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.owned && len(p.blocks) == 0 {
		p.claimMore()
	}
}

// claimMore is the claim in progress, or a new one.
//
// +checklocks:p.mu
func (p *Ports) claimMore() *portClaim {
	if p.more == nil {
		p.more = &portClaim{done: make(chan struct{})}
		go p.ask(p.more)
	}
	return p.more
}

// ask claims a block, or a single port if the claim of a block fails.
func (p *Ports) ask(c *portClaim) {
	defer close(c.done)
	ctx := context.Background() // the end of the lease ends the claims
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
	case err == nil && p.gone:
		p.lease.Unclaim(ctx, tag) // does not wait: see Lease
		c.err = syscall.EADDRNOTAVAIL
	case err == nil:
		p.noBlocks = noBlocks // set only if a port was granted: while the host's address is gone, both claims are denied
		p.had = true
		p.add(tag)
	case errors.Is(err, endpoint.ErrTagHeld), errors.Is(err, endpoint.ErrBusy), errors.Is(err, endpoint.ErrTagDenied) && p.had:
		c.err = fmt.Errorf("%w: %w", os.NewSyscallError("connect", syscall.EADDRNOTAVAIL), err)
	default:
		c.err = err
	}
}
