package unet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/unet-go/unet/internal/ports"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
)

// keepAlive is the initial setting of connections, as in package net.
var keepAlive = tcp.KeepAlive{Enable: true}

// The sockets are those of package stack.
type (
	TCPConn     = stack.TCPConn     // a net.Conn
	TCPListener = stack.TCPListener // a net.Listener
	UDPConn     = stack.UDPConn     // a net.PacketConn, and a net.Conn if it was dialled
	TCPData     = stack.TCPData     // received data of a connection, in the memory it came in
	UDPMessage  = stack.UDPMessage  // a datagram of a batch
	UDPDatagram = stack.UDPDatagram // a received datagram, in the memory it came in
	UDPBuffer   = stack.UDPBuffer   // a frame to compose a datagram in
)

// Listen is net.Listen on this host, for "tcp", "tcp4" and "tcp6": see [ListenConfig.Listen].
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return (&ListenConfig{Host: h}).Listen(ctx, network, address)
}

// ListenPacket is net.ListenPacket on this host, for "udp", "udp4" and "udp6": see
// [ListenConfig.ListenPacket].
func (h *Host) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	return (&ListenConfig{Host: h}).ListenPacket(ctx, network, address)
}

// Dial is net.Dial on this host: see [Dialer.DialContext].
func (h *Host) Dial(network, address string) (net.Conn, error) {
	return h.DialContext(context.Background(), network, address)
}

// DialContext is Dial with a context, which limits how long opening the socket may
// take. After that the end of the context has no effect. [Dialer] has options.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&Dialer{Host: h}).DialContext(ctx, network, address)
}

// ListenTCP is Listen for a numeric address. The host can use the port again when the
// listener is closed and the connections accepted there have ended. Other processes can
// claim it a moment later, when unetd has taken it back.
func (h *Host) ListenTCP(ctx context.Context, asked netip.AddrPort) (*TCPListener, error) {
	return h.listenTCP(ctx, "tcp", asked, stack.TCPListenOptions{TCPOptions: stack.TCPOptions{KeepAlive: keepAlive}})
}

func (h *Host) listenTCP(ctx context.Context, network string, asked netip.AddrPort, o stack.TCPListenOptions) (*TCPListener, error) {
	fail := func(err error) (*TCPListener, error) {
		return nil, opError(network, "listen", asked, netip.AddrPort{}, h.openError(ctx, "bind", err))
	}
	at, release, err := h.listenAt(ctx, ports.TCP, network, asked)
	if err != nil {
		return fail(err)
	}
	o.Released, o.Network, o.Shown = release, network, at.Shown
	l, err := h.stack.ListenTCP(netip.AddrPortFrom(at.Addr, at.Port), o)
	if err != nil {
		release()
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
	return h.dialTCP(ctx, "tcp", asked, remote, stack.TCPOptions{KeepAlive: keepAlive})
}

func (h *Host) dialTCP(ctx context.Context, network string, asked, remote netip.AddrPort, o stack.TCPOptions) (*TCPConn, error) {
	fail := func(call string, err error) (*TCPConn, error) {
		return nil, opError(network, "dial", asked, remote, h.openError(ctx, call, err))
	}
	if !remote.IsValid() || remote.Port() == 0 {
		return fail("connect", syscall.EINVAL)
	}
	l, call, err := h.dialFrom(ctx, ports.TCP, asked, remote.Addr())
	if err != nil {
		return fail(call, err)
	}
	o.Network = network
	if asked.Port() == 0 {
		c, err := h.dialFromAny(ctx, l, remote, o)
		if err != nil {
			return fail("connect", err)
		}
		return c, nil
	}
	_, release, err := l.TCP.Get(ctx, asked.Port(), true)
	if err != nil {
		return fail("bind", err)
	}
	o.Released = release
	c, err := h.stack.DialTCP(ctx, netip.AddrPortFrom(l.Addr, asked.Port()), remote, o)
	if err != nil {
		release()
		return fail("connect", err)
	}
	return c, nil
}

// dialFromAny opens a connection from a port that the stack chooses. A host that shares
// its address claims more ports if it has a connection to remote from each port it has.
func (h *Host) dialFromAny(ctx context.Context, l *ports.Local, remote netip.AddrPort, o stack.TCPOptions) (*TCPConn, error) {
	for refused := error(nil); ; {
		seen := l.TCP.Changes()
		c, err := h.stack.DialTCP(ctx, netip.AddrPortFrom(l.Addr, 0), remote, o)
		if err != stack.ErrNoPort {
			return c, err
		}
		if refused != nil {
			return nil, refused
		}
		refused = l.TCP.Obtain(ctx, seen)
	}
}

// ListenUDP is ListenPacket for a numeric address. Close gives the port back. Other
// processes can claim it a moment later, when unetd has taken it back.
func (h *Host) ListenUDP(ctx context.Context, local netip.AddrPort) (*UDPConn, error) {
	return h.openUDP(ctx, "listen", "udp", local, netip.AddrPort{}, stack.UDPOptions{})
}

// DialUDP connects a socket to remote: it sends to that address and receives from no
// other. A zero local address stands for the host's, with a free port. The host claims
// such ports in blocks of [endpoint.BlockPorts], if it may, so that at most one dial in so
// many has to wait for unetd.
func (h *Host) DialUDP(ctx context.Context, local, remote netip.AddrPort) (*UDPConn, error) {
	return h.dialUDP(ctx, "udp", local, remote, stack.UDPOptions{})
}

func (h *Host) dialUDP(ctx context.Context, network string, local, remote netip.AddrPort, o stack.UDPOptions) (*UDPConn, error) {
	if !remote.IsValid() || remote.Port() == 0 {
		return nil, opError(network, "dial", local, remote, stack.SysError("connect", syscall.EINVAL))
	}
	if ctx.Err() != nil { // also if there is a port for which nothing has to wait
		return nil, opError(network, "dial", local, remote, h.openError(ctx, "bind", context.Cause(ctx)))
	}
	return h.openUDP(ctx, "dial", network, local, remote, o)
}

func (h *Host) openUDP(ctx context.Context, op, network string, asked, remote netip.AddrPort, o stack.UDPOptions) (*UDPConn, error) {
	fail := func(call string, err error) (*UDPConn, error) {
		return nil, opError(network, op, asked, remote, h.openError(ctx, call, err))
	}
	var at ports.Binding
	var release func()
	var err error
	if remote.IsValid() {
		l, call, err := h.dialFrom(ctx, ports.UDP, asked, remote.Addr())
		if err != nil {
			return fail(call, err)
		}
		at.Addr = l.Addr
		at.Port, release, err = l.UDP.Get(ctx, asked.Port(), true)
		if err != nil {
			return fail("bind", err)
		}
	} else if at, release, err = h.listenAt(ctx, ports.UDP, network, asked); err != nil {
		return fail("bind", err)
	}
	local := netip.AddrPortFrom(at.Addr, at.Port)
	var c *UDPConn
	o.Released, o.Network, o.Groups, o.Shown = release, network, h.groups, at.Shown
	if remote.IsValid() {
		c, err = h.stack.DialUDP(local, remote, o)
	} else {
		c, err = h.stack.ListenUDP(local, o)
	}
	if err != nil {
		release()
		return fail("bind", err)
	}
	return c, nil
}

// openUDPPort is [hoststack.OpenUDPPort].
func (h *Host) openUDPPort(ctx context.Context, asked netip.AddrPort, handler stack.UDPHandler) (*stack.UDPPort, error) {
	fail := func(err error) (*stack.UDPPort, error) {
		return nil, opError("udp", "listen", asked, netip.AddrPort{}, h.openError(ctx, "bind", err))
	}
	addr := asked.Addr()
	if !addr.IsValid() || addr.IsUnspecified() {
		if addr = h.Addr(); !addr.IsValid() {
			return fail(fmt.Errorf("%w: the interface has no address", syscall.EADDRNOTAVAIL))
		}
	}
	at, release, err := h.listenAt(ctx, ports.UDP, "udp", netip.AddrPortFrom(addr, asked.Port()))
	if err != nil {
		return fail(err)
	}
	p, err := h.stack.OpenUDPPort(netip.AddrPortFrom(at.Addr, at.Port), handler, release)
	if err != nil {
		release()
		return fail(err)
	}
	return p, nil
}

// listenAt is Locals.Listen for a host whose lease has not ended, and a zone of the host. Of another zone
// the error is EADDRNOTAVAIL.
func (h *Host) listenAt(ctx context.Context, of func(*ports.Local) *ports.Ports, network string, asked netip.AddrPort) (at ports.Binding, release func(), err error) {
	a, zone := h.named(asked.Addr()), h.zoneError(syscall.EADDRNOTAVAIL, asked.Addr())
	if errors.Is(zone, syscall.EINVAL) {
		return at, nil, zone
	}
	if a.IsValid() && !a.IsUnspecified() {
		_, err = h.locals.ForBind(network, a)
	}
	if err = cmp.Or(err, zone, h.leaseErr()); err != nil {
		return at, nil, err
	}
	return h.locals.Listen(ctx, of, network, netip.AddrPortFrom(a, asked.Port()))
}

// dialFrom is Locals.ForDial for a host whose lease has not ended. Where any address will do, it is the one that the
// kernel would choose; while unetd is asked for that, ports of the likely one are claimed. call is the system call
// that package net makes for the step that has failed.
func (h *Host) dialFrom(ctx context.Context, of func(*ports.Local) *ports.Ports, asked netip.AddrPort, remote netip.Addr) (l *ports.Local, call string, err error) {
	if l, err = h.locals.ForDial(h.named(asked.Addr()), remote); err == nil {
		err = cmp.Or(h.zoneError(syscall.EADDRNOTAVAIL, asked.Addr()), h.zoneError(syscall.ENETUNREACH, remote), h.leaseErr())
	}
	if err == nil && l == nil {
		remote, source := h.named(remote.Unmap()), netip.Addr{}
		if likely := h.locals.At(h.stack.LikelySource(remote)); likely != nil && asked.Port() == 0 {
			of(likely).Prepare()
		}
		if source, err = h.stack.SourceTo(ctx, remote); err == nil {
			if l = h.locals.At(source); l == nil { // it has just gone
				err = syscall.EADDRNOTAVAIL
			}
		}
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return l, "bind", err
	}
	return l, "connect", err
}
