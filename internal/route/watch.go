//go:build linux

package route

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// groups are the netlink multicast groups of all that a route depends on.
var groups = []uint{
	unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
}

// watch is the one netlink subscription of a resolver: waits for neighbours need no other
// socket. It wakes the waiters for neighbours and enters changes in notifier.
//
// A waiter that is woken looks up the neighbour in the kernel. After dropped events all waiters
// are woken, so none misses a change.
type watch struct {
	sock     *nl.NetlinkSocket
	ended    chan struct{} // closed at the end of read
	notifier *notifier

	mu      sync.Mutex
	waiters map[*waiter]struct{} // +checklocks:mu
	// +checklocks:mu
	err error // why the subscription has ended
}

// waiter waits for events of one neighbour.
type waiter struct {
	hop     netip.Addr
	changed chan struct{} // of capacity 1
}

func newWatch(ns netns.NsHandle, ifindex int, changed func(hop netip.Addr)) (*watch, error) {
	sock, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to neighbours and routes: %w", err)
	}
	w := &watch{sock: sock, ended: make(chan struct{}), notifier: newNotifier(changed), waiters: map[*waiter]struct{}{}}
	go w.notifier.run()
	go w.read(ifindex)
	return w, nil
}

// close ends the subscription and its goroutines.
func (w *watch) close() {
	w.sock.Close()
	<-w.ended
	w.notifier.close()
}

// wait adds a waiter. The caller removes it by leave.
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

// failure is why the subscription has ended, or nil.
func (w *watch) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// wake wakes the waiters for hop, or all if it is not valid.
func (w *watch) wake(hop netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for me := range w.waiters {
		if hop.IsValid() && me.hop != hop {
			continue
		}
		select {
		case me.changed <- struct{}{}:
		default:
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
			w.notifier.lost()
			w.wake(netip.Addr{})
			continue
		case err != nil:
			w.mu.Lock()
			w.err = fmt.Errorf("netlink subscription ended: %w", err)
			w.mu.Unlock()
			w.notifier.lost()
			w.wake(netip.Addr{})
			return
		case from.Pid != nl.PidKernel: // sent by another program
			continue
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
				w.neighbour(m.Data, ifindex)
			case unix.RTM_NEWADDR, unix.RTM_DELADDR:
				if !foreignAddress(m.Data, ifindex) {
					w.notifier.all()
				}
			case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
				if !foreignLinkRoute(m.Data, ifindex) {
					w.notifier.all()
				}
			default:
				w.notifier.all()
			}
		}
	}
}

// neighbour handles an event about a neighbour.
func (w *watch) neighbour(msg []byte, ifindex int) {
	n, err := netlink.NeighDeserialize(msg)
	if err != nil || n.LinkIndex != ifindex || n.Flags&netlink.NTF_PROXY != 0 ||
		n.Family != unix.AF_INET && n.Family != unix.AF_INET6 { // entries of a bridge come in the same group
		return
	}
	hop, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return
	}
	hop = hop.Unmap()
	switch at, err := linkAddr(n.HardwareAddr); {
	case n.State&nudUsable != 0 && err == nil:
		w.notifier.neighbour(hop, hopState{at: at})
	case n.State&netlink.NUD_FAILED != 0:
		w.notifier.neighbour(hop, hopState{failed: true})
	}
	w.wake(hop)
}

// foreignAddress reports whether an event is about an address of another interface. Such an
// address affects answers only by its routes (at least the local one), and there are separate
// events for these.
func foreignAddress(msg []byte, ifindex int) bool {
	return len(msg) >= unix.SizeofIfAddrmsg && int(nl.NativeEndian().Uint32(msg[4:8])) != ifindex
}

// foreignLinkRoute reports whether an event is about a route to link-local or multicast addresses
// of IPv6 by another interface. Each interface has such routes, and each new container adds
// some. Look-ups of these addresses name the interface, so the event changes none.
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

const (
	// maxHopStates limits the remembered hops; the kernel's own table has 1,024 entries by
	// default (gc_thresh3).
	maxHopStates = 4096
	maxNews      = 1024 // changed hops; more are reported as a change of all answers

	// A routing daemon changes many routes at a time, and an administrator deletes one and
	// adds another. allAfter is the delay of the report of the first change; allPause is the
	// least time between two such reports.
	allAfter = 20 * time.Millisecond
	allPause = 250 * time.Millisecond
)

// hopState is the state of a neighbour as last reported or answered.
type hopState struct {
	at     wire.LinkAddr
	failed bool
}

// notifier calls changed in a goroutine of its own, so that it does not delay the reading of netlink.
type notifier struct {
	changed func(hop netip.Addr) // see New
	wake    chan struct{}        // of capacity 1
	stop    chan struct{}
	ended   chan struct{}

	mu     sync.Mutex
	states map[netip.Addr]hopState // +checklocks:mu
	// +checklocks:mu
	forgotten bool // a hopState was removed, because there were maxHopStates
	// +checklocks:mu
	hops map[netip.Addr]struct{} // hops that have changed and are not reported yet
	// +checklocks:mu
	every bool // any answer may have changed, and this is not reported yet
}

func newNotifier(changed func(hop netip.Addr)) *notifier {
	return &notifier{
		changed: changed,
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		ended:   make(chan struct{}),
		states:  map[netip.Addr]hopState{},
		hops:    map[netip.Addr]struct{}{},
	}
}

// close ends run.
func (n *notifier) close() {
	close(n.stop)
	<-n.ended
}

// neighbour notes the state of a hop, and reports the hop if the state differs from the noted
// one. The first state of a hop is not reported: Resolve has returned no answer by this hop yet.
func (n *notifier) neighbour(hop netip.Addr, now hopState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, known := n.states[hop]
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
	n.signal()
}

// answered notes the state that Resolve is about to return, if none is noted. It returns false if
// another state is noted: then the answer is old, or the event of the change is not read yet.
func (n *notifier) answered(hop netip.Addr, now hopState) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, known := n.states[hop]
	if !known {
		n.remember(hop, now)
	}
	return !known || before == now
}

// +checklocks:n.mu
func (n *notifier) remember(hop netip.Addr, s hopState) {
	if _, known := n.states[hop]; !known && len(n.states) >= maxHopStates {
		for other := range n.states {
			delete(n.states, other)
			break
		}
		n.forgotten = true
	}
	n.states[hop] = s
}

// all reports that any answer may have changed.
func (n *notifier) all() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.every = true
	n.signal()
}

// lost reports, after lost events, that any answer may have changed. It deletes the noted states
// of neighbours, which may be old.
func (n *notifier) lost() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.states)
	n.forgotten = false
	n.every = true
	n.signal()
}

// signal wakes run.
func (n *notifier) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run calls changed: for hops at once, for any answer after allAfter or allPause.
func (n *notifier) run() {
	defer close(n.ended)
	var last time.Time       // of the last report about any answer
	var due <-chan time.Time // for the next one; nil: none
	for {
		select {
		case <-n.wake:
		case <-due:
			due, last = nil, time.Now()
			n.changed(netip.Addr{})
		case <-n.stop:
			return
		}
		hops, every := n.take()
		for hop := range hops {
			n.changed(hop)
		}
		if every && due == nil {
			due = time.After(max(allAfter, allPause-time.Since(last)))
		}
	}
}

func (n *notifier) take() (hops map[netip.Addr]struct{}, every bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.hops) > 0 {
		hops, n.hops = n.hops, map[netip.Addr]struct{}{}
	}
	every, n.every = n.every, false
	return hops, every
}
