// Package notices delivers the notices and the memory paths of a lease to the loops that range over
// them. For each loop it keeps what is not delivered yet, so that the sender never waits.
package notices

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// maxAddrs bounds the destinations that are kept for a loop. Beyond it one NoticeRoute
// without an address stands for all.
const maxAddrs = 256

// Watchers has the loops over the notices of one lease, and the state of unetd, of the link and
// of the addresses. The addresses that a loop has not got yet are the difference between those that
// it knows and the present ones, so they need no bound of their own.
type Watchers struct {
	done <-chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	list []*watcher
	// +checklocks:mu
	alone bool // unetd is gone
	down  bool // +checklocks:mu
	// +checklocks:mu
	granted subnets // see Granted; does not change
	// +checklocks:mu
	addrs subnets // of the host now
	// +checklocks:mu
	stale map[netip.Addr]bool // see Renew
	// +checklocks:mu
	presented bool // see Presented
}

// subnets are addresses with the lengths of their subnets' prefixes.
type subnets map[netip.Addr]uint8

type watcher struct {
	wake    chan struct{} // of capacity 1
	pending pending       // guarded by Watchers.mu
	known   subnets       // addresses as the loop has got them; replaced, never changed; guarded by Watchers.mu
	all     bool          // the next turn ends with a NoticeAddrGone without an address; guarded by Watchers.mu
}

// New makes the watchers of a lease that ends when done is closed.
func New(done <-chan struct{}) *Watchers { return &Watchers{done: done, addrs: subnets{}} }

// Notices is that of [endpoint.Lease].
func (w *Watchers) Notices(ctx context.Context) iter.Seq[[]endpoint.Notice] {
	one := w.add()
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { w.remove(one) })
	return func(yield func([]endpoint.Notice) bool) {
		defer cancel()
		for {
			select {
			case <-one.wake:
			case <-ctx.Done():
			case <-w.done:
			}
			if w.ended(ctx) {
				return
			}
			if list := w.take(one); len(list) > 0 && !yield(list) {
				return
			}
		}
	}
}

// Each is Notices with one notice at a time.
func (w *Watchers) Each(ctx context.Context) iter.Seq[endpoint.Notice] {
	all := w.Notices(ctx)
	return func(yield func(endpoint.Notice) bool) {
		for list := range all {
			for _, n := range list {
				if w.ended(ctx) || !yield(n) {
					return
				}
			}
		}
	}
}

// ended reports whether ctx or the lease has ended.
func (w *Watchers) ended(ctx context.Context) bool {
	select {
	case <-w.done:
		return true
	default:
		return ctx.Err() != nil
	}
}

// add adds a watcher, for which the states that are not normal are pending.
func (w *Watchers) add() *watcher {
	one := &watcher{wake: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	one.known = w.granted
	one.wake <- struct{}{} // addresses may have changed
	if w.presented {
		one.known, one.all = nil, true
		one.add(endpoint.Notice{Kind: endpoint.NoticeLinkUp})
	}
	if w.alone {
		one.add(endpoint.Notice{Kind: endpoint.NoticeUnetdGone})
	}
	if w.down {
		one.add(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	}
	w.list = append(w.list, one)
	return one
}

func (w *Watchers) remove(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = slices.DeleteFunc(w.list, func(o *watcher) bool { return o == one })
}

// take returns and removes what is pending for one.
func (w *Watchers) take(one *watcher) []endpoint.Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	moved := one.known.to(w.addrs)
	if len(moved) > 0 {
		one.known = maps.Clone(w.addrs)
	}
	if one.all {
		one.all = false
		moved = append(moved, endpoint.Notice{Kind: endpoint.NoticeAddrGone})
	}
	return one.pending.take(moved)
}

// to returns the notices by which one who knows s gets to know now: those of addresses that are
// here first, so that a host that moves from one to another is never without.
func (s subnets) to(now subnets) []endpoint.Notice {
	var here, gone []endpoint.Notice
	for a, bits := range now {
		if before, known := s[a]; !known || before != bits {
			here = append(here, endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: a, Bits: bits})
		}
	}
	for a := range s {
		if _, there := now[a]; !there {
			gone = append(gone, endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a})
		}
	}
	for _, list := range [][]endpoint.Notice{here, gone} {
		slices.SortFunc(list, func(a, b endpoint.Notice) int { return a.Addr.Compare(b.Addr) })
	}
	return append(here, gone...)
}

// add makes a notice pending and wakes the loop. Watchers.mu is held.
func (one *watcher) add(n endpoint.Notice) {
	one.pending.add(n)
	select {
	case one.wake <- struct{}{}:
	default:
	}
}

// Granted sets the addresses with which every later loop begins: those of the grant, which are
// the present ones until Tell changes them.
func (w *Watchers) Granted(addrs []netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted = subnets{}
	for _, p := range addrs {
		w.granted[p.Addr()] = uint8(p.Bits())
	}
	w.addrs = maps.Clone(w.granted)
}

// Renew begins a list of all addresses of the host. A NoticeAddrGone without an address ends it:
// those that Tell has not named in between are gone.
func (w *Watchers) Renew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stale = map[netip.Addr]bool{}
	for a := range w.addrs {
		w.stale[a] = true
	}
}

// Presented makes every later loop begin with the whole state. It is called when the
// endpoint has been presented to a new unetd: the state that the last one reported may be
// out of date.
func (w *Watchers) Presented() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.presented = true
}

// Tell gives notices to all loops. It leaves out states of unetd, of the link and of
// addresses that have not changed. It does not block.
func (w *Watchers) Tell(list ...endpoint.Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range list {
		if w.news(n) {
			for _, one := range w.list {
				one.add(n)
			}
		}
	}
}

// news records the state in n and reports whether it has changed. w.mu is held.
//
// +checklocks:w.mu
func (w *Watchers) news(n endpoint.Notice) bool {
	switch n.Kind {
	case endpoint.NoticeUnetdGone, endpoint.NoticeUnetdBack:
		alone := n.Kind == endpoint.NoticeUnetdGone
		if alone == w.alone {
			return false
		}
		w.alone = alone
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		down := n.Kind == endpoint.NoticeLinkDown
		if down == w.down {
			return false
		}
		w.down = down
	case endpoint.NoticeAddrHere:
		delete(w.stale, n.Addr)
		if bits, here := w.addrs[n.Addr]; here && bits == n.Bits {
			return false
		}
		w.addrs[n.Addr] = n.Bits
	case endpoint.NoticeAddrGone:
		before := len(w.addrs)
		delete(w.addrs, n.Addr)
		if !n.Addr.IsValid() {
			for a := range w.stale {
				delete(w.addrs, a)
			}
			w.stale = nil
		}
		return len(w.addrs) < before
	}
	return true
}

// pending is what a loop has not got yet, but addresses: one notice for each destination
// that has changed, and the last state of unetd and of the link.
type pending struct {
	unetd  endpoint.NoticeKind // 0: nothing new
	link   endpoint.NoticeKind // 0: nothing new
	routes map[netip.Addr]bool // destinations
	all    bool                // of routes: every destination
}

func (p *pending) add(n endpoint.Notice) {
	switch n.Kind {
	case endpoint.NoticeUnetdGone, endpoint.NoticeUnetdBack:
		p.unetd = n.Kind
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		p.link = n.Kind
	case endpoint.NoticeRoute:
		switch {
		case p.all:
		case !n.Addr.IsValid(), len(p.routes) == maxAddrs && !p.routes[n.Addr]:
			p.routes, p.all = nil, true
		default:
			if p.routes == nil {
				p.routes = map[netip.Addr]bool{}
			}
			p.routes[n.Addr] = true
		}
	}
}

// take returns and removes what is pending, in the order of [endpoint.Lease]'s Notices. moved are
// those of addresses.
func (p *pending) take(moved []endpoint.Notice) []endpoint.Notice {
	var list []endpoint.Notice
	if p.unetd != 0 {
		list = append(list, endpoint.Notice{Kind: p.unetd})
	}
	if p.link != 0 {
		list = append(list, endpoint.Notice{Kind: p.link})
	}
	list = append(list, moved...)
	if p.all {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute})
	}
	for _, a := range slices.SortedFunc(maps.Keys(p.routes), netip.Addr.Compare) {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: a})
	}
	*p = pending{}
	return list
}
