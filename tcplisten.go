package unet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/unet-go/unet/endpoint"
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
func (h *Host) ListenTCP(ctx context.Context, local netip.AddrPort) (*TCPListener, error) {
	fail := func(err error) (*TCPListener, error) {
		return nil, opError("tcp", "listen", local, netip.AddrPort{}, sysError("bind", err))
	}
	local, err := h.local(local)
	if err != nil {
		return fail(err)
	}
	port, err := h.claimListenPort(ctx, local)
	if err != nil {
		return fail(claimError(err))
	}
	l := &TCPListener{port: port}
	l.listener, err = h.stack.ListenTCP(netip.AddrPortFrom(local.Addr(), port.number), stack.TCPListenOptions{
		TCPOptions: stack.TCPOptions{KeepAlive: keepAlive, Released: l.released},
	})
	if err != nil {
		if port.leave() {
			err = errors.Join(err, port.giveBack())
		}
		return fail(err)
	}
	l.addr = net.TCPAddrFromAddrPort(l.listener.Addr())
	return l, nil
}

// DialTCP opens a connection to remote. A zero local address is the host's, with
// a free port, of which it has blocks as for UDP: see [Host.DialUDP].
func (h *Host) DialTCP(ctx context.Context, local, remote netip.AddrPort) (*TCPConn, error) {
	fail := func(err error) (*TCPConn, error) {
		return nil, opError("tcp", "dial", netip.AddrPort{}, remote, sysError("connect", dialError(ctx, err)))
	}
	if !remote.IsValid() || remote.Port() == 0 {
		return fail(syscall.EINVAL)
	}
	local, err := h.local(local)
	if err != nil {
		return fail(err)
	}
	for try := 0; ; try++ {
		port, release, err := h.claimTCPPort(ctx, local)
		if err != nil {
			return fail(claimError(err))
		}
		sock, err := h.stack.DialTCP(ctx, netip.AddrPortFrom(local.Addr(), port), remote, stack.TCPOptions{
			KeepAlive: keepAlive, Released: func() { go release() }, // whose error says that the lease is over
		})
		if err == nil {
			return newTCPConn(sock), nil
		}
		if local.Port() == 0 && errors.Is(err, syscall.EADDRINUSE) && try < maxPortTries {
			// We have closed a connection from there to the same peer a moment
			// ago. The port stays taken while we look for another.
			defer release()
			continue
		}
		return fail(errors.Join(err, release()))
	}
}

// maxPortTries is how many ports a dial tries.
const maxPortTries = 4 * endpoint.BlockPorts

// claimTCPPort makes a TCP port the host's until release is called; 0 is a free
// one.
func (h *Host) claimTCPPort(ctx context.Context, local netip.AddrPort) (port uint16, release func() error, err error) {
	switch {
	case h.whole:
		return local.Port(), func() error { return nil }, nil
	case local.Port() == 0:
		if port, err = h.tcpPorts.take(ctx); err != nil {
			return 0, nil, err
		}
		if port != 0 {
			return port, func() error { return h.givePort(h.tcpPorts, port) }, nil
		}
	}
	p, err := h.claimListenPort(ctx, local)
	if err != nil {
		return 0, nil, err
	}
	return p.number, func() error {
		if p.leave() {
			return p.giveBack()
		}
		return nil
	}, nil
}

// dialError is the error of a dial as package net has it.
func dialError(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		return timeout{}
	}
	return err
}

// timeout is the error of a dial whose context has run out.
type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
func (timeout) Is(target error) bool {
	return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
}

// sysError names the system call that package net would have made.
func sysError(call string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		return os.NewSyscallError(call, errno)
	}
	return err
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
		if l.port.leave() {
			err = errors.Join(err, l.port.giveBack())
		}
		return nil, l.fail("accept", err)
	}
	return newTCPConn(sock), nil
}

// released is called for each connection that has come to its end.
func (l *TCPListener) released() {
	if l.port.leave() {
		go l.port.giveBack() // its error says that the lease is over
	}
}

// Close stops listening. Connections that have not been accepted get a RST, and
// those that have live on. The port is free again when these are over and blocked
// calls of Accept have returned.
func (l *TCPListener) Close() error {
	err := l.listener.Close()
	if err == nil && l.port.leave() {
		err = l.port.giveBack()
	}
	if err != nil {
		return l.fail("close", err)
	}
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
