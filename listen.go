package unet

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
)

// ListenPacket is net.ListenPacket on this host, for "udp" and "udp4". An empty
// or unspecified address is the host's; port 0 is a free one.
func (h *Host) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	if network == "tcp" || network == "tcp4" {
		return nil, &net.OpError{Op: "listen", Net: network, Err: net.UnknownNetworkError(network)}
	}
	local, err := resolve(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	c, err := h.ListenUDP(ctx, local)
	if err != nil {
		return nil, err // a bare nil, not one in an interface
	}
	return c, nil
}

// ListenUDP is ListenPacket for an address in numbers.
func (h *Host) ListenUDP(ctx context.Context, local netip.AddrPort) (*UDPConn, error) {
	return h.openUDP(ctx, "listen", local, netip.AddrPort{})
}

// Dial is net.Dial on this host, for "tcp", "tcp4", "udp" and "udp4".
func (h *Host) Dial(network, address string) (net.Conn, error) {
	return h.DialContext(context.Background(), network, address)
}

// DialContext is Dial with a context. For TCP it bounds how long opening the
// connection may take.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	remote, err := resolve(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if network == "tcp" || network == "tcp4" {
		c, err := h.DialTCP(ctx, netip.AddrPort{}, remote)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	c, err := h.DialUDP(ctx, netip.AddrPort{}, remote)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialUDP connects a socket to remote, so that it talks to nobody else. A zero
// local address is the host's, with a free port. Such ports come from blocks of
// [endpoint.BlockPorts] that the host claims as a whole, if it may: only one dial
// in so many asks unetd.
func (h *Host) DialUDP(ctx context.Context, local, remote netip.AddrPort) (*UDPConn, error) {
	if !remote.IsValid() || remote.Port() == 0 {
		return nil, opError("udp", "dial", local, remote, sysError("connect", syscall.EINVAL))
	}
	return h.openUDP(ctx, "dial", local, remote)
}

func (h *Host) openUDP(ctx context.Context, op string, asked, remote netip.AddrPort) (*UDPConn, error) {
	fail := func(err error) (*UDPConn, error) {
		return nil, opError("udp", op, asked, remote, h.openError(ctx, "bind", err))
	}
	local, err := h.local(asked)
	if err != nil {
		return fail(err)
	}
	port, unclaim, err := h.claimPort(ctx, local, remote.IsValid())
	if err != nil {
		return fail(err)
	}
	local = netip.AddrPortFrom(local.Addr(), port)
	var sock *stack.UDPSocket
	if remote.IsValid() {
		sock, err = h.stack.DialUDP(local, remote, stack.UDPOptions{})
	} else {
		sock, err = h.stack.ListenUDP(local, stack.UDPOptions{})
	}
	if err != nil {
		unclaim()
		return fail(err)
	}
	return newUDPConn(sock, unclaim), nil
}

// local fills in the host's address, and refuses another one.
func (h *Host) local(local netip.AddrPort) (netip.AddrPort, error) {
	addr := local.Addr().Unmap()
	if !addr.IsValid() || addr.IsUnspecified() {
		addr = h.addr
	}
	local = netip.AddrPortFrom(addr, local.Port())
	if addr != h.addr {
		return local, syscall.EADDRNOTAVAIL
	}
	return local, h.lease.Err()
}

// claimPort makes a UDP port the host's until unclaim is called; 0 is a free one, for
// an outgoing socket one of a block.
func (h *Host) claimPort(ctx context.Context, local netip.AddrPort, outgoing bool) (port uint16, unclaim func(), err error) {
	if h.whole {
		return local.Port(), func() {}, nil
	}
	port = local.Port()
	var own bool
	switch {
	case port != 0:
		var free bool
		if own, free = h.ports.takeThis(port); own && !free {
			return 0, nil, syscall.EADDRINUSE
		}
	case outgoing:
		if port, err = h.ports.take(ctx); err != nil {
			return 0, nil, err
		}
		own = true
	}
	if own {
		return port, func() { h.givePort(h.ports, port) }, nil
	}
	tag, err := h.lease.Claim(ctx, endpoint.UDPTag(local))
	if err != nil {
		return 0, nil, err
	}
	return tag.Port, func() { h.unclaim(tag) }, nil
}

// givePort gives a port of a block back, and the block if it is not wanted any more.
func (h *Host) givePort(p *ports, port uint16) {
	if block, idle := p.give(port); idle {
		h.unclaim(block)
	}
}

// unclaim gives a tag back. It returns at once.
func (h *Host) unclaim(tag endpoint.Tag) { h.lease.Unclaim(context.Background(), tag) }

// resolve reads an address as package net does, names of hosts and ports
// included.
func resolve(ctx context.Context, network, address string) (netip.AddrPort, error) {
	switch network {
	case "tcp", "tcp4", "udp", "udp4":
	default:
		return netip.AddrPort{}, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := 0
	if service != "" {
		if port, err = net.DefaultResolver.LookupPort(ctx, network, service); err != nil {
			return netip.AddrPort{}, err
		}
	}
	if host == "" {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(addrs) == 0 {
		return netip.AddrPort{}, &net.AddrError{Err: "no IPv4 address", Addr: net.JoinHostPort(host, strconv.Itoa(port))}
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), uint16(port)), nil
}
