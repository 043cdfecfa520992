//go:build linux

package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/mux/internal/nic"
)

// Lease is an endpoint's lease from its mux; see [endpoint.Lease].
type Lease struct {
	m  *Mux
	id uint64
	// owner does not change once somebody holds the lease.
	// +checklocks:m.mu
	owner      Owner
	uid        uint32         // of owner; never changes
	terms      Terms          // at the opening
	rates      endpoint.Rates // m.rates.mu is held
	cookie     uint64         // of its socket
	attach     endpoint.Attachment
	at         *attachment
	queue      uint32 // of the uplink, if holdsQueue
	holdsQueue bool
	// spreadOver is endpoint.Info.SpreadOver.
	// +checklocks:m.mu
	spreadOver   uint32
	segmentBytes int64
	counted      int64       // bytes of memory that count for its user (countedMemory)
	frameSize    uint32      // set at the opening only
	fillSize     uint32      // entries of the fill ring of a port's socket
	bound        nic.Binding // of its socket; m.mu is held after the opening
	memory       *os.File    // the segment, to find out whether it is in use; nil if another process made it
	// connections is what the owner publishes; nil: nothing.
	// +checklocks:m.mu
	connections *published
	granted     bool // the opening has succeeded, so the endpoint counts until nothing is left of it
	// leased is false while the lease waits to be presented.
	// +checklocks:m.mu
	leased bool

	tags map[endpoint.Tag]struct{} // those that it holds; m.mu is held

	ctx    context.Context // ends when close ends, or with the mux's
	cancel context.CancelFunc

	paths map[uint64]*memoryPath // by the endpoint at the other end; m.mu is held
	asks  pathGate               // +checklocks:m.mu
	// captures is the number of captures of its frames.
	// +checklocks:m.mu
	captures int
	offers   notices.Paths // paths on their way to the owner

	watchers *notices.Watchers
	resolved notices.Destinations

	revoking sync.Once
	closing  sync.Once
	// closed: close is in progress or begins next.
	// +checklocks:m.mu
	closed bool
	cause  error         // why the lease has ended; set before done is closed
	err    error         // of close
	done   chan struct{} // closed when close has ended
}

func newLease(m *Mux, o Owner) *Lease {
	l := &Lease{m: m, owner: o, uid: o.UID, at: &attachment{}, tags: map[endpoint.Tag]struct{}{}, paths: map[uint64]*memoryPath{}, done: make(chan struct{})}
	l.watchers = notices.New(l.done)
	l.ctx, l.cancel = context.WithCancel(m.ctx)
	return l
}

var _ endpoint.Lease = (*Lease)(nil)

// holder returns the owner, and whether the lease is held now.
func (l *Lease) holder() (o Owner, leased bool) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return l.owner, l.leased
}

// enter keeps the mux open until m.leave.
func (l *Lease) enter() error {
	if err := l.m.enter(); err != nil {
		return errors.Join(endpoint.ErrLeaseClosed, err)
	}
	return nil
}

// Claim adds a tag. For an owned address that takes half a second: the mux probes the network
// for other hosts that have it.
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
		defer c.end()
		claimed, err = c.claim(ctx)
	}
	if err != nil {
		if l.ctx.Err() != nil {
			err = errors.Join(endpoint.ErrLeaseClosed, err)
		}
		return endpoint.Tag{}, known(err)
	}
	return claimed[0], nil
}

// Unclaim gives a tag back. The tags on an owned address must be given back before it.
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
	return l.m.release(l, t)
}

// Resolve returns the route from src to dst by the kernel's routes, rules and neighbours. From an IPv4 address that
// the lease owns it is the route by which no rule for a source leads (ip rule from): the kernel answers for no IPv4
// address that the host does not have. The uplink's
// addresses, and owned addresses of this host, have the uplink's own MAC address. An endpoint on a
// queue sends by the wire only, so for it they are an endpoint.ErrUnreachable.
func (l *Lease) Resolve(ctx context.Context, src, dst netip.Addr) (endpoint.Route, error) {
	if err := l.enter(); err != nil {
		return endpoint.Route{}, known(err)
	}
	defer l.m.leave()
	src, dst = src.Unmap(), dst.Unmap()
	if err := endpoint.CheckDestination(dst); err != nil {
		return endpoint.Route{}, err
	}
	if err := endpoint.CheckSource(src, dst); err != nil {
		return endpoint.Route{}, err
	}
	// Recorded before the look-up, so that no change is missed.
	l.resolved.Note(src, dst, netip.Addr{})
	l.m.mu.Lock()
	closed := l.closed
	owned := l.m.tags.held[endpoint.AddrTag(dst)] != nil
	_, owns := l.tags[endpoint.AddrTag(src)]
	l.m.mu.Unlock()
	if closed {
		return endpoint.Route{}, endpoint.ErrLeaseClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	r, err := l.m.resolve(ctx, src, dst, owns, owned)
	if err == nil && r.LinkAddr == l.m.up.Addr && l.attach == endpoint.AttachQueue {
		err = fmt.Errorf("%w: %v: an address of this host, which an endpoint on a queue does not reach: attach it to a port", endpoint.ErrUnreachable, dst)
	}
	if err != nil {
		return endpoint.Route{}, known(err)
	}
	l.resolved.Note(src, dst, r.NextHop)
	return r, nil
}

// resolve is Lease.Resolve for an endpoint at a port. owns: it owns src; owned: an endpoint owns dst.
func (m *Mux) resolve(ctx context.Context, src, dst netip.Addr, owns, owned bool) (endpoint.Route, error) {
	if src.IsValid() && !owns {
		has, err := m.routes.Has(src)
		if err == nil && !has {
			err = fmt.Errorf("%w: from %v: neither an address of the uplink %s nor owned by this endpoint: send from such an address, or from none", endpoint.ErrNoRoute, src, m.up.Name)
		}
		if err != nil {
			return endpoint.Route{}, err
		}
	}
	var r endpoint.Route
	var err error
	if owned {
		r, err = m.routeToOwned(dst)
	} else {
		r, err = m.routes.Resolve(ctx, asksFrom(src, owns), dst)
		r.MTU = min(r.MTU, m.progs.MTU)
	}
	r.Source = cmp.Or(src, r.Source)
	return r, err
}

// asksFrom returns the source with which the resolver is asked for a route from src: 0.0.0.0 for an owned
// IPv4 address, which the kernel does not have. The kernel answers for such an IPv6 address.
func asksFrom(src netip.Addr, owned bool) netip.Addr {
	if owned && src.Is4() {
		return netip.IPv4Unspecified()
	}
	return src
}

// routeToOwned is the route to an owned address of this host. The port program redirects such
// frames to its owner.
func (m *Mux) routeToOwned(dst netip.Addr) (endpoint.Route, error) {
	own, err := m.addresses()
	if err != nil {
		return endpoint.Route{}, err
	}
	r := endpoint.Route{NextHop: dst, LinkAddr: m.up.Addr, MTU: m.mtu()}
	// An owned address is in a subnet of the uplink.
	if i := slices.IndexFunc(own.uplink, func(p netip.Prefix) bool { return p.Contains(dst) }); i >= 0 {
		r.Source = own.uplink[i].Addr()
	}
	return r, nil
}

// Notices returns what changes around the endpoint; see [endpoint.Lease]. If the lease was
// presented, the first turn of each loop reports the state of the link and all addresses: each that
// is here, then a NoticeAddrGone without an address.
func (l *Lease) Notices(ctx context.Context) iter.Seq[[]endpoint.Notice] {
	return l.watchers.Notices(ctx)
}

// Done is closed when the lease has been closed, or the mux.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is nil until the lease has ended, and then endpoint.ErrLeaseClosed, joined with the
// reason if the mux has ended it.
func (l *Lease) Err() error {
	select {
	case <-l.done:
		return l.cause
	default:
		return nil
	}
}

// Close gives everything back: first the tags, so that nothing more is delivered, then the
// port or queue. While it deletes the port it sends a RST to the peers of the owner's TCP
// connections. It does not close the application's descriptors of socket and segment.
// Afterwards the socket of a port has no device, and the socket of a queue can send until it
// is closed. Close may be called again and returns the same. After [Mux.Abandon] it has no
// effect.
func (l *Lease) Close() error {
	l.m.life.RLock()
	defer l.m.life.RUnlock()
	return l.close(nil)
}

// close is Close for callers that hold m.life, and for the mux's own goroutines. why is the
// reason why the mux ends the lease; nil: its owner closes it.
func (l *Lease) close(why error) error {
	l.closing.Do(func() {
		defer l.over(why)
		info, tags, connections := l.remove(why)
		// Resets can take seconds (resetTime). The port is deleted at the same time: as long
		// as it exists, guardFillRings writes a revoked owner's fill ring without a pause.
		var resets sync.WaitGroup
		var answers func()
		if connections != nil {
			resets.Go(func() { answers = l.resetConnections(connections, tags) })
		}
		l.err = errors.Join(l.err, l.m.closeAttachment(l.at), l.m.fills.remove(l))
		resets.Wait()
		l.err = errors.Join(l.err, connections.Close())
		if answers == nil {
			l.err = errors.Join(l.err, l.m.rates.end(l))
		} else {
			l.m.running.Go(func() { // the answers are sent at these rates, too
				answers()
				if err := l.m.rates.end(l); err != nil {
					l.m.log.Warn("rates of an endpoint that has ended", "endpoint", l.id, "error", err)
				}
			})
		}
		if l.holdsQueue {
			l.m.mu.Lock()
			delete(l.m.queues, l.queue)
			l.m.mu.Unlock()
			l.err = errors.Join(l.err, l.m.queueing.release())
		}
		if l.granted || l.at.port { // at.port: the port could not be deleted
			l.m.lingers.add(&lingering{info: info, counted: l.counted, at: l.at, granted: l.granted, memory: l.memory})
			l.m.log.Debug("endpoint closed", "endpoint", l.id, "error", l.err)
			return
		}
		l.err = errors.Join(l.err, l.m.deleteEndpoint(l.at))
		if l.memory != nil {
			l.err = errors.Join(l.err, l.memory.Close())
		}
	})
	return l.err
}

// remove takes the lease and its tags out of the mux's tables. It returns what the lease was,
// its tags that were in effect, and what its owner publishes.
func (l *Lease) remove(why error) (info endpoint.Info, tags map[endpoint.Tag]bool, connections *published) {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	info = l.info()
	if l.granted {
		reason := endReason(why)
		if why == nil && !l.leased {
			reason = endReclaimed
		}
		m.endings[reason]++
	}
	l.closed = true
	m.endPathsLocked(l)
	tags = m.tags.inEffect(l)
	l.err = m.releaseAll(l, slices.Collect(maps.Keys(l.tags)))
	delete(m.leases, l.id)
	return info, tags, l.connections
}

// Revoke ends the lease of an endpoint. Its owner learns the reason, which may be empty. The
// error is endpoint.ErrNoEndpoint if no lease has this number.
func (m *Mux) Revoke(id uint64, reason string) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.leave()
	m.mu.Lock()
	l := m.leases[id]
	m.mu.Unlock()
	if l == nil {
		return fmt.Errorf("%w: %d", endpoint.ErrNoEndpoint, id)
	}
	why := ErrRevokedByOperator
	if reason != "" {
		why = fmt.Errorf("%w: %s", ErrRevokedByOperator, reason)
	}
	return l.close(why)
}

// abandon ends the lease and leaves the endpoint as it is.
func (l *Lease) abandon() {
	l.closing.Do(func() {
		defer l.over(ErrClosed)
		l.m.mu.Lock()
		l.closed = true
		connections := l.connections
		l.m.forgetPathsLocked(l)
		delete(l.m.leases, l.id)
		l.m.mu.Unlock()
		l.err = l.m.fills.remove(l)
		if l.memory != nil {
			l.err = errors.Join(l.err, l.memory.Close())
		}
		l.err = errors.Join(l.err, connections.Close())
	})
}

// over sets why the lease has ended, and closes done.
func (l *Lease) over(why error) {
	l.cancel()
	l.offers.End()
	l.cause = endpoint.ErrLeaseClosed
	if why != nil {
		l.cause = fmt.Errorf("%w: %w", endpoint.ErrLeaseClosed, why)
	}
	close(l.done)
}
