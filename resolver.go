package unet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/unet-go/unet/internal/ports"
)

// Resolver resolves names as Go's resolver does, by /etc/hosts and /etc/resolv.conf, and
// asks the servers over sockets of this host, UDP and TCP. It uses sockets of the kernel for
// servers at loopback addresses, such as 127.0.0.53, and for those to which the host has no route
// (by UDP it learns that by the first query, which is then repeated), and for all servers if the
// policy gives the host no port (EACCES). [Dialer], [ListenConfig] and Dial use it. It does not ask
// the C library's resolvers (mDNS, LDAP). Hosts of package unettest have another resolver.
func (h *Host) Resolver() *net.Resolver {
	if h.names != nil {
		return h.names
	}
	return &net.Resolver{PreferGo: true, Dial: h.dialServer}
}

// dialServer opens a socket to a DNS server, whose address is numeric.
func (h *Host) dialServer(ctx context.Context, network, address string) (net.Conn, error) {
	if to, err := netip.ParseAddrPort(address); err == nil && to.Addr().Unmap().IsLoopback() {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	c, err := h.DialContext(ctx, network, address)
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENETUNREACH) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	if err == nil && isUDP(network) {
		return &serverConn{Conn: c, kernel: func() (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, address) }}, nil
	}
	return c, err
}

// errMissingAddress is package net's.
var errMissingAddress = errors.New("missing address")

// resolve reads an address as package net does, with names of hosts and ports: r, or the
// host's resolver if it is nil, looks them up. There is at least one result. network must be
// one of networks, or one of all if none are given.
func (h *Host) resolve(ctx context.Context, r *net.Resolver, op, network, address string, networks ...string) ([]netip.AddrPort, error) {
	if networks == nil {
		networks = []string{"tcp", "tcp4", "tcp6", "udp", "udp4", "udp6"}
	}
	switch {
	case !slices.Contains(networks, network):
		return nil, net.UnknownNetworkError(network)
	case address == "" && op == "dial":
		return nil, errMissingAddress
	case address == "":
		address = ":0"
	}
	name, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = h.Resolver()
	}
	port, err := r.LookupPort(ctx, network, service)
	if err != nil {
		return nil, err
	}
	addrs, err := h.lookup(ctx, r, network, name)
	if err != nil {
		return nil, err
	}
	list := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		list[i] = netip.AddrPortFrom(a.Unmap(), uint16(port))
	}
	if op == "listen" { // package net prefers an IPv4 address
		slices.SortStableFunc(list, func(a, b netip.AddrPort) int { return a.Addr().BitLen() - b.Addr().BitLen() })
		return list[:1], nil
	}
	return interleave(list), nil
}

// lookup returns the addresses of a name that are of the network's family. It asks r for those of
// families that the host has.
func (h *Host) lookup(ctx context.Context, r *net.Resolver, network, name string) ([]netip.Addr, error) {
	if name == "" {
		if ports.InFamily(network, netip.IPv4Unspecified()) {
			return []netip.Addr{netip.IPv4Unspecified()}, nil
		}
		return []netip.Addr{netip.IPv6Unspecified()}, nil
	}
	if a, err := netip.ParseAddr(name); err == nil {
		if !ports.InFamily(network, a.Unmap()) {
			return nil, &net.AddrError{Err: "no suitable address found", Addr: name}
		}
		return []netip.Addr{a}, nil
	}
	family := "ip" + strings.TrimLeft(network, "tcpud")
	if some := h.locals.Family(network); family == "ip" && len(some) > 0 {
		switch first, last := some[0].Addr, some[len(some)-1].Addr; {
		case last.Is4():
			family = "ip4"
		case first.Is6():
			family = "ip6"
		}
	}
	return r.LookupNetIP(ctx, family, name)
}

func isUDP(network string) bool { return strings.HasPrefix(network, "udp") }
