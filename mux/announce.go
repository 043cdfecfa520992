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

// announceSoon begins the announcements of an address anew; the first is sent in this call if now is true.
// m.mu is held.
func (m *Mux) announceSoon(a netip.Addr, now bool) {
	s := announcing{announcements4, time.Now(), time.Now().Add(announceTime)}
	every := interval4
	if a.Is6() {
		s.left, every = announcements6, interval6
	}
	if now {
		if m.sendFrame(route.Announcement(a, m.up.Addr), m.up.Index, bpf.MuxUplink) == nil {
			s.left--
			s.next = s.next.Add(every)
		}
	}
	m.announcing[a] = s
	select {
	case m.announced <- struct{}{}:
	default:
	}
}

// announceAll begins the announcements of all owned addresses anew.
func (m *Mux) announceAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t := range m.tags.held {
		if t.Kind == endpoint.TagAddr {
			m.announceSoon(t.Addr, false)
		}
	}
}

// followAnnouncements sends announcements until the mux is closed.
func (m *Mux) followAnnouncements() {
	for {
		var due <-chan time.Time
		if next := m.announceDue(time.Now()); !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
		case <-m.announced:
		case <-m.ctx.Done():
			return
		}
	}
}

// announceDue sends the announcements that are due. next is the time of the next; zero: none is left.
func (m *Mux) announceDue(now time.Time) (next time.Time) {
	due := map[netip.Addr]*Lease{}
	m.mu.Lock()
	for a, s := range m.announcing {
		if by, is := m.announces(a); !is {
			delete(m.announcing, a)
		} else if !s.next.After(now) {
			due[a] = by
		}
	}
	m.mu.Unlock()
	sent, refused := map[netip.Addr]error{}, map[*Lease]bool{}
	for a, l := range due {
		if refused[l] { // nor may it send this one
			sent[a] = errFull
			continue
		}
		sent[a] = m.announce(a, l)
		refused[l] = errors.Is(sent[a], errFull)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for a, err := range sent {
		s, there := m.announcing[a]
		switch {
		case !there || s.next.After(now): // begun anew meanwhile
			continue
		case errors.Is(err, errFull) && now.Before(s.until):
			s.next = now.Add(announceAgain)
		case errors.Is(err, errFull):
			m.countSent(bpf.MuxRate, s.left)
			delete(m.announcing, a)
			continue
		default: // sent, or the device is down: then followUplink begins anew
			s.left--
			s.next = now.Add(interval4)
			if a.Is6() {
				s.next = now.Add(interval6)
			}
		}
		if m.announcing[a] = s; s.left == 0 {
			delete(m.announcing, a)
		}
	}
	for _, s := range m.announcing {
		if next.IsZero() || s.next.Before(next) {
			next = s.next
		}
	}
	return next
}

// announces reports whether an address is one to be announced, and the lease that owns it; nil: it is one of the host.
// m.mu is held.
func (m *Mux) announces(a netip.Addr) (by *Lease, is bool) {
	if _, is = m.announcing[a]; !is {
		return nil, false
	}
	if owned := m.tags.held[endpoint.AddrTag(a)]; owned != nil {
		return owned.by, true
	}
	return nil, m.tags.onAddr[a] > 0 // 0: given back
}

// announce sends one announcement of an address of l; nil: of an address of the host. The error is errFull if it has
// to be sent later.
func (m *Mux) announce(a netip.Addr, l *Lease) error {
	if l != nil && m.pay(l, 1, announcedLength) == 0 {
		return errFull
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if by, is := m.announces(a); !is || by != l { // given back or lost since announceDue has found it due
		return nil
	}
	return m.sendFrame(route.Announcement(a, m.up.Addr), m.up.Index, bpf.MuxUplink)
}
