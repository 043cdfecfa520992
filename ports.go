package unet

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// ports is where outgoing sockets get their local ports: from blocks that the
// host has claimed as a whole. A dial asks nobody, and works while unetd is away,
// until the ports of all blocks are in use.
//
// A port is chosen at random among those that are free (RFC 6056, section 3.3.1),
// and is free again when its socket has been closed. The block is the mux's
// choice.
type ports struct {
	lease    endpoint.Lease
	any      endpoint.Tag  // any free block
	claiming chan struct{} // of capacity 1: one block is claimed at a time

	mu      sync.Mutex
	blocks  []*block
	refused bool // for good: blocks are not allowed here
}

// block is a block of ports that is claimed.
type block struct {
	tag  endpoint.Tag
	used uint64 // a bit for each of its ports, the first in the lowest
}

// Each port of a block has a bit.
var _ [64]struct{} = [endpoint.BlockPorts]struct{}{}

func newPorts(lease endpoint.Lease, any endpoint.Tag) *ports {
	return &ports{lease: lease, any: any.AsBlock(), claiming: make(chan struct{}, 1)}
}

// take hands out a port. It is 0 if no block is to be had, for whatever reason
// other than the end of the lease or of ctx.
func (p *ports) take(ctx context.Context) (port uint16, err error) {
	if port, ok := p.takeFree(); ok {
		return port, nil
	}
	select {
	case p.claiming <- struct{}{}:
		defer func() { <-p.claiming }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if port, ok := p.takeFree(); ok { // of the block that somebody else has claimed meanwhile
		return port, nil
	}
	tag, err := p.lease.Claim(ctx, p.any)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.blocks = append(p.blocks, &block{tag: tag})
		port, _ = p.pick()
		return port, nil
	case errors.Is(err, endpoint.ErrLeaseClosed), ctx.Err() != nil:
		return 0, err
	}
	p.refused = errors.Is(err, endpoint.ErrTagDenied)
	return 0, nil
}

func (p *ports) takeFree() (port uint16, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pick()
}

// pick takes a free port of a block that is there. ok is false if a block is to be
// claimed first. p.mu is held.
func (p *ports) pick() (port uint16, ok bool) {
	free := 0
	for _, b := range p.blocks {
		free += b.free()
	}
	if free == 0 {
		return 0, p.refused
	}
	nth := rand.IntN(free)
	for _, b := range p.blocks {
		if n := b.free(); nth >= n {
			nth -= n
			continue
		}
		left := ^b.used
		for range nth {
			left &= left - 1
		}
		i := bits.TrailingZeros64(left)
		b.used |= 1 << i
		return b.tag.Port + uint16(i), true
	}
	panic("BUG: unet: a free port has gone")
}

// takeThis takes a port that was asked for by number. own is false if it is in no
// block of ours, free if somebody has it already.
func (p *ports) takeThis(port uint16) (own, free bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, bit := p.find(port)
	if b == nil {
		return false, false
	}
	free = b.used&bit == 0
	b.used |= bit
	return true, free
}

// give takes a port back. A block of which nothing is in use, and that is not
// wanted soon, is no longer ours then: the caller unclaims it.
func (p *ports) give(port uint16) (unused endpoint.Tag, idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, bit := p.find(port)
	b.used &^= bit
	spare := 0
	for _, other := range p.blocks {
		if other != b {
			spare += other.free()
		}
	}
	idle = b.used == 0 && spare >= endpoint.BlockPorts/2
	if idle {
		p.blocks = slices.DeleteFunc(p.blocks, func(other *block) bool { return other == b })
	}
	return b.tag, idle
}

// find is the block of a port, or nil, and the port's bit. p.mu is held.
func (p *ports) find(port uint16) (*block, uint64) {
	for _, b := range p.blocks {
		if port >= b.tag.Port && port <= b.tag.LastPort() {
			return b, 1 << (port - b.tag.Port)
		}
	}
	return nil, 0
}

func (b *block) free() int { return endpoint.BlockPorts - bits.OnesCount64(b.used) }
