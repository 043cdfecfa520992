package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// groups is what a resolver subscribes to: all that an answer is made of.
var groups = []uint{
	unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
}

// watch is the one netlink subscription of a resolver. It wakes those who wait
// for neighbours and tells news of what has changed: to wait costs no descriptor.
//
// To those who wait it says no more than that something has changed. Whoever is
// woken asks the kernel, so nothing is lost when the kernel had to drop events.
type watch struct {
	sock  *nl.NetlinkSocket
	ended chan struct{} // closed by the goroutine that reads, its last act
	news  *news

	mu      sync.Mutex
	waiters map[*waiter]struct{}
	err     error // why there will be no more events
}

// waiter is somebody who waits for one neighbour.
type waiter struct {
	hop     netip.Addr
	changed chan struct{} // of capacity 1
}

func newWatch(ns netns.NsHandle, ifindex int) (*watch, error) {
	sock, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to neighbours and routes: %w", err)
	}
	w := &watch{sock: sock, ended: make(chan struct{}), news: newNews(), waiters: map[*waiter]struct{}{}}
	go w.news.run()
	go w.read(ifindex)
	return w, nil
}

// close ends the subscription, and returns when nothing of it is left.
func (w *watch) close() {
	w.sock.Close()
	<-w.ended
	w.news.close()
}

// wait enters a waiter. The caller takes it out by leave.
func (w *watch) wait(hop netip.Addr) *waiter {
	me := &waiter{hop: hop, changed: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiters[me] = struct{}{}
	return me
}

func (w *watch) leave(me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiters, me)
}

// failure is why waiting is in vain, or nil.
func (w *watch) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// wake wakes those who wait for hop, or everybody if it is not valid.
func (w *watch) wake(hop netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for me := range w.waiters {
		if hop.IsValid() && me.hop != hop {
			continue
		}
		select {
		case me.changed <- struct{}{}:
		default: // it has not looked yet since the last time
		}
	}
}

// read is the goroutine of the subscription.
func (w *watch) read(ifindex int) {
	defer close(w.ended)
	for {
		msgs, from, err := w.sock.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were dropped
			w.news.lost()
			w.wake(netip.Addr{})
			continue
		case err != nil:
			w.mu.Lock()
			w.err = fmt.Errorf("netlink subscription ended: %w", err)
			w.mu.Unlock()
			w.news.lost()
			w.wake(netip.Addr{})
			return
		case from.Pid != nl.PidKernel: // another program's invention
			continue
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
				w.neighbour(m.Data, ifindex)
			case unix.RTM_NEWADDR, unix.RTM_DELADDR:
				if !foreignAddress(m.Data, ifindex) {
					w.news.all()
				}
			case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
				if !foreignLinkRoute(m.Data, ifindex) {
					w.news.all()
				}
			default:
				w.news.all()
			}
		}
	}
}

// neighbour takes an event about a neighbour.
func (w *watch) neighbour(msg []byte, ifindex int) {
	n, err := netlink.NeighDeserialize(msg)
	if err != nil || n.LinkIndex != ifindex || n.Flags&netlink.NTF_PROXY != 0 ||
		n.Family != unix.AF_INET && n.Family != unix.AF_INET6 { // a bridge's entries come in the same group
		return
	}
	hop, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return
	}
	hop = hop.Unmap()
	switch at, err := linkAddr(n.HardwareAddr); {
	case n.State&nudUsable != 0 && err == nil:
		w.news.neighbour(hop, standing{at: at})
	case n.State&netlink.NUD_FAILED != 0:
		w.news.neighbour(hop, standing{failed: true})
	}
	w.wake(hop)
}

// foreignAddress reports whether an event is of an address of another interface.
// If that changes an answer, it does so by routes, the address's own in the local
// table at least, and they have events of their own.
func foreignAddress(msg []byte, ifindex int) bool {
	return len(msg) >= unix.SizeofIfAddrmsg && int(nl.NativeEndian().Uint32(msg[4:8])) != ifindex
}

// foreignLinkRoute reports whether an event is of a route to link-local or
// multicast addresses of IPv6 by another interface. Each interface has its own, and
// each container that starts brings some. We ask for ours by interface.
func foreignLinkRoute(msg []byte, ifindex int) bool {
	if len(msg) < unix.SizeofRtMsg || msg[0] != unix.AF_INET6 {
		return false
	}
	attrs, err := nl.ParseRouteAttrAsMap(msg[unix.SizeofRtMsg:])
	if err != nil {
		return false
	}
	oif, bits := attrs[unix.RTA_OIF].Value, msg[1]
	dst, ok := netip.AddrFromSlice(attrs[unix.RTA_DST].Value)
	if !ok || len(oif) != 4 || int(nl.NativeEndian().Uint32(oif)) == ifindex {
		return false
	}
	return dst.IsLinkLocalUnicast() && bits >= 10 || dst.IsMulticast() && bits >= 8
}

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
