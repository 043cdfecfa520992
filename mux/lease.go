package mux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// Lease is an endpoint's standing with its mux; see [endpoint.Lease].
type Lease struct {
	m            *Mux
	id           uint64
	owner        Owner  // guarded by m.mu
	terms        Terms  // at the opening
	cookie       uint64 // of its socket
	attach       endpoint.Attachment
	at           *attachment
	queue        uint32 // of the uplink, if holdsQueue
	holdsQueue   bool
	segmentBytes int64
	frameSize    uint32   // known while it is opened
	fillSize     uint32   // entries; known of ports
	memory       *os.File // by which the mux asks for the segment; nil if another process made it
	connections  *os.File // what the owner publishes of its connections; nil: nothing. Guarded by m.mu
	granted      bool     // it was complete once
	leased       bool     // guarded by m.mu; false while it waits to be presented

	tags    map[endpoint.Tag]struct{} // that it holds; guarded by m.mu
	tagCost int64                     // of tags; guarded by m.mu

	ctx    context.Context // ends when close begins, or the mux's
	cancel context.CancelFunc

	notices notices

	revoking sync.Once
	closing  sync.Once
	closed   bool          // guarded by m.mu
	cause    error         // why it has ended, set before done is closed
	err      error         // of close
	done     chan struct{} // closed when close has ended
}

func newLease(m *Mux) *Lease {
	l := &Lease{m: m, at: &attachment{}, tags: map[endpoint.Tag]struct{}{}, done: make(chan struct{})}
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
		return endpoint.Tag{}, known(err)
	}
	defer l.m.leave()
	if err := ctx.Err(); err != nil {
		return endpoint.Tag{}, context.Cause(ctx)
	}
	var claimed []endpoint.Tag
	c, err := l.m.ask(l, []endpoint.Tag{t})
	if err == nil {
		claimed, err = l.m.claimTags(ctx, c)
	}
	if err != nil {
		if l.ctx.Err() != nil {
			err = errors.Join(endpoint.ErrLeaseClosed, err)
		}
		return endpoint.Tag{}, known(err)
	}
	return claimed[0], nil
}

// Unclaim gives a tag back. A whole address is given back after the tags on it.
func (l *Lease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	if err := l.enter(); err != nil {
		return known(err)
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
		return endpoint.Route{}, known(err)
	}
	defer l.m.leave()
	dst = dst.Unmap()
	// Before the answer is looked up, so that no change of it is missed.
	l.notices.resolving(dst)
	l.m.mu.Lock()
	closed := l.closed
	whole := l.m.tags.get(endpoint.AddrTag(dst)) != nil
	l.m.mu.Unlock()
	if closed {
		return endpoint.Route{}, endpoint.ErrLeaseClosed
	}
	if whole {
		l.notices.resolved(dst, dst)
		return l.m.routeToWhole(dst)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	r, err := l.m.routes.Resolve(ctx, dst)
	if err != nil {
		return endpoint.Route{}, known(err)
	}
	l.notices.resolved(dst, r.NextHop)
	r.MTU = min(r.MTU, l.m.progs.mtu)
	return r, nil
}

// routeToWhole is how a whole address of this host is reached: the mux turns the
// frame round.
func (m *Mux) routeToWhole(dst netip.Addr) (endpoint.Route, error) {
	own, err := m.addresses()
	if err != nil {
		return endpoint.Route{}, err
	}
	r := endpoint.Route{NextHop: dst, LinkAddr: m.up.addr, MTU: m.mtu()}
	// It was claimed as one of a subnet of the uplink.
	if i := slices.IndexFunc(own.uplink, func(p netip.Prefix) bool { return p.Contains(dst) }); i >= 0 {
		r.Source = own.uplink[i].Addr()
	}
	return r, nil
}

// Watch calls f with each notice; see [endpoint.Lease]. It tells of the uplink
// going down and up, and of destinations whose next hop has changed.
func (l *Lease) Watch(f func(endpoint.Notice)) (stop func()) { return l.notices.watch(f) }

// Done is closed when the lease has been closed, or the mux.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is why the lease has ended: endpoint.ErrLeaseClosed, joined with what made
// the mux end it.
func (l *Lease) Err() error {
	select {
	case <-l.done:
		return l.cause
	default:
		return nil
	}
}

// Close gives everything back: the tags first, so that nothing more is
// delivered, then the map entries, then port or queue; meanwhile the peers of the owner's
// connections get a RST. The socket and the segment are whoever's descriptors they are;
// of a port, the socket has no device any more, and of a queue it can still send until it
// is closed. Close may be called again, and answers the same. After [Mux.Abandon] it has
// no effect.
func (l *Lease) Close() error {
	l.m.life.RLock()
	defer l.m.life.RUnlock()
	return l.close(nil)
}

// close is Close for callers that hold m.life, and for the mux's own goroutines.
// why is nil if the lease's owner wanted it so.
func (l *Lease) close(why error) error {
	l.closing.Do(func() {
		defer l.over(why)
		l.m.mu.Lock()
		info := l.info()
		l.closed = true
		tags := l.m.tags.inEffect(l)
		l.err = l.m.unclaimAll(l)
		delete(l.m.leases, l.id)
		l.m.mu.Unlock()
		// Resets can take seconds (resetTime). The port does not wait for them: a revoked
		// owner's fill ring is written without a pause as long as the port is there.
		var resets sync.WaitGroup
		if l.connections != nil {
			resets.Go(func() { l.m.resetConnections(l.connections, tags) })
		}
		l.err = errors.Join(l.err, l.m.takeAway(l.at), l.m.fills.remove(l))
		resets.Wait()
		if l.connections != nil {
			l.err = errors.Join(l.err, l.connections.Close())
		}
		if l.holdsQueue {
			l.m.mu.Lock()
			delete(l.m.queues, l.queue)
			l.m.mu.Unlock()
		}
		if l.granted || l.at.port { // or its port could not be deleted
			l.m.linger(&lingering{info: info, at: l.at, granted: l.granted, memory: l.memory})
			l.m.log.Debug("endpoint closed", "endpoint", l.id, "error", l.err)
			return
		}
		l.err = errors.Join(l.err, l.m.forgetPort(l.at))
		if l.memory != nil {
			l.err = errors.Join(l.err, l.memory.Close())
		}
	})
	return l.err
}

// abandon ends the lease here and leaves the endpoint as it is.
func (l *Lease) abandon() {
	l.closing.Do(func() {
		defer l.over(ErrClosed)
		l.m.mu.Lock()
		l.closed = true
		delete(l.m.leases, l.id)
		l.m.mu.Unlock()
		l.err = l.m.fills.remove(l)
		for _, f := range []*os.File{l.memory, l.connections} {
			if f != nil {
				l.err = errors.Join(l.err, f.Close())
			}
		}
	})
}

// over tells that the lease has ended, and why.
func (l *Lease) over(why error) {
	l.cancel()
	l.cause = endpoint.ErrLeaseClosed
	if why != nil {
		l.cause = fmt.Errorf("%w: %w", endpoint.ErrLeaseClosed, why)
	}
	close(l.done)
}
