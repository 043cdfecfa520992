//go:build linux

package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/share"
)

// addresses are the IPv4 and IPv6 addresses of a host.
type addresses struct {
	host []hostAddr // all addresses
	// uplink are the addresses of the uplink on which ports can be claimed, with their
	// subnets, in the order in which a wildcard prefers them.
	uplink []netip.Prefix
	unfit  map[netip.Addr]string     // the uplink's other addresses, and the reason
	nat    map[netip.Addr]*nat.Ports // ports of these addresses that are translated; set by query
}

// addresses reads the addresses from the kernel, without nat.
func (m *Mux) addresses() (addresses, error) {
	list, err := route.Dump(func() ([]netlink.Addr, error) { return m.nl.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return addresses{}, fmt.Errorf("addresses of the host: %w", err)
	}
	found := addresses{unfit: map[netip.Addr]string{}}
	rank := map[netip.Addr]int{}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		brd, _ := netip.AddrFromSlice(a.Broadcast)
		bits, _ := a.Mask.Size()
		found.host = append(found.host, hostAddr{Addr: ip, bits: bits, ifindex: a.LinkIndex, flags: a.Flags, broadcast: brd.Unmap()})
		if a.LinkIndex != m.up.Index {
			continue
		}
		if why := unfit(ip, a.Flags); why != "" {
			found.unfit[ip] = why
			continue
		}
		rank[ip] = rankOf(ip, a.Flags)
		found.uplink = append(found.uplink, netip.PrefixFrom(ip, bits))
	}
	slices.SortStableFunc(found.uplink, func(a, b netip.Prefix) int { return cmp.Compare(rank[a.Addr()], rank[b.Addr()]) })
	return found, nil
}

// Addresses are the addresses of the uplink on which ports can be claimed, with their subnets.
func (m *Mux) Addresses() ([]netip.Prefix, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	own, err := m.addresses()
	return own.uplink, err
}

// unfit is the reason why no ports can be claimed on an IPv6 address of the uplink: duplicate
// address detection has failed or is in progress. "": ports can be claimed.
func unfit(ip netip.Addr, flags int) string {
	switch {
	case ip.Is4():
	case flags&unix.IFA_F_DADFAILED != 0:
		return "another host has this address too (duplicate address detection failed)"
	case flags&unix.IFA_F_TENTATIVE != 0:
		return "duplicate address detection of this address is in progress: try again in a second"
	}
	return ""
}

// rankOf orders addresses for a wildcard: primary IPv4 addresses, secondary IPv4 addresses,
// IPv6 addresses, temporary ones (RFC 8981), which the host replaces, deprecated ones (RFC 4862,
// section 5.5.4), link-local ones. Equal ranks stay in the kernel's order: of IPv6 addresses it
// lists that first which it prefers as a source.
func rankOf(ip netip.Addr, flags int) int {
	switch {
	case ip.Is4() && flags&unix.IFA_F_SECONDARY == 0:
		return 0
	case ip.Is4():
		return 1
	case ip.IsLinkLocalUnicast():
		return 5
	case flags&unix.IFA_F_DEPRECATED != 0:
		return 4
	case flags&unix.IFA_F_TEMPORARY != 0: // the flag is IFA_F_SECONDARY of IPv4
		return 3
	}
	return 2
}

// ofHost reports whether the host has an address, on any interface.
func (own *addresses) ofHost(a netip.Addr) bool {
	return slices.ContainsFunc(own.host, func(h hostAddr) bool { return h.Addr == a })
}

// first is the address of the uplink that a wildcard stands for. A wildcard that is not valid
// stands for either family.
func (own *addresses) first(wildcard netip.Addr) (netip.Addr, bool) {
	for _, p := range own.uplink {
		if !wildcard.IsValid() || wildcard.Is4() == p.Addr().Is4() {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// known are the addresses of the uplink as leases know them: an IPv4 address that the uplink has
// in several subnets has the first.
func (own *addresses) known() (list []netip.Prefix) {
	has := map[netip.Addr]bool{}
	for _, p := range own.uplink {
		if !has[p.Addr()] {
			has[p.Addr()] = true
			list = append(list, p)
		}
	}
	return list
}

// A port or block is in effect as long as the uplink has its address (ADR 28). While the uplink
// does not have it, another host may, and the tag is suspended. An endpoint ends when the host
// takes an address that the endpoint holds as a whole.

// updateAddresses compares the tags with the present addresses of the host. One goroutine
// calls it, after an event or when events were lost.
//
// It holds m.mu while it reads the addresses. So a change during a claim is found at least
// once: here, or in stillTrue.
func (m *Mux) updateAddresses() error {
	m.mu.Lock()
	own, err := m.addresses()
	if err != nil {
		m.mu.Unlock()
		return err
	}
	taken, err := m.follow(own)
	err = errors.Join(err, m.putOwn(own))
	known := own.known()
	m.own.Store(&known)
	for _, l := range m.leases { // their tags have followed
		l.tellAddresses(known) // +checklocksignore: a lease of this mux
	}
	m.mu.Unlock()

	for l, why := range taken {
		o, _ := l.holder()
		cerr := l.close(fmt.Errorf("%w: %s", ErrAddrTaken, why))
		m.log.Warn("endpoint ended: the host has taken the address that it owned", "endpoint", l.id, "uid", o.UID, "pid", o.PID, "why", why, "error", cerr)
	}
	return err
}

// follow puts tags into effect or suspends them. taken are the leases whose owned address the host
// has taken, and how. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) follow(own addresses) (taken map[*Lease]string, err error) {
	taken = map[*Lease]string{}
	lost, back := map[netip.Addr]int{}, map[netip.Addr]int{} // number of tags by address
	for t, c := range m.tags.held {
		if t.Kind == endpoint.TagAddr {
			why := own.notOfHost(t.Addr, m.up.Index) // by a new subnet
			if own.ofHost(t.Addr) {
				why = "an address of the host"
			}
			if why != "" {
				taken[c.by] = fmt.Sprintf("%v, which the endpoint owned, is now %s", t.Addr, why)
				delete(m.announcer.due, t.Addr)
			}
		}
		if !hasPorts(t) || m.tags.held[endpoint.AddrTag(t.Addr)] != nil {
			continue
		}
		here := own.has(t.Addr)
		if here == c.suspended {
			if serr := m.setEffect(t, c.by, here); serr != nil {
				err = errors.Join(err, fmt.Errorf("suspend %v, or put it into effect: %w", t, serr))
				continue
			}
			if c.suspended = !here; here {
				back[t.Addr]++
			} else {
				lost[t.Addr]++
			}
		}
	}
	for a, n := range lost {
		delete(m.announcer.due, a) // another host may have it
		m.log.Warn("the uplink has lost an address: tags on it are suspended until it is back", "interface", m.up.Name, "addr", a, "tags", n)
	}
	for a, n := range back {
		m.announcer.begin(a, false)
		m.log.Info("the uplink has an address again: tags on it are in effect", "interface", m.up.Name, "addr", a, "tags", n)
	}
	return taken, err
}

// notOfHost is the reason why no host can have an address of the uplink's network; "": one can. Subnets of the uplink
// can overlap: one may contain the broadcast address of another as an ordinary one.
func (own *addresses) notOfHost(a netip.Addr, uplink int) string {
	for _, p := range own.uplink {
		switch {
		case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == broadcast(p)):
			return fmt.Sprintf("the network's or broadcast address of %v", p.Masked())
		case a.Is6() && p.Bits() < 127 && a == p.Masked().Addr(): // RFC 4291, 2.6.1, and RFC 6164
			return fmt.Sprintf("the anycast address of the routers of %v", p.Masked())
		}
	}
	if slices.Contains(own.broadcasts(uplink), a) {
		return "a broadcast address of the uplink"
	}
	return ""
}

// has reports whether a is an address of the uplink on which ports can be claimed.
func (own *addresses) has(a netip.Addr) bool {
	return slices.ContainsFunc(own.uplink, func(p netip.Prefix) bool { return p.Addr() == a })
}

// stillTrue checks tags that were just added against the present addresses of the host. m.mu
// is held.
//
// +checklocks:m.mu
func (m *Mux) stillTrue(tags []endpoint.Tag) error {
	own, err := m.addresses()
	if err != nil {
		return err
	}
	for _, t := range tags {
		switch {
		case isGroup(t):
		case t.Kind == endpoint.TagAddr:
			if own.ofHost(t.Addr) {
				return denied(t, "the host has just taken this address")
			}
			if why := own.notOfHost(t.Addr, m.up.Index); why != "" {
				return denied(t, "%s", why)
			}
		case hasPorts(t) && m.tags.held[endpoint.AddrTag(t.Addr)] == nil:
			if err := own.mayShare(t, m.up.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// An owned address is an address of the uplink's network that neither the host, a neighbour nor
// a router has. Its endpoint answers ARP requests or neighbour solicitations for it, and
// receives what other endpoints send there. So an endpoint that claimed the address of another
// host would get that host's traffic.

// setAside sets the owned addresses of a request aside for it, all or none. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) setAside() error {
	for _, a := range c.owned {
		t := endpoint.AddrTag(a)
		err := c.m.tags.checkFree(c.l, t)
		switch {
		case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
			err = denied(t, "not the address of a host")
		case err == nil && c.m.aside[a]:
			err = held(t, "another claim of it is in progress")
		}
		if err != nil {
			c.freeAside()
			return err
		}
		c.m.aside[a] = true
		c.aside = append(c.aside, a)
	}
	return nil
}

// freeAside undoes setAside. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) freeAside() {
	for _, a := range c.aside {
		delete(c.m.aside, a)
	}
	c.aside = nil
}

// vacant checks that the owned addresses of a request are in the uplink's network and that no
// host has them: first in the kernel's tables, then by probes on the network.
func (c *claiming) vacant(ctx context.Context) error {
	m := c.m
	if len(c.owned) == 0 {
		return nil
	}
	hops, err := m.routes.NextHops()
	if err != nil {
		return err
	}
	for _, a := range c.owned {
		if err := c.vacantToKernel(a, hops); err != nil {
			return err
		}
	}
	user := share.ByUID(c.l.uid)
	for some := range route.Probes(c.owned) { // a turn for each, so that nobody waits for all probes of a request
		if !m.probes.Wait(ctx, user) {
			return context.Cause(ctx)
		}
		err = m.routes.Vacant(ctx, m.up.Addr, some)
		m.probes.Return(user, 1)
		var used *route.InUse
		if errors.As(err, &used) {
			return held(endpoint.AddrTag(used.Addr), "the host at MAC address %v has it", used.At)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The numbers of probes of the network at the same time, of all users and of one: each has
// a socket, which gets a copy of each ARP frame.
const (
	probesAtOnce = 32
	probesPerUID = 4
)

// joinGroup makes the uplink a member of the solicited-node group of an IPv6 address, as long
// as the descriptor is open. An IPv4 address needs none: ARP requests are broadcast.
func (r *reserver) joinGroup(a netip.Addr) (fds []int, err error) {
	if a.Is4() {
		return nil, nil
	}
	fd, err := route.JoinSolicited(r.ifindex, a)
	if err != nil {
		return nil, err
	}
	return []int{fd}, nil
}

// vacantToKernel checks an owned address against the kernel's tables: addresses, subnets,
// translation, routes (hops) and neighbours.
func (c *claiming) vacantToKernel(a netip.Addr, hops map[netip.Addr]bool) error {
	m, t, own := c.m, endpoint.AddrTag(a), c.own
	if own.ofHost(a) {
		return denied(t, "the host has this address itself")
	}
	if !slices.ContainsFunc(own.uplink, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return denied(t, "not in a subnet of the uplink %s", m.up.Name)
	}
	if why := own.notOfHost(a, m.up.Index); why != "" {
		return denied(t, "%s", why)
	}
	translated := own.nat[a]
	if !translated.Empty() {
		return held(t, "network address translation of this host uses it (nft list ruleset, conntrack -L)")
	}
	if by := translated.MayUseBy(); by != "" { // rules that cannot be read
		if err := c.rule.Translated(t, by); err != nil {
			return err
		}
	}
	if hops[a] {
		return denied(t, "it is the next hop of a route of this host (ip route show table all via %v)", a)
	}
	at, known, err := m.routes.Neighbour(a)
	if err != nil {
		return err
	}
	if known && at != m.up.Addr {
		return held(t, "it is the neighbour at %v (if that host is gone: ip neigh del %v dev %s)", at, a, m.up.Name)
	}
	return nil
}

// addAddr adds an owned address that was set aside and is vacant. m.mu is held and the
// calling thread is in the uplink's namespace.
//
// +checklocks:c.m.mu
func (c *claiming) addAddr(t endpoint.Tag) error {
	if n := c.m.tags.onAddr[t.Addr]; n > 0 { // the host had the address a moment ago, and its tags are left
		return held(t, "%d tags of ports are on it", n)
	}
	fds, err := c.r.joinGroup(t.Addr)
	if err != nil {
		return fmt.Errorf("claim %v: %w", t, err)
	}
	return c.addTag(t, fds)
}

// broadcast is the last address of an IPv4 subnet.
func broadcast(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}

// mayShare returns nil if ports of t's address, which no lease holds as a whole, can be claimed.
func (own *addresses) mayShare(t endpoint.Tag, uplink string) error {
	if own.has(t.Addr) {
		return nil
	}
	if why := own.unfit[t.Addr]; why != "" {
		return denied(t, "%s", why)
	}
	return fmt.Errorf("%w: %v: the uplink %s does not have this address", endpoint.ErrNoAddr, t, uplink)
}
