package mux

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/unet-go/unet/endpoint"
)

// Tags follow the addresses of the host (ADR 28). A port on an address of the uplink is in
// effect as long as the uplink has the address: when it does not, another host may.
// Until the address is back its tags are suspended. A whole address is the
// endpoint's as long as the host does not have it: when it does, the endpoint ends.

// addressesAre compares the tags with the addresses that the host has now. One goroutine
// calls it, after the kernel has told of a change, or may have failed to.
//
// The addresses are asked for while nobody can enter a tag, so a claim is compared with
// a change at least once: here, or by its own second look (claimTags).
func (m *Mux) addressesAre() error {
	m.mu.Lock()
	own, err := m.addresses()
	if err != nil {
		m.mu.Unlock()
		return err
	}
	primary := own.primary()
	m.primary.Store(&primary)
	gone, taken, err := m.follow(own)
	for _, l := range m.leases {
		if gone[l] == nil {
			gone[l] = nil // to be told what is back
		}
	}
	m.mu.Unlock()

	for l, addrs := range gone {
		l.notices.addresses(addrs, own.has)
	}
	for l, a := range taken {
		m.mu.Lock()
		o := l.owner
		m.mu.Unlock()
		cerr := l.close(fmt.Errorf("%w: the host has taken %v, which the endpoint held as a whole", ErrAddrTaken, a))
		m.log.Warn("endpoint ended: the host has taken the address that it held as a whole", "addr", a, "endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", cerr)
	}
	return err
}

// follow puts tags into effect or suspends them. It returns the addresses of the
// leases' suspended tags, and the leases whose whole address the host has. m.mu is held.
func (m *Mux) follow(own addresses) (gone map[*Lease]map[netip.Addr]struct{}, taken map[*Lease]netip.Addr, err error) {
	gone, taken = map[*Lease]map[netip.Addr]struct{}{}, map[*Lease]netip.Addr{}
	lost, back := map[netip.Addr]int{}, map[netip.Addr]int{} // tags
	for t, c := range m.tags.held {
		if t.Kind == endpoint.TagAddr && slices.Contains(own.host, t.Addr) {
			taken[c.by] = t.Addr
		}
		if !hasPorts(t) || m.tags.get(endpoint.AddrTag(t.Addr)) != nil {
			continue
		}
		here := own.has(t.Addr)
		if here == c.suspended {
			if serr := m.setEffect(t, c.by.at.owner, here); serr != nil {
				err = errors.Join(err, fmt.Errorf("suspend %v, or end that: %w", t, serr))
				continue
			}
			if c.suspended = !here; here {
				back[t.Addr]++
			} else {
				lost[t.Addr]++
			}
		}
		if c.suspended {
			if gone[c.by] == nil {
				gone[c.by] = map[netip.Addr]struct{}{}
			}
			gone[c.by][t.Addr] = struct{}{}
		}
	}
	for a, n := range lost {
		m.log.Warn("the uplink has lost an address: endpoints' tags on it are suspended until it is back", "interface", m.up.name, "addr", a, "tags", n)
	}
	for a, n := range back {
		m.log.Info("the uplink has an address again: endpoints' tags on it are in effect", "interface", m.up.name, "addr", a, "tags", n)
	}
	return gone, taken, err
}

// has reports whether ports can be claimed on an address of the uplink.
func (own *addresses) has(a netip.Addr) bool {
	return slices.ContainsFunc(own.uplink, func(p netip.Prefix) bool { return p.Addr() == a })
}

// stillTrue says which of tags, which have been entered for l just now, do not fit the
// addresses that the host has by now. m.mu is held.
func (m *Mux) stillTrue(tags []endpoint.Tag) error {
	own, err := m.addresses()
	if err != nil {
		return err
	}
	for _, t := range tags {
		switch {
		case t.Kind == endpoint.TagAddr:
			if slices.Contains(own.host, t.Addr) {
				return denied(t, "the host has taken this address just now")
			}
		case hasPorts(t) && m.tags.get(endpoint.AddrTag(t.Addr)) == nil:
			if err := own.mayShare(t, m.up.name); err != nil {
				return err
			}
		}
	}
	return nil
}
