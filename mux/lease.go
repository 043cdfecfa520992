package mux

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// Lease is an endpoint's standing with its mux; see [endpoint.Lease].
type Lease struct {
	m          *Mux
	id         uint64
	at         *attachment // nil until made
	queue      uint32      // of the uplink, if holdsQueue
	holdsQueue bool

	ctx    context.Context // ends when close begins, or the mux's
	cancel context.CancelFunc

	closing sync.Once
	closed  bool // guarded by m.mu
	err     error
	done    chan struct{} // closed when close has ended
}

func newLease(m *Mux) *Lease {
	l := &Lease{m: m, done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(m.ctx)
	return l
}

var _ endpoint.Lease = (*Lease)(nil)

// enter keeps lease and mux open until m.leave.
func (l *Lease) enter() error {
	if err := l.m.enter(); err != nil {
		return errors.Join(endpoint.ErrLeaseClosed, err)
	}
	return nil
}

// Claim adds a tag. A whole address takes half a second: the network is asked
// whether a host has it.
func (l *Lease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if err := l.enter(); err != nil {
		return endpoint.Tag{}, err
	}
	defer l.m.leave()
	if err := ctx.Err(); err != nil {
		return endpoint.Tag{}, err
	}
	claimed, err := l.m.claimTags(ctx, l, []endpoint.Tag{t})
	if err != nil {
		if l.ctx.Err() != nil {
			err = errors.Join(endpoint.ErrLeaseClosed, err)
		}
		return endpoint.Tag{}, err
	}
	return claimed[0], nil
}

// Unclaim gives a tag back. A whole address is given back after the tags on it.
func (l *Lease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.m.leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.closed {
		return endpoint.ErrLeaseClosed
	}
	return l.m.unclaim(l, t)
}

// Resolve answers from the kernel's routes and neighbours. What this host
// holds itself, on the uplink's address or as a whole address, is behind the
// uplink's own link address.
func (l *Lease) Resolve(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
	if err := l.enter(); err != nil {
		return endpoint.Route{}, err
	}
	defer l.m.leave()
	l.m.mu.Lock()
	closed := l.closed
	_, whole := l.m.tags[endpoint.AddrTag(dst)]
	l.m.mu.Unlock()
	if closed {
		return endpoint.Route{}, endpoint.ErrLeaseClosed
	}
	if whole {
		return endpoint.Route{Source: l.m.identity.Addr.Addr(), NextHop: dst.Unmap(), LinkAddr: l.m.up.addr, MTU: l.m.up.mtu}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	return l.m.routes.Resolve(ctx, dst)
}

// Done is closed when the lease has been closed, or the mux.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Close gives everything back: the tags first, so that nothing more is
// delivered, then the map entries, then port or queue. The socket and the
// segment are whoever's descriptors they are; of a port, the socket has no
// device any more, and of a queue it can still send until it is closed. Close
// may be called again, and answers the same.
func (l *Lease) Close() error {
	l.m.life.RLock()
	defer l.m.life.RUnlock()
	return l.close()
}

// close is Close for callers that hold m.life.
func (l *Lease) close() error {
	l.closing.Do(func() {
		defer close(l.done)
		l.cancel()
		l.m.mu.Lock()
		l.closed = true
		l.err = l.m.unclaimAll(l)
		delete(l.m.leases, l)
		l.m.mu.Unlock()
		if l.at != nil {
			l.err = errors.Join(l.err, l.m.takeAway(l.at))
		}
		if l.holdsQueue {
			l.m.mu.Lock()
			delete(l.m.queues, l.queue)
			l.m.mu.Unlock()
		}
		if l.id != 0 {
			l.m.log.Debug("endpoint closed", "endpoint", l.id, "error", l.err)
		}
	})
	return l.err
}
