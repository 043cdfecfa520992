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
// of the endpoint's addresses.
type Watchers struct {
	done <-chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	list []*watcher
	// +checklocks:mu
	alone bool // unetd is gone
	down  bool // +checklocks:mu
	// +checklocks:mu
	gone map[netip.Addr]bool // addresses that the host does not have now
	// +checklocks:mu
	presented bool // see Presented
}

type watcher struct {
	wake    chan struct{} // of capacity 1
	pending pending       // guarded by Watchers.mu
}

// New makes the watchers of a lease that ends when done is closed.
func New(done <-chan struct{}) *Watchers {
	return &Watchers{done: done, gone: map[netip.Addr]bool{}}
}

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
	if w.presented {
		one.add(endpoint.Notice{Kind: endpoint.NoticeLinkUp})
		one.add(endpoint.Notice{Kind: endpoint.NoticeAddrBack})
	}
	if w.alone {
		one.add(endpoint.Notice{Kind: endpoint.NoticeUnetdGone})
	}
	if w.down {
		one.add(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	}
	for a := range w.gone {
		one.add(endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a})
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
	return one.pending.take()
}

// add makes a notice pending and wakes the loop. Watchers.mu is held.
func (one *watcher) add(n endpoint.Notice) {
	one.pending.add(n)
	select {
	case one.wake <- struct{}{}:
	default:
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
		for _, n := range w.news(n) {
			for _, one := range w.list {
				one.add(n)
			}
		}
	}
}

// news records the state in n and returns the notices of what has changed. w.mu is held.
//
// +checklocks:w.mu
func (w *Watchers) news(n endpoint.Notice) []endpoint.Notice {
	switch n.Kind {
	case endpoint.NoticeUnetdGone, endpoint.NoticeUnetdBack:
		alone := n.Kind == endpoint.NoticeUnetdGone
		if alone == w.alone {
			return nil
		}
		w.alone = alone
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		down := n.Kind == endpoint.NoticeLinkDown
		if down == w.down {
			return nil
		}
		w.down = down
	case endpoint.NoticeAddrGone:
		if w.gone[n.Addr] {
			return nil
		}
		w.gone[n.Addr] = true
	case endpoint.NoticeAddrBack:
		if !n.Addr.IsValid() {
			var list []endpoint.Notice
			for a := range w.gone {
				list = append(list, endpoint.Notice{Kind: endpoint.NoticeAddrBack, Addr: a})
			}
			clear(w.gone)
			return list
		}
		if !w.gone[n.Addr] {
			return nil
		}
		delete(w.gone, n.Addr)
	}
	return []endpoint.Notice{n}
}

// pending is what a loop has not got yet: one notice for each destination
// that has changed, and the last state of unetd, of the link and of each address. It has at
// most as many addresses as the endpoint has tags.
type pending struct {
	unetd  endpoint.NoticeKind // 0: nothing new
	link   endpoint.NoticeKind // 0: nothing new
	back   bool                // the host has all the endpoint's addresses again; what is in gone is newer
	gone   map[netip.Addr]bool // the endpoint's addresses whose state has changed; true: gone, false: back
	routes map[netip.Addr]bool // destinations
	all    bool                // of routes: every destination
}

func (p *pending) add(n endpoint.Notice) {
	switch n.Kind {
	case endpoint.NoticeUnetdGone, endpoint.NoticeUnetdBack:
		p.unetd = n.Kind
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		p.link = n.Kind
	case endpoint.NoticeAddrGone, endpoint.NoticeAddrBack:
		if !n.Addr.IsValid() {
			p.back, p.gone = true, nil
			return
		}
		if p.gone == nil {
			p.gone = map[netip.Addr]bool{}
		}
		p.gone[n.Addr] = n.Kind == endpoint.NoticeAddrGone
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

// take returns and removes what is pending, in the order of [endpoint.Lease]'s Notices.
func (p *pending) take() []endpoint.Notice {
	var list []endpoint.Notice
	if p.unetd != 0 {
		list = append(list, endpoint.Notice{Kind: p.unetd})
	}
	if p.link != 0 {
		list = append(list, endpoint.Notice{Kind: p.link})
	}
	if p.back {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeAddrBack})
	}
	for _, a := range slices.SortedFunc(maps.Keys(p.gone), netip.Addr.Compare) {
		kind := endpoint.NoticeAddrBack
		if p.gone[a] {
			kind = endpoint.NoticeAddrGone
		}
		list = append(list, endpoint.Notice{Kind: kind, Addr: a})
	}
	if p.all {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute})
	}
	for _, a := range slices.SortedFunc(maps.Keys(p.routes), netip.Addr.Compare) {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: a})
	}
	*p = pending{}
	return list
}
