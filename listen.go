package unet

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
)

// The sockets are those of package stack.
type (
	TCPConn     = stack.TCPConn     // a net.Conn
	TCPListener = stack.TCPListener // a net.Listener
	UDPConn     = stack.UDPConn     // a net.PacketConn, and a net.Conn if it was dialled
	Data        = stack.TCPData     // received data of a connection, in the memory it came in
	Message     = stack.UDPMessage  // a datagram of a batch
	Datagram    = stack.UDPDatagram // a received datagram, in the memory it came in
	Buffer      = stack.UDPBuffer   // a frame to compose a datagram in
)

// keepAlive is the initial setting of connections, as in package net.
var keepAlive = tcp.KeepAlive{Enable: true}

// Listen is net.Listen on this host, for "tcp" and "tcp4". An empty or
// unspecified address is the host's; port 0 is a free one.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	local, err := resolve(ctx, network, address, "tcp", "tcp4")
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	l, err := h.ListenTCP(ctx, local)
	if err != nil {
		return nil, err // a nil interface, not one that holds a nil pointer
	}
	return l, nil
}

// ListenPacket is net.ListenPacket on this host, for "udp" and "udp4". An empty
// or unspecified address is the host's; port 0 is a free one.
func (h *Host) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	local, err := resolve(ctx, network, address, "udp", "udp4")
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	c, err := h.ListenUDP(ctx, local)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Dial is net.Dial on this host, for "tcp", "tcp4", "udp" and "udp4".
func (h *Host) Dial(network, address string) (net.Conn, error) {
	return h.DialContext(context.Background(), network, address)
}

// DialContext is Dial with a context, which limits how long opening the socket may
// take. After that the end of the context has no effect.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	remote, err := resolve(ctx, network, address, "tcp", "tcp4", "udp", "udp4")
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

// ListenTCP is Listen for a numeric address. The host can use the port again when the
// listener is closed and the connections accepted there have ended. Other processes can
// claim it a moment later, when unetd has taken it back.
func (h *Host) ListenTCP(ctx context.Context, asked netip.AddrPort) (*TCPListener, error) {
	fail := func(err error) (*TCPListener, error) {
		return nil, opError("tcp", "listen", asked, netip.AddrPort{}, h.openError(ctx, "bind", err))
	}
	local, err := h.local(asked)
	if err != nil {
		return fail(err)
	}
	port, giveBack, err := h.tcpPorts.get(ctx, local.Port(), false)
	if err != nil {
		return fail(err)
	}
	l, err := h.stack.ListenTCP(netip.AddrPortFrom(local.Addr(), port), stack.TCPListenOptions{
		TCPOptions: stack.TCPOptions{KeepAlive: keepAlive, Released: giveBack},
	})
	if err != nil {
		giveBack()
		return fail(err)
	}
	return l, nil
}

// DialTCP opens a connection to remote. A zero local address stands for the host's. Port 0
// stands for a port from which there is no connection to remote: connections to different
// destinations share ports. If the host shares its address, it claims such ports when it
// has none left for a destination: a block of [endpoint.BlockPorts], or a single port if
// it gets no block. EADDRNOTAVAIL: it gets no more ports.
func (h *Host) DialTCP(ctx context.Context, asked, remote netip.AddrPort) (*TCPConn, error) {
	fail := func(call string, err error) (*TCPConn, error) {
		return nil, opError("tcp", "dial", asked, remote, h.openError(ctx, call, err))
	}
	if !remote.IsValid() || remote.Port() == 0 {
		return fail("connect", syscall.EINVAL)
	}
	local, err := h.local(asked)
	if err != nil {
		return fail("bind", err)
	}
	options := stack.TCPOptions{KeepAlive: keepAlive}
	if local.Port() == 0 {
		c, err := h.dialFromAny(ctx, local, remote, options)
		if err != nil {
			return fail("connect", err)
		}
		return c, nil
	}
	_, giveBack, err := h.tcpPorts.get(ctx, local.Port(), true)
	if err != nil {
		return fail("bind", err)
	}
	options.Released = giveBack
	c, err := h.stack.DialTCP(ctx, local, remote, options)
	if err != nil {
		giveBack()
		return fail("connect", err)
	}
	return c, nil
}

// dialFromAny opens a connection from a port that the stack chooses. A host that shares
// its address claims more ports if it has a connection to remote from each port it has.
func (h *Host) dialFromAny(ctx context.Context, local, remote netip.AddrPort, o stack.TCPOptions) (*TCPConn, error) {
	for refused := error(nil); ; {
		seen := h.tcpPorts.count()
		c, err := h.stack.DialTCP(ctx, local, remote, o)
		if err != stack.ErrNoPort {
			return c, err
		}
		if refused != nil {
			return nil, refused
		}
		refused = h.tcpPorts.obtain(ctx, seen)
	}
}

// ListenUDP is ListenPacket for a numeric address. Close gives the port back. Other
// processes can claim it a moment later, when unetd has taken it back.
func (h *Host) ListenUDP(ctx context.Context, local netip.AddrPort) (*UDPConn, error) {
	return h.openUDP(ctx, "listen", local, netip.AddrPort{})
}

// DialUDP connects a socket to remote: it sends to that address and receives from no
// other. A zero local address stands for the host's, with a free port. The host claims
// such ports in blocks of [endpoint.BlockPorts], if it may, so that at most one dial in so
// many has to wait for unetd.
func (h *Host) DialUDP(ctx context.Context, local, remote netip.AddrPort) (*UDPConn, error) {
	if !remote.IsValid() || remote.Port() == 0 {
		return nil, opError("udp", "dial", local, remote, stack.SysError("connect", syscall.EINVAL))
	}
	if ctx.Err() != nil { // also if there is a port for which nothing has to wait
		return nil, opError("udp", "dial", local, remote, h.openError(ctx, "bind", context.Cause(ctx)))
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
	port, giveBack, err := h.udpPorts.get(ctx, local.Port(), remote.IsValid())
	if err != nil {
		return fail(err)
	}
	local = netip.AddrPortFrom(local.Addr(), port)
	var c *UDPConn
	if remote.IsValid() {
		c, err = h.stack.DialUDP(local, remote, stack.UDPOptions{Released: giveBack})
	} else {
		c, err = h.stack.ListenUDP(local, stack.UDPOptions{Released: giveBack})
	}
	if err != nil {
		giveBack()
		return fail(err)
	}
	return c, nil
}

// OpenUDPPort makes h the receiver of the datagrams to a local port, in the goroutine that
// polls: it is for protocols above UDP, like that of package verbs. The host claims the port
// as for ListenUDP, and [stack.UDPPort.Close] gives it back.
func (h *Host) OpenUDPPort(ctx context.Context, asked netip.AddrPort, handler stack.UDPHandler) (*stack.UDPPort, error) {
	fail := func(err error) (*stack.UDPPort, error) {
		return nil, opError("udp", "listen", asked, netip.AddrPort{}, h.openError(ctx, "bind", err))
	}
	local, err := h.local(asked)
	if err != nil {
		return fail(err)
	}
	port, giveBack, err := h.udpPorts.get(ctx, local.Port(), false)
	if err != nil {
		return fail(err)
	}
	p, err := h.stack.OpenUDPPort(netip.AddrPortFrom(local.Addr(), port), handler, giveBack)
	if err != nil {
		giveBack()
		return fail(err)
	}
	return p, nil
}

// local returns the address that a socket is bound to: the given one, or the host's if
// none is given. The error for an address that is not the host's is EADDRNOTAVAIL.
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

// resolve reads an address as package net does, with names of hosts and ports. network
// must be one of networks.
func resolve(ctx context.Context, network, address string, networks ...string) (netip.AddrPort, error) {
	if !slices.Contains(networks, network) {
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
