package mux

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/unet-go/unet/endpoint"
)

// maxResolved bounds the destinations that are kept for a lease. Beyond it every change of
// a route is told as one of all routes.
const maxResolved = 1024

// notices are a lease's watchers, and what they are told about.
type notices struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
	down     bool                      // the uplink is
	gone     map[netip.Addr]struct{}   // addresses whose tags are suspended
	hops     map[netip.Addr]netip.Addr // by destination that was resolved, the next hop
	overflow bool                      // there were too many of them
}

// watcher is one function that is called.
type watcher struct {
	mu      sync.Mutex // held around f
	f       func(endpoint.Notice)
	stopped atomic.Bool
}

func (w *watcher) tell(n endpoint.Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped.Load() {
		w.f(n)
	}
}

// watch calls f with each notice from now on, and first with a state that is not the usual
// one.
func (s *notices) watch(f func(endpoint.Notice)) (stop func()) {
	w := &watcher{f: f}
	w.mu.Lock() // later notices wait for those of the present state
	defer w.mu.Unlock()
	s.mu.Lock()
	if s.watchers == nil {
		s.watchers = map[*watcher]struct{}{}
	}
	s.watchers[w] = struct{}{}
	down, gone := s.down, slices.SortedFunc(maps.Keys(s.gone), netip.Addr.Compare)
	s.mu.Unlock()
	if down {
		f(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	}
	for _, a := range gone {
		f(endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a})
	}
	return func() {
		w.stopped.Store(true)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}
}

func (s *notices) tell(list ...endpoint.Notice) {
	s.mu.Lock()
	watchers := make([]*watcher, 0, len(s.watchers))
	for w := range s.watchers {
		watchers = append(watchers, w)
	}
	s.mu.Unlock()
	for _, w := range watchers {
		for _, n := range list {
			w.tell(n)
		}
	}
}

// linkIs notes the uplink's state and tells of a change.
func (s *notices) linkIs(down bool) {
	s.mu.Lock()
	changed := s.down != down
	s.down = down
	s.mu.Unlock()
	switch {
	case changed && down:
		s.tell(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	case changed:
		s.tell(endpoint.Notice{Kind: endpoint.NoticeLinkUp})
	}
}

// addresses notes the addresses whose tags are suspended, and tells which are new. One
// that was noted before is back if has says so, even if no tag is on it any more.
func (s *notices) addresses(gone map[netip.Addr]struct{}, has func(netip.Addr) bool) {
	var news []endpoint.Notice
	s.mu.Lock()
	for a := range s.gone {
		if has(a) {
			delete(s.gone, a)
			news = append(news, endpoint.Notice{Kind: endpoint.NoticeAddrBack, Addr: a})
		}
	}
	for a := range gone {
		if _, known := s.gone[a]; known {
			continue
		}
		if s.gone == nil {
			s.gone = map[netip.Addr]struct{}{}
		}
		s.gone[a] = struct{}{}
		news = append(news, endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a})
	}
	s.mu.Unlock()
	s.tell(news...)
}

// resolving notes a destination whose next hop is not known yet: any change may concern it.
func (s *notices) resolving(dst netip.Addr) { s.note(dst, netip.Addr{}) }

// resolved notes by which hop a destination is reached.
func (s *notices) resolved(dst, hop netip.Addr) { s.note(dst, hop) }

func (s *notices) note(dst, hop netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.hops[dst]; !known && len(s.hops) == maxResolved {
		s.overflow = true
		return
	}
	if s.hops == nil {
		s.hops = map[netip.Addr]netip.Addr{}
	}
	s.hops[dst] = hop
}

// hopChanged tells of the destinations behind a hop; one that is not valid
// stands for all.
func (s *notices) hopChanged(hop netip.Addr) {
	every := []endpoint.Notice{{Kind: endpoint.NoticeRoute}}
	if !hop.IsValid() {
		s.tell(every...)
		return
	}
	s.mu.Lock()
	overflow := s.overflow
	var list []endpoint.Notice
	for dst, by := range s.hops {
		if by == hop || !by.IsValid() {
			list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: dst})
		}
	}
	s.mu.Unlock()
	if overflow {
		list = every
	}
	s.tell(list...)
}

// moved are the whole addresses that have got or lost their owner. A goroutine tells of
// them, since the tag table is changed under m.mu.
type moved struct {
	mu    sync.Mutex
	addrs map[netip.Addr]struct{}
	wake  chan struct{} // of capacity 1
}

func (v *moved) add(a netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.addrs == nil {
		v.addrs = map[netip.Addr]struct{}{}
	}
	v.addrs[a] = struct{}{}
	select {
	case v.wake <- struct{}{}:
	default: // not seen yet
	}
}

func (v *moved) take() map[netip.Addr]struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	addrs := v.addrs
	v.addrs = nil
	return addrs
}

// followMoved tells every lease of them, until the mux is closed.
func (m *Mux) followMoved() {
	for {
		select {
		case <-m.moved.wake:
		case <-m.ctx.Done():
			return
		}
		for a := range m.moved.take() {
			m.hopChanged(a)
		}
	}
}

// hopChanged tells every lease that the route by a next hop has changed; one that is not
// valid stands for all.
func (m *Mux) hopChanged(hop netip.Addr) {
	for _, l := range m.all() {
		l.notices.hopChanged(hop)
	}
}
