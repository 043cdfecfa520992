//go:build linux

package mux

import (
	"errors"
	"net/netip"
	"time"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
)

// The mux announces an owned address when an endpoint has claimed it, when the link is up again, and when the
// mux takes over: other hosts may have the MAC address of its holder before (RFC 5227, section 2.3, and RFC 4861, section
// 7.2.6). It announces an address of the uplink as well when that is back and tags on it are in effect
// again, since Linux does not (sysctl arp_notify, ndisc_notify).
//
// The first announcement of a claim is sent before the claim returns. It is paid with the claim (claiming.pay), the others
// when they are sent: if the rates permit none, they wait for announceTime and are then given up.
const (
	announcements4  = 2 // RFC 5227, section 1.1, ANNOUNCE_NUM
	interval4       = 2 * time.Second
	announcements6  = 3 // RFC 4861, section 10, MAX_NEIGHBOR_ADVERTISEMENT
	interval6       = time.Second
	announceTime    = 10 * time.Second
	announceAgain   = 10 * time.Millisecond // until the next attempt if the rates permit no frame, or the device's queue is full
	announcedLength = 86                    // bytes of the longer frame
)

// announcing is an address whose announcements have not all been sent.
type announcing struct {
	left  int
	next  time.Time
	until time.Time
}

// announcer announces addresses.
type announcer struct {
	m     *Mux
	begun chan struct{}             // of capacity 1; an element: due has changed
	due   map[netip.Addr]announcing // +checklocks:m.mu
}

// begin begins the announcements of an address anew; the first is sent in this call if now is true.
// m.mu is held.
//
// +checklocks:a.m.mu
func (a *announcer) begin(addr netip.Addr, now bool) {
	s := announcing{announcements4, time.Now(), time.Now().Add(announceTime)}
	every := interval4
	if addr.Is6() {
		s.left, every = announcements6, interval6
	}
	if now {
		if a.send(addr) == nil {
			s.left--
			s.next = s.next.Add(every)
		}
	}
	a.due[addr] = s
	select {
	case a.begun <- struct{}{}:
	default:
	}
}

func (a *announcer) send(addr netip.Addr) error {
	return a.m.sender.send(route.Announcement(addr, a.m.up.Addr), a.m.up.Index, bpf.MuxUplink)
}

// beginAll begins the announcements of all owned addresses anew.
func (a *announcer) beginAll() {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	for t := range a.m.tags.held {
		if t.Kind == endpoint.TagAddr {
			a.begin(t.Addr, false)
		}
	}
}

// follow sends announcements until the mux is closed.
func (a *announcer) follow() {
	for {
		var due <-chan time.Time
		if next := a.sendDue(time.Now()); !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
		case <-a.begun:
		case <-a.m.ctx.Done():
			return
		}
	}
}

// sendDue sends the announcements that are due. next is the time of the next; zero: none is left.
func (a *announcer) sendDue(now time.Time) (next time.Time) {
	due := map[netip.Addr]*Lease{}
	a.m.mu.Lock()
	for addr, s := range a.due {
		if by, is := a.of(addr); !is {
			delete(a.due, addr)
		} else if !s.next.After(now) {
			due[addr] = by
		}
	}
	a.m.mu.Unlock()
	sent, refused := map[netip.Addr]error{}, map[*Lease]bool{}
	for addr, l := range due {
		if refused[l] { // nor may it send this one
			sent[addr] = errFull
			continue
		}
		sent[addr] = a.announce(addr, l)
		refused[l] = errors.Is(sent[addr], errFull)
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	for addr, err := range sent {
		s, there := a.due[addr]
		switch {
		case !there || s.next.After(now): // begun anew meanwhile
			continue
		case errors.Is(err, errFull) && now.Before(s.until):
			s.next = now.Add(announceAgain)
		case errors.Is(err, errFull):
			a.m.sender.count(bpf.MuxRate, s.left)
			delete(a.due, addr)
			continue
		default: // sent, or the device is down: then followUplink begins anew
			s.left--
			s.next = now.Add(interval4)
			if addr.Is6() {
				s.next = now.Add(interval6)
			}
		}
		if a.due[addr] = s; s.left == 0 {
			delete(a.due, addr)
		}
	}
	for _, s := range a.due {
		if next.IsZero() || s.next.Before(next) {
			next = s.next
		}
	}
	return next
}

// of reports whether an address is one to be announced, and the lease that owns it; nil: it is one of the host.
// m.mu is held.
//
// +checklocks:a.m.mu
func (a *announcer) of(addr netip.Addr) (by *Lease, is bool) {
	if _, is = a.due[addr]; !is {
		return nil, false
	}
	if owned := a.m.tags.held[endpoint.AddrTag(addr)]; owned != nil {
		return owned.by, true
	}
	return nil, a.m.tags.onAddr[addr] > 0 // 0: given back
}

// announce sends one announcement of an address of l; nil: of an address of the host. The error is errFull if it has
// to be sent later.
func (a *announcer) announce(addr netip.Addr, l *Lease) error {
	if l != nil && a.m.rates.pay(l, 1, announcedLength) == 0 {
		return errFull
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if by, is := a.of(addr); !is || by != l { // given back or lost since sendDue has found it due
		return nil
	}
	return a.send(addr)
}
