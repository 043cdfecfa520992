package stack

import (
	"net/netip"
	"strings"
	"syscall"

	"github.com/unet-go/unet/wire"
)

// addresses are the addresses of the configuration.
func (cfg *Config) addresses(mtu int) (addr wire.Addr, addrs6 [2]wire.Addr, err error) {
	if cfg.Addr.IsValid() || len(cfg.Addrs6) == 0 {
		addr = wire.AddrFrom(cfg.Addr.Addr())
		if !cfg.Addr.IsValid() || !cfg.Addr.Addr().Is4() || addr == wire.Any4 || cfg.Addr.Addr().IsMulticast() {
			return addr, addrs6, errAddr
		}
	}
	for _, p := range cfg.Addrs6 {
		a, i := wire.AddrFrom(p.Addr()), 0
		if a.IsLinkLocal() {
			i = 1
		}
		if !p.IsValid() || a.Is4() || !a.IsHost() || a.IsLoopback() || addrs6[i] != (wire.Addr{}) || mtu < wire.MinIPv6MTU {
			return addr, addrs6, errAddrs6
		}
		addrs6[i] = a
	}
	return addr, addrs6, nil
}

func (s *Stack) hasIPv6() bool { return s.addrs6 != [2]wire.Addr{} }

// isOurs reports whether a is an address of the stack.
func (s *Stack) isOurs(a wire.Addr) bool {
	return (a == s.addr || a == s.addrs6[0] || a == s.addrs6[1]) && a != wire.Addr{}
}

// source is the address that packets to dst come from: for a link-local destination the
// link-local one (so for a group of that scope), for another IPv6 destination the global one, if there are both (RFC 6724,
// section 5, rule 2). Zero: the stack has no address of that family.
func (s *Stack) source(dst wire.Addr) wire.Addr {
	if dst.Is4() {
		return s.addr
	}
	first, second := s.addrs6[0], s.addrs6[1]
	if dst.IsLinkLocal() || dst.IsLinkLocalMulticast() {
		first, second = second, first
	}
	if first == (wire.Addr{}) {
		return second
	}
	return first
}

// loopback is where the kernel sends what is sent to the unspecified address.
func (s *Stack) loopback(network string) wire.Addr {
	if strings.HasSuffix(network, "6") || s.addr == (wire.Addr{}) {
		return wire.AddrFrom(netip.IPv6Loopback())
	}
	return wire.AddrFrom4([4]byte{127, 0, 0, 1})
}

// remoteEnd converts the remote address of a socket. The zone of a link-local one is not looked
// at: it is the link. EAFNOSUPPORT: the stack has no address of its family.
// ENETUNREACH: it is the address that [wire.Any6] stands for.
func (s *Stack) remoteEnd(remote netip.AddrPort, network string) (wire.AddrPort, error) {
	r := wire.AddrPortFrom(remote)
	switch {
	case r.Addr == wire.Any6: // no wildcard of the caller's, but ff..ff
		return r, syscall.ENETUNREACH
	case r.Addr.IsWildcard():
		r.Addr = s.loopback(network)
	case s.source(r.Addr) == wire.Addr{}:
		return r, syscall.EAFNOSUPPORT
	}
	return r, nil
}

// localEnd converts the local address of a socket of a network that is to be connected to
// remote, or, if that is zero, not. An unspecified address becomes the source for remote, or
// the wildcard: that of both families for ::, unless the network is of one. EADDRNOTAVAIL: the
// address is not the stack's; EAFNOSUPPORT: the stack has none of its family; EINVAL: it is not
// of the family of remote.
func (s *Stack) localEnd(local netip.AddrPort, remote wire.Addr, network string) (wire.AddrPort, error) {
	l := wire.AddrPortFrom(local)
	switch {
	case l.Addr == wire.Any6: // ff..ff
		return l, syscall.EADDRNOTAVAIL
	case l.Addr.IsWildcard() && remote.IsLoopback():
		l.Addr = remote
	case l.Addr.IsWildcard() && remote != wire.Addr{}:
		l.Addr = s.source(remote)
	case l.Addr == wire.Addr{}:
		switch {
		case strings.HasSuffix(network, "4"):
			l.Addr = wire.Any4
		case strings.HasSuffix(network, "6"):
			l.Addr = wire.Any6
		}
	case l.Addr == wire.Any4:
	case l.Addr.IsLoopback() && remote.IsLoopback():
	case s.source(l.Addr) == wire.Addr{}:
		return l, syscall.EAFNOSUPPORT
	case !s.isOurs(l.Addr):
		return l, syscall.EADDRNOTAVAIL
	}
	if remote != (wire.Addr{}) && l.Addr.Is4() != remote.Is4() {
		return l, syscall.EINVAL
	}
	return l, nil
}
