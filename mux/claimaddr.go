package mux

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/unet-go/unet/endpoint"
)

// A whole address is one of the uplink's network that nobody else has: not the
// host, no neighbour, no router. Whoever holds it answers ARP or neighbour
// solicitations for it, and what other endpoints send there is turned round in
// this host, so a claim of somebody else's address would take that host's
// traffic.

// setAside keeps the whole addresses among tags for l, all or none, until
// putBack.
func (m *Mux) setAside(l *Lease, tags []endpoint.Tag) (whole []netip.Addr, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() {
		if err != nil {
			m.forget(whole)
			whole = nil
		}
	}()
	if l.closed {
		return nil, endpoint.ErrLeaseClosed
	}
	for _, t := range tags {
		if t.Kind != endpoint.TagAddr {
			continue
		}
		t = endpoint.AddrTag(t.Addr)
		if !t.Addr.IsValid() || t.Addr.IsUnspecified() || t.Addr.IsMulticast() || t.Addr.IsLoopback() {
			return whole, denied(t, "not the address of a host")
		}
		if err := m.tags.free(l, t); err != nil {
			return whole, err
		}
		if m.aside[t.Addr] {
			return whole, fmt.Errorf("%w: %v: it is being claimed just now", endpoint.ErrTagHeld, t)
		}
		m.aside[t.Addr] = true
		whole = append(whole, t.Addr)
	}
	return whole, nil
}

// putBack ends setAside, whether the addresses were claimed or not.
func (m *Mux) putBack(whole []netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(whole)
}

func (m *Mux) forget(whole []netip.Addr) {
	for _, a := range whole {
		delete(m.aside, a)
	}
}

// vacant checks that addresses are of the uplink's network and nobody's: by
// what the kernel knows, then by asking the network.
func (m *Mux) vacant(ctx context.Context, whole []netip.Addr, own addresses) error {
	if len(whole) == 0 {
		return nil
	}
	hops, err := m.routes.NextHops()
	if err != nil {
		return err
	}
	for _, a := range whole {
		if err := m.vacantToKernel(a, own, hops); err != nil {
			return err
		}
	}
	return m.probe(ctx, whole)
}

func (m *Mux) vacantToKernel(a netip.Addr, own addresses, hops map[netip.Addr]bool) error {
	t := endpoint.AddrTag(a)
	if slices.Contains(own.host, a) {
		return denied(t, "the host has this address itself")
	}
	i := slices.IndexFunc(own.uplink, func(p netip.Prefix) bool { return p.Contains(a) })
	if i < 0 {
		return denied(t, "not in a subnet of the uplink %s", m.up.name)
	}
	switch p := own.uplink[i]; {
	case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == broadcast(p)):
		return denied(t, "the network's or broadcast address of %v", p.Masked())
	case a.Is6() && p.Bits() < 127 && a == p.Masked().Addr(): // RFC 4291, 2.6.1, and RFC 6164
		return denied(t, "the anycast address of the routers of %v", p.Masked())
	}
	if !own.nat[a].Empty() {
		return fmt.Errorf("%w: %v: network address translation of this host uses it (nft list ruleset, conntrack -L)", endpoint.ErrTagHeld, t)
	}
	if hops[a] {
		return denied(t, "a route of this host has it as next hop (ip route show table all via %v)", a)
	}
	at, known, err := m.routes.Neighbour(a)
	if err != nil {
		return err
	}
	if known && at != m.up.addr {
		return fmt.Errorf("%w: %v: it is the neighbour at %v (if that host is gone: ip neigh del %v dev %s)", endpoint.ErrTagHeld, t, at, a, m.up.name)
	}
	return nil
}

// claimAddr enters a whole address that was set aside and found vacant. m.mu is
// held and the calling thread is in the uplink's namespace.
func (m *Mux) claimAddr(l *Lease, t endpoint.Tag, r *reserver) (endpoint.Tag, error) {
	t = endpoint.AddrTag(t.Addr)
	if n := m.tags.onAddr[t.Addr]; n > 0 { // the host has lost it meanwhile
		return t, fmt.Errorf("%w: %v: %d tags of its ports are held", endpoint.ErrTagHeld, t, n)
	}
	fds, err := r.hear(t.Addr)
	if err != nil {
		return t, fmt.Errorf("claim %v: %w", t, err)
	}
	return t, m.enterTag(l, t, fds)
}

// broadcast is the last address of an IPv4 subnet.
func broadcast(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}
