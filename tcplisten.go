package unet

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
)

// Listen is net.Listen on this host, for "tcp" and "tcp4". An empty or
// unspecified address is the host's; port 0 is a free one.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if network != "tcp" && network != "tcp4" {
		return nil, &net.OpError{Op: "listen", Net: network, Err: net.UnknownNetworkError(network)}
	}
	local, err := resolve(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	l, err := h.ListenTCP(ctx, local)
	if err != nil {
		return nil, err // a bare nil, not one in an interface
	}
	return l, nil
}

// keepAlive is what connections begin with, as in package net.
var keepAlive = tcp.KeepAlive{Enable: true}

// ListenTCP is Listen for an address in numbers.
func (h *Host) ListenTCP(ctx context.Context, asked netip.AddrPort) (*TCPListener, error) {
	fail := func(err error) (*TCPListener, error) {
		return nil, opError("tcp", "listen", asked, netip.AddrPort{}, h.openError(ctx, "bind", err))
	}
	local, err := h.local(asked)
	if err != nil {
		return fail(err)
	}
	port, err := h.claimListenPort(ctx, local)
	if err != nil {
		return fail(err)
	}
	l := &TCPListener{port: port}
	l.listener, err = h.stack.ListenTCP(netip.AddrPortFrom(local.Addr(), port.number), stack.TCPListenOptions{
		TCPOptions: stack.TCPOptions{KeepAlive: keepAlive, Released: port.leave},
	})
	if err != nil {
		port.leave()
		return fail(err)
	}
	l.addr = net.TCPAddrFromAddrPort(l.listener.Addr())
	return l, nil
}

// DialTCP opens a connection to remote. A zero local address is the host's, and a zero
// port one from which there is no connection to remote: connections to different
// destinations share ports. If the host shares its address such ports come from blocks
// of [endpoint.BlockPorts] that it claims as a whole, if it may, when it has none left
// for a destination. EADDRNOTAVAIL: it gets no more.
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
	if h.whole || local.Port() == 0 {
		sock, err := h.dialFromAny(ctx, local, remote, options)
		if err != nil {
			return fail("connect", err)
		}
		return newTCPConn(sock), nil
	}
	port, err := h.claimListenPort(ctx, local)
	if err != nil {
		return fail("bind", err)
	}
	options.Released = port.leave
	sock, err := h.stack.DialTCP(ctx, local, remote, options)
	if err != nil {
		port.leave()
		return fail("connect", err)
	}
	return newTCPConn(sock), nil
}

// dialFromAny opens a connection from a port that the stack chooses, or from any port
// of an address that is the host's as a whole. If the host shares its address and has a
// connection to remote from each of its ports, it gets more of them first.
func (h *Host) dialFromAny(ctx context.Context, local, remote netip.AddrPort, o stack.TCPOptions) (*stack.TCPConn, error) {
	for {
		seen := h.tcpPorts.count()
		sock, err := h.stack.DialTCP(ctx, local, remote, o)
		if err != stack.ErrNoPort {
			return sock, err
		}
		if err := h.tcpPorts.more(ctx, seen); err != nil {
			return nil, err
		}
	}
}

// TCPListener is a net.Listener in this process. Its methods may be called from
// any goroutine.
type TCPListener struct {
	listener *stack.TCPListener
	addr     net.Addr
	port     *listenPort
}

var _ net.Listener = (*TCPListener)(nil)

// Accept waits for a connection, a *TCPConn.
func (l *TCPListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptTCP waits for a connection.
func (l *TCPListener) AcceptTCP() (*TCPConn, error) {
	if !l.port.share() { // for the connection: it must not come to a port that has been given back
		return nil, l.fail("accept", net.ErrClosed)
	}
	sock, err := l.listener.Accept()
	if err != nil {
		l.port.leave()
		return nil, l.fail("accept", err)
	}
	return newTCPConn(sock), nil
}

// Close stops listening. Connections that have not been accepted get a RST, and
// those that have live on. The port is free again when these are over and blocked
// calls of Accept have returned; for other processes a moment later, when unetd has
// heard of it.
func (l *TCPListener) Close() error {
	if err := l.listener.Close(); err != nil {
		return l.fail("close", err)
	}
	l.port.leave()
	return nil
}

// Addr is where the listener listens, a *net.TCPAddr.
func (l *TCPListener) Addr() net.Addr { return l.addr }

// SetDeadline sets when Accept, also one that blocks already, fails with
// os.ErrDeadlineExceeded. Zero is never.
func (l *TCPListener) SetDeadline(t time.Time) error {
	if err := l.listener.SetDeadline(t); err != nil {
		return l.fail("set", err)
	}
	return nil
}

func (l *TCPListener) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: l.addr, Err: err}
}
