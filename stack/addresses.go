package stack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/unet-go/unet/wire"
)

// ends are the source and the destination of packets. A zero source: the one that the route service chooses.
type ends struct{ from, to wire.Addr }

// addresses are those of a stack. They are replaced as a whole when one is added or removed, so
// they can be read without the lock.
type addresses struct {
	list       []ownAddress // the first ones are preferred as sources
	all        []wire.Addr  // the same
	lost       []wire.Addr  // addresses in all that the host has lost and may get back
	broadcasts []wire.Addr  // of the IPv4 subnets
	ipv4, ipv6 bool         // there are addresses of that family
}

// ownAddress is an address with its subnet, and the number of its uplink.
type ownAddress struct {
	subnet netip.Prefix
	uplink int
}

var errAddrs = errors.New("stack: an address that no host has, or an IPv6 address with an MTU below 1280")

func newAddresses(list []ownAddress, lost []wire.Addr, uplinks []uplink) (*addresses, error) {
	own := &addresses{list: list, lost: lost}
	for _, o := range list {
		u, p := &uplinks[o.uplink], o.subnet
		a := u.scoped(wire.AddrFrom(p.Addr()))
		if !p.IsValid() || !a.IsHost() || a.IsLoopback() || !a.Is4() && u.mtu < wire.MinIPv6MTU {
			return nil, fmt.Errorf("%w: %v", errAddrs, p)
		}
		own.all = append(own.all, a)
		own.ipv4, own.ipv6 = own.ipv4 || a.Is4(), own.ipv6 || !a.Is4()
		if a.Is4() && p.Bits() < 31 { // those of 31 and 32 bits have none (RFC 3021)
			own.broadcasts = append(own.broadcasts, subnetBroadcast(p))
		}
	}
	slices.SortFunc(own.broadcasts, func(a, b wire.Addr) int { return a.Netip().Compare(b.Netip()) })
	own.broadcasts = slices.Compact(own.broadcasts)
	return own, nil
}

// number is that of the uplink of an address; 0 of others.
func (own *addresses) number(a wire.Addr) int {
	if i := slices.Index(own.all, a); i >= 0 {
		return own.list[i].uplink
	}
	return 0
}

// isOurs reports whether a is an address of the stack.
func (s *Stack) isOurs(a wire.Addr) bool { return slices.Contains(s.own.Load().all, a) }

// isOursOn is isOurs for the addresses of an uplink.
func (s *Stack) isOursOn(u *uplink, a wire.Addr) bool { return s.isOurs(a) && s.uplinkOf(a) == u }

// isRecent is isOurs for the destination of a packet, and notes it.
//
// +checklocks:s.mu
func (s *Stack) isRecent(a wire.Addr) bool {
	ours := s.isOurs(a)
	if ours {
		s.recent = a
	}
	return ours
}

// isBroadcast reports whether a is the broadcast address of a subnet of the stack.
func (s *Stack) isBroadcast(a wire.Addr) bool {
	for _, b := range s.own.Load().broadcasts { // without a call: each packet comes here
		if b == a {
			return true
		}
	}
	return false
}

// source is the address that packets to dst come from unless the route service knows a better
// one: one that the host has now, of dst's scope if there is one (RFC 6724, section 5, rule 2), in dst's
// subnet if there is one of these. A destination with a zone has a source of that uplink. sole: there is no other of the same scope. Zero: there is none
// of the family.
func (own *addresses) source(dst wire.Addr) (best wire.Addr, sole bool) {
	return own.sourceOn(dst.Zone(), dst)
}

// sourceOn is source among the addresses of the uplink with that zone; 0: of all.
func (own *addresses) sourceOn(zone uint16, dst wire.Addr) (best wire.Addr, sole bool) {
	linkLocal := dst.IsLinkLocal() || !dst.Is4() && dst.IsLinkLocalMulticast()
	bestFits, bestNear := false, false
	for i, a := range own.all {
		if a.Is4() != dst.Is4() || zone != 0 && own.list[i].uplink != int(zone)-1 || slices.Contains(own.lost, a) {
			continue
		}
		fits, near := a.IsLinkLocal() == linkLocal, own.list[i].subnet.Contains(dst.Netip())
		switch {
		case best == wire.Addr{}, fits && !bestFits:
			best, bestFits, bestNear, sole = a, fits, near, true
		case fits == bestFits:
			if sole = false; near && !bestNear {
				best, bestNear = a, true
			}
		}
	}
	return best, sole
}

// source is [addresses.source].
func (s *Stack) source(dst wire.Addr) wire.Addr {
	a, _ := s.own.Load().source(dst)
	return a
}

// sourceOn is the source of packets to dst that leave by u.
func (s *Stack) sourceOn(u *uplink, dst wire.Addr) wire.Addr {
	a, _ := s.own.Load().sourceOn(u.zone, dst)
	return a
}

// has reports whether there are addresses of the family of a.
func (own *addresses) has(a wire.Addr) bool { return a.Is4() && own.ipv4 || !a.Is4() && own.ipv6 }

// loopback is where the kernel sends what is sent to the unspecified address.
func (s *Stack) loopback(network string) wire.Addr {
	if strings.HasSuffix(network, "6") || !s.own.Load().ipv4 {
		return wire.AddrFrom(netip.IPv6Loopback())
	}
	return wire.AddrFrom4([4]byte{127, 0, 0, 1})
}

// remoteEnd converts the remote address of a socket. Of the only uplink, the zone of a link-local one is not looked
// at; of several it is needed: EINVAL. EAFNOSUPPORT: the stack has no address of its family.
// ENETUNREACH: it is the address that [wire.Any6] stands for.
func (s *Stack) remoteEnd(remote netip.AddrPort, network string) (wire.AddrPort, error) {
	r := s.addrPortOf(remote)
	switch {
	case s.lacksZone(r.Addr):
		return r, syscall.EINVAL
	case r.Addr == wire.Any6: // no wildcard of the caller's, but ff..ff
		return r, syscall.ENETUNREACH
	case r.Addr.IsWildcard():
		r.Addr = s.loopback(network)
	case !s.own.Load().has(r.Addr):
		return r, syscall.EAFNOSUPPORT
	}
	return r, nil
}

// localEnd converts the local address of a socket of a network that is to be connected to
// remote, or, if that is zero, not. An unspecified address becomes the source for remote, or
// the wildcard: that of both families for ::, unless the network is of one. EADDRNOTAVAIL: the
// address is not the stack's; EAFNOSUPPORT: the stack has none of its family; EINVAL: it is not
// of the family of remote; ENETUNREACH: no address of the family is there now.
func (s *Stack) localEnd(local netip.AddrPort, remote wire.Addr, network string) (wire.AddrPort, error) {
	l := s.addrPortOf(local)
	switch {
	case s.lacksZone(l.Addr):
		return l, syscall.EINVAL
	case l.Addr == wire.Any6: // ff..ff
		return l, syscall.EADDRNOTAVAIL
	case l.Addr.IsWildcard() && remote.IsLoopback():
		l.Addr = remote
	case l.Addr.IsWildcard() && remote != wire.Addr{}:
		if l.Addr = s.source(remote); l.Addr == (wire.Addr{}) {
			return l, syscall.ENETUNREACH
		}
	case l.Addr == wire.Addr{}:
		switch {
		case strings.HasSuffix(network, "4"):
			l.Addr = wire.Any4
		case strings.HasSuffix(network, "6"):
			l.Addr = wire.Any6
		}
	case l.Addr == wire.Any4:
	case l.Addr.IsLoopback() && remote.IsLoopback():
	case !s.own.Load().has(l.Addr):
		return l, syscall.EAFNOSUPPORT
	case !s.isOurs(l.Addr):
		return l, syscall.EADDRNOTAVAIL
	}
	if remote != (wire.Addr{}) && l.Addr.Is4() != remote.Is4() {
		return l, syscall.EINVAL
	}
	return l, nil
}

// lacksZone reports whether a is a link-local address that says nothing about its uplink.
func (s *Stack) lacksZone(a wire.Addr) bool {
	return len(s.uplinks) > 1 && a.IsLinkLocal() && !a.Is4() && a.Zone() == 0
}

// shown is a local address as its socket shows it: instead of a wildcard, address a if that is valid.
func (s *Stack) shown(local wire.AddrPort, a netip.Addr) netip.AddrPort {
	if local.Addr.IsWildcard() && a.IsValid() {
		return netip.AddrPortFrom(a, local.Port)
	}
	return s.netipPort(local)
}
