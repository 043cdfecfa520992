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

// watch tells those who wait for neighbours that something has changed. All of
// them share one netlink subscription: to wait costs no descriptor.
//
// It says no more than that. Whoever is woken asks the kernel, so nothing is
// lost when the kernel had to drop events.
type watch struct {
	sock  *nl.NetlinkSocket
	ended chan struct{} // closed by the goroutine that reads, its last act

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
	sock, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_NEIGH)
	if err != nil {
		return nil, fmt.Errorf("subscribe to neighbours: %w", err)
	}
	w := &watch{sock: sock, ended: make(chan struct{}), waiters: map[*waiter]struct{}{}}
	go w.read(ifindex)
	return w, nil
}

// close ends the subscription, and returns when nothing of it is left.
func (w *watch) close() {
	w.sock.Close()
	<-w.ended
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
		msgs, _, err := w.sock.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were dropped
			w.wake(netip.Addr{})
			continue
		case err != nil:
			w.mu.Lock()
			w.err = fmt.Errorf("netlink subscription ended: %w", err)
			w.mu.Unlock()
			w.wake(netip.Addr{})
			return
		}
		for _, m := range msgs {
			if m.Header.Type != unix.RTM_NEWNEIGH && m.Header.Type != unix.RTM_DELNEIGH {
				continue
			}
			n, err := netlink.NeighDeserialize(m.Data)
			if err != nil || n.LinkIndex != ifindex {
				continue
			}
			if hop, ok := netip.AddrFromSlice(n.IP); ok {
				w.wake(hop.Unmap())
			}
		}
	}
}
