// Package notices delivers the notices of a lease to the functions that watch it. For each
// of them it keeps the notices that are not delivered yet, so that the sender never waits.
package notices

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/unet-go/unet/endpoint"
)

// maxAddrs bounds the destinations that are kept for a watcher. Beyond it one NoticeRoute
// without an address stands for all.
const maxAddrs = 256

// Watchers has the watchers of one lease, and the state of unetd, of the link and of the
// endpoint's addresses. One goroutine calls all watchers, from the first Watch to the end of the lease.
type Watchers struct {
	done <-chan struct{}
	wake chan struct{} // of capacity 1

	mu sync.Mutex
	// +checklocks:mu
	list []*watcher // in the order of Watch
	// +checklocks:mu
	alone bool // unetd is gone
	down  bool // +checklocks:mu
	// +checklocks:mu
	gone map[netip.Addr]bool // addresses that the host does not have now
	// +checklocks:mu
	presented bool // see Presented
	running   bool // +checklocks:mu
}

type watcher struct {
	f       func([]endpoint.Notice)
	stopped atomic.Bool
	pending pending // guarded by Watchers.mu
}

// New makes the watchers of a lease that ends when done is closed.
func New(done <-chan struct{}) *Watchers {
	return &Watchers{done: done, wake: make(chan struct{}, 1), gone: map[netip.Addr]bool{}}
}

// Watch is that of [endpoint.Lease].
func (w *Watchers) Watch(f func([]endpoint.Notice)) (stop func()) {
	one := &watcher{f: f}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.presented {
		one.pending.add(endpoint.Notice{Kind: endpoint.NoticeLinkUp})
		one.pending.add(endpoint.Notice{Kind: endpoint.NoticeAddrBack})
	}
	if w.alone {
		one.pending.add(endpoint.Notice{Kind: endpoint.NoticeUnetdGone})
	}
	if w.down {
		one.pending.add(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	}
	for a := range w.gone {
		one.pending.add(endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a})
	}
	w.list = append(w.list, one)
	w.nudge()
	if !w.running {
		w.running = true
		go w.run()
	}
	return func() {
		one.stopped.Store(true)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.list = slices.DeleteFunc(w.list, func(o *watcher) bool { return o == one })
	}
}

// Presented makes every later Watch begin with the whole state. It is called when the
// endpoint has been presented to a new unetd: the state that the last one reported may be
// out of date.
func (w *Watchers) Presented() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.presented = true
}

// Tell gives notices to all watchers. It leaves out states of unetd, of the link and of
// addresses that have not changed. It does not block.
func (w *Watchers) Tell(list ...endpoint.Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range list {
		for _, n := range w.news(n) {
			for _, one := range w.list {
				one.pending.add(n)
			}
		}
	}
	w.nudge()
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

func (w *Watchers) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run calls the watchers until the lease ends, each time in the order of the list.
func (w *Watchers) run() {
	type call struct {
		to   *watcher
		list []endpoint.Notice
	}
	for {
		select {
		case <-w.done:
			return
		case <-w.wake:
		}
		var calls []call
		w.mu.Lock()
		for _, one := range w.list {
			if list := one.pending.take(); len(list) > 0 {
				calls = append(calls, call{one, list})
			}
		}
		w.mu.Unlock()
		for _, c := range calls {
			if !c.to.stopped.Load() {
				c.to.f(c.list)
			}
		}
	}
}

// pending is what a watcher has not been called with yet: one notice for each destination
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

// take returns and removes what is pending, in the order of [endpoint.Lease]'s Watch.
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
