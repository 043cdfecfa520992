package route

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
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
