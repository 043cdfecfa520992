package stack

import (
	"context"
	"crypto/rand"
	"net"
	"net/netip"
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// newSecret is a key of the TCP engine.
func newSecret() (secret [16]byte) {
	rand.Read(secret[:]) // which never fails
	return secret
}

// DialTCP opens a connection to remote and waits until it is established, or ctx
// is done. The address in local is the stack's, or unspecified; port 0 asks for a
// free one: free as far as remote goes, see [tcp.Table.ChoosePort].
//
// Errors: ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH and ENETUNREACH, which may come
// as an [UnreachableError], EADDRINUSE if the two ends have a connection already,
// EADDRNOTAVAIL if there is one to remote from every port that may be chosen (of
// Config.TCPPorts an [ErrNoPort]) or the host has lost our address, ENETDOWN, and that
// of ctx.
func (s *Stack) DialTCP(ctx context.Context, local, remote netip.AddrPort, o TCPOptions) (*TCPConn, error) {
	to, ok := wire.AddrPortFrom(remote)
	if !ok {
		return nil, syscall.EAFNOSUPPORT
	}
	if to.Addr == [4]byte{} {
		to.Addr = loopback
	}
	from, err := s.localTCP(local, to.Addr)
	if err != nil {
		return nil, err
	}
	if from.Addr == [4]byte{} {
		from.Addr = s.addr
		if to.Addr[0] == 127 {
			from.Addr = to.Addr
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.newTCPConn(&o)
	c.released = nil // a port that was never used is the caller's
	if err := c.open(from, to, &o); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.broadcast(&c.writable)
		s.mu.Unlock()
	})()
	if !c.loop {
		err = s.kickErr // the SYN goes nowhere
	}
	for !c.connected && !c.finished && err == nil {
		s.waitFor(&c.writable, never)
		if err = ctx.Err(); err == nil {
			err = s.broken
		}
	}
	switch {
	case c.connected && !c.closed:
		c.released = o.Released
		return c, nil
	case c.closed: // by Stack.Close
		err = net.ErrClosed
	case c.conn.Err() != nil:
		err = c.conn.Err()
	}
	c.close(0)
	return nil, err
}

// open sends the SYN.
func (c *TCPConn) open(from, to tcp.AddrPort, o *TCPOptions) (err error) {
	s := c.stack
	switch {
	case s.closing:
		return net.ErrClosed
	case s.broken != nil:
		return s.broken
	}
	now := s.readClock()
	if c.loop = s.isLoopBackTCP(from, to); !c.loop {
		switch {
		case s.down != 0:
			return s.down
		case s.kickErr != nil && s.flush() != nil:
			return s.kickErr
		case to.Addr[0] == 127:
			return syscall.ECONNREFUSED // nobody of ours
		}
		if c.route, err = s.usableRoute(to.Addr); err != nil {
			return err
		}
	}
	if from.Port == 0 && s.ports != nil {
		pick := func(blocks []tcp.PortBlock) uint16 { return s.tcp.ChoosePort(from.Addr, to, blocks) }
		if from.Port = s.ports.Choose(pick); from.Port == 0 {
			return ErrNoPort
		}
		c.chosen = true
	}
	if c.conn, err = s.tcp.Dial(tcp.Time(now), from, to, o.engine(s, c)); err != nil {
		if c.chosen {
			s.ports.Release(from.Port)
		}
		return err
	}
	s.tcpConns[c] = struct{}{}
	s.finishTCP()
	return nil
}

// localTCP reads a local address, for connections to a remote one.
func (s *Stack) localTCP(local netip.AddrPort, remote [4]byte) (tcp.AddrPort, error) {
	l, ok := wire.AddrPortFrom(local)
	switch {
	case !ok:
		return l, syscall.EAFNOSUPPORT
	case l.Addr != [4]byte{} && l.Addr != s.addr && (l.Addr[0] != 127 || remote[0] != 127):
		return l, syscall.EADDRNOTAVAIL
	}
	return l, nil
}

// isLoopBackTCP reports whether what goes from one address to another stays in
// the stack. If our address is shared, a port that is not ours may be another
// endpoint's.
func (s *Stack) isLoopBackTCP(from, to tcp.AddrPort) bool {
	switch {
	case to.Addr[0] != 127 && to.Addr != s.addr:
		return false
	case to.Addr == s.addr && s.wholeAddress:
		return true
	}
	return s.tcp.Knows(to, from)
}

// TCPListener accepts connections. Its methods may be called from any goroutine.
type TCPListener struct {
	stack      *Stack
	listener   *tcp.Listener
	options    TCPOptions
	closed     bool
	deadline   instant
	acceptable event
}

// TCPListenOptions of a listener. The zero value works.
type TCPListenOptions struct {
	Backlog int // connections that wait to be accepted; 0: [tcp.DefaultAcceptQueue]
	TCPOptions
}

// ListenTCP makes a listener. The address in local is the stack's, or
// unspecified; port 0 asks for a free one.
func (s *Stack) ListenTCP(local netip.AddrPort, o TCPListenOptions) (*TCPListener, error) {
	at, err := s.localTCP(local, [4]byte{})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil, net.ErrClosed
	case s.broken != nil:
		return nil, s.broken
	}
	l := &TCPListener{stack: s, options: o.TCPOptions, deadline: never}
	l.listener, err = s.tcp.Listen(at, tcp.ListenOptions{Owner: l, AcceptQueue: o.Backlog, Options: o.engine(s, l)})
	if err != nil {
		return nil, err
	}
	s.tcpListeners[l] = struct{}{}
	return l, nil
}
