package route

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/unet-go/unet/wire"
)

// Change is why an answer of Resolve may be true no longer.
type Change struct {
	// Hop is the next hop that has another MAC address, does not answer any
	// more, or does so again. If it is not valid, routes or addresses have
	// changed, or the kernel had to leave something unsaid: it may be any answer.
	Hop netip.Addr
}

const (
	// maxStandings bounds the hops whose MAC addresses are remembered; the
	// kernel's own table has 1,024 entries by default (gc_thresh3).
	maxStandings = 4096
	maxNews      = 1024 // hops, beyond which it is simply everything

	// A routing daemon changes many routes at a time, and an administrator
	// deletes one and adds another. allAfter is how long the first of such
	// changes waits for the others, and allPause how long the next one does.
	allAfter = 20 * time.Millisecond
	allPause = 250 * time.Millisecond
)

// standing is how it is with a neighbour, as far as others have been told.
type standing struct {
	at     wire.LinkAddr
	failed bool
}

// news tells those who watch a resolver what has changed. A goroutine of its own
// calls them, so that netlink is read meanwhile.
type news struct {
	wake  chan struct{} // of capacity 1
	stop  chan struct{}
	ended chan struct{}

	mu        sync.Mutex
	watchers  []*watcher
	standings map[netip.Addr]standing
	forgotten bool // the standing of some hop has given way
	hops      map[netip.Addr]struct{}
	every     bool
}

// watcher is one function that is told.
type watcher struct{ f func(Change) }

func newNews() *news {
	return &news{
		wake:      make(chan struct{}, 1),
		stop:      make(chan struct{}),
		ended:     make(chan struct{}),
		standings: map[netip.Addr]standing{},
		hops:      map[netip.Addr]struct{}{},
	}
}

// close ends run.
func (n *news) close() {
	close(n.stop)
	<-n.ended
}

// Watch calls f with each change until stop is called, from one goroutine at a
// time. f must not block. A call that is under way when stop is called goes on.
//
// What an answer of Resolve depends on is watched from before the answer was
// looked up, so whoever watches first and then asks misses nothing.
func (r *Resolver) Watch(f func(Change)) (stop func()) {
	n := r.watch.news
	w := &watcher{f}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watchers = append(n.watchers, w)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.watchers = slices.DeleteFunc(slices.Clone(n.watchers), func(o *watcher) bool { return o == w })
	}
}

// neighbour takes what the kernel says of a hop, and makes it news if it is not
// what was told last. A hop of which nobody has heard is no news to anybody.
func (n *news) neighbour(hop netip.Addr, now standing) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, known := n.standings[hop]
	if known && before == now {
		return
	}
	n.remember(hop, now)
	if !known && !n.forgotten {
		return
	}
	if n.hops[hop] = struct{}{}; len(n.hops) > maxNews {
		n.every = true
		clear(n.hops)
	}
	n.ring()
}

// answered notes what Resolve is about to answer. It reports false if something
// else has been told meanwhile: then the answer is old, or else the kernel's
// event is still on its way and will be news to those who were told the other.
func (n *news) answered(hop netip.Addr, now standing) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, known := n.standings[hop]
	if !known {
		n.remember(hop, now)
	}
	return !known || before == now
}

func (n *news) remember(hop netip.Addr, s standing) {
	if _, known := n.standings[hop]; !known && len(n.standings) >= maxStandings {
		for other := range n.standings {
			delete(n.standings, other)
			break
		}
		n.forgotten = true
	}
	n.standings[hop] = s
}

// all makes everything news.
func (n *news) all() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.every = true
	n.ring()
}

// lost is all for events that were dropped: what is known of neighbours may be
// old, too.
func (n *news) lost() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.standings)
	n.forgotten = false
	n.every = true
	n.ring()
}

func (n *news) ring() {
	select {
	case n.wake <- struct{}{}:
	default: // it has not looked yet since the last time
	}
}

// run is the goroutine that tells. Hops are told at once, everything after a
// while.
func (n *news) run() {
	defer close(n.ended)
	var last time.Time       // when everything was told
	var due <-chan time.Time // when it is to be told again; nil: never
	for {
		select {
		case <-n.wake:
		case <-due:
			due, last = nil, time.Now()
			n.tell(Change{})
		case <-n.stop:
			return
		}
		hops, every := n.take()
		for hop := range hops {
			n.tell(Change{hop})
		}
		if every && due == nil {
			due = time.After(max(allAfter, allPause-time.Since(last)))
		}
	}
}

func (n *news) take() (hops map[netip.Addr]struct{}, every bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.hops) > 0 {
		hops, n.hops = n.hops, map[netip.Addr]struct{}{}
	}
	every, n.every = n.every, false
	return hops, every
}

func (n *news) tell(c Change) {
	n.mu.Lock()
	watchers := n.watchers
	n.mu.Unlock()
	for _, w := range watchers {
		w.f(c)
	}
}
