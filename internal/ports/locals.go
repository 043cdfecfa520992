package ports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/proto/tcp"
)

// Local is one address of a host, with the ports that the host has there.
type Local struct {
	Addr     netip.Addr
	UDP, TCP *Ports
}

// Locals are the addresses of a host: the IPv4 address, the global IPv6 address and the
// link-local one, those of them that it has.
type Locals []*Local

// NewLocals makes the addresses of a host; owned: it owns them.
func NewLocals(lease endpoint.Lease, owned bool, addrs ...netip.Addr) (all Locals) {
	for _, a := range addrs {
		none := netip.AddrPortFrom(a, 0)
		all = append(all, &Local{a, newPorts(lease, endpoint.UDPTag(none), owned), newPorts(lease, endpoint.TCPTag(none), owned)})
	}
	return all
}

// At is the address a of the host; nil: it is not one of them.
func (all Locals) At(a netip.Addr) *Local {
	if i := slices.IndexFunc(all, func(l *Local) bool { return l.Addr == a }); i >= 0 {
		return all[i]
	}
	return nil
}

// Choose and Release make the TCP ports of all addresses a [stack.TCPPorts].
func (all Locals) Choose(a netip.Addr, pick func([]tcp.PortBlock) uint16) uint16 {
	return all.At(a).TCP.Choose(pick)
}

func (all Locals) Release(a netip.Addr, port uint16) { all.At(a).TCP.Release(port) }

// UDP and TCP select ports for [Locals.Get].
func UDP(l *Local) *Ports { return l.UDP }
func TCP(l *Local) *Ports { return l.TCP }

// Family is the part of the addresses that a network is for: those of "tcp4" are IPv4, those of
// "tcp6" IPv6, those of "tcp" both.
func (all Locals) Family(network string) Locals {
	var some Locals
	for _, l := range all {
		if InFamily(network, l.Addr) {
			some = append(some, l)
		}
	}
	return some
}

// InFamily reports whether a network, such as "tcp4", has addresses of the family of a.
func InFamily(network string, a netip.Addr) bool {
	switch network[len(network)-1] {
	case '4':
		return a.Is4()
	case '6':
		return a.Is6()
	}
	return true
}

// errLoopback is the reason why no socket of a host can have or reach a loopback address.
var errLoopback = errors.New("loopback addresses are the kernel's: use package net, or an address of the interface")

// ForListen returns the addresses at which a listener or an unconnected socket of a network that
// asks for a receives, and the address that it is bound to. As in package net an unspecified
// address, of either family, stands for all addresses of "tcp" or "udp". Other addresses must be
// the host's: the error is EADDRNOTAVAIL.
func (all Locals) ForListen(network string, a netip.Addr) (Locals, netip.Addr, error) {
	a = a.Unmap()
	if a.IsValid() && !a.IsUnspecified() {
		switch l := all.Family(network).At(a.WithZone("")); {
		case l != nil:
			return Locals{l}, l.Addr, nil
		case a.IsLoopback():
			return nil, a, fmt.Errorf("%w: %w", syscall.EADDRNOTAVAIL, errLoopback)
		}
		return nil, a, syscall.EADDRNOTAVAIL
	}
	some := all.Family(network)
	switch len(some) {
	case 0:
		return nil, a, fmt.Errorf("%w: the host has no address for %s", syscall.EADDRNOTAVAIL, network)
	case 1:
		return some, some[0].Addr, nil
	}
	return some, netip.IPv6Unspecified(), nil
}

// ForDial returns the local address of a socket that is connected to remote and asks for a, which
// is one of the host's or unspecified: for a link-local remote, or group, the link-local one, for another
// IPv6 address the global one (RFC 6724, section 5, rule 2). Errors: EADDRNOTAVAIL if a is not
// the host's, ENETUNREACH if the host has no address to reach remote from, EINVAL for addresses
// of two families, ECONNREFUSED for loopback addresses and the unspecified address, which
// package net dials as loopback.
func (all Locals) ForDial(a, remote netip.Addr) (*Local, error) {
	a, remote = a.Unmap(), remote.Unmap()
	if remote.IsLoopback() || remote.IsUnspecified() || !remote.IsValid() {
		return nil, fmt.Errorf("%w: %w", syscall.ECONNREFUSED, errLoopback)
	}
	if a.IsValid() && !a.IsUnspecified() {
		some, _, err := all.ForListen("any", a)
		switch {
		case err != nil:
			return nil, err
		case a.Is4() != remote.Is4():
			return nil, syscall.EINVAL
		}
		return some[0], nil
	}
	linkLocal := remote.Is6() && (remote.IsLinkLocalUnicast() || remote.IsLinkLocalMulticast())
	for _, l := range all {
		if l.Addr.Is4() == remote.Is4() && l.Addr.IsLinkLocalUnicast() == linkLocal {
			return l, nil
		}
	}
	// An owned address is the only one of its family, and serves all destinations.
	for _, l := range all {
		if l.Addr.Is4() == remote.Is4() {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%w: the host has no %s address", syscall.ENETUNREACH, familyName(remote))
}

func familyName(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// samePortTries is how many free ports are tried until one is free at all addresses.
const samePortTries = 16

// Get makes the caller a user of the same port at several addresses until it calls release:
// see [Ports.Get]. Addresses at which the host may have no such port are left out if there is
// another one; so are addresses that the interface does not have now.
func (all Locals) Get(ctx context.Context, of func(*Local) *Ports, number uint16, outgoing bool) (port uint16, release func(), err error) {
	for range samePortTries {
		port, release, err = all.getOnce(ctx, of, number, outgoing)
		if number != 0 || !errors.Is(err, endpoint.ErrTagHeld) && !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return port, release, err
}

func (all Locals) getOnce(ctx context.Context, of func(*Local) *Ports, number uint16, outgoing bool) (port uint16, release func(), err error) {
	var back []func()
	release = func() {
		for _, f := range back {
			f()
		}
	}
	var denied error
	port = number
	for _, l := range all {
		got, f, err := of(l).Get(ctx, port, outgoing)
		switch {
		case err == nil:
			port, back = got, append(back, f)
		case !errors.Is(err, endpoint.ErrTagDenied):
			release()
			return 0, nil, err
		case denied == nil:
			denied = err
		}
	}
	if back == nil {
		return 0, nil, denied
	}
	return port, release, nil
}
