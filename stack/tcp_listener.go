package stack

import (
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// TCPListenOptions of a listener. The zero value works.
type TCPListenOptions struct {
	Backlog int        // connections that wait to be accepted; 0: [tcp.DefaultAcceptQueue]
	Shared  bool       // see [tcp.ListenOptions]
	Shown   netip.Addr // in Addr instead of an unspecified address; may be left out
	TCPOptions
}

// TCPListener is a net.Listener in this process. Its methods may be called from
// any goroutine.
type TCPListener struct {
	stack      *Stack
	listener   *tcp.Listener
	options    TCPOptions
	closed     bool
	deadline   instant
	acceptable event
	addr       net.Addr // *net.TCPAddr
	port       *portUse
}

var _ net.Listener = (*TCPListener)(nil)

// ListenTCP makes a listener. The address in local is the stack's, or
// unspecified; port 0 stands for a free one. Errors: EAFNOSUPPORT, EADDRNOTAVAIL,
// EADDRINUSE.
func (s *Stack) ListenTCP(local netip.AddrPort, o TCPListenOptions) (*TCPListener, error) {
	at, err := s.localEnd(local, wire.Addr{}, o.network())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.broken != nil {
		return nil, s.ended()
	}
	l := &TCPListener{stack: s, options: o.TCPOptions, deadline: never, port: &portUse{1, o.Released}}
	l.listener, err = s.tcp.Listen(at, tcp.ListenOptions{Owner: l, AcceptQueue: o.Backlog, Shared: o.Shared, Options: o.engine(s)})
	if err != nil {
		return nil, err
	}
	l.addr = net.TCPAddrFromAddrPort(s.shown(l.listener.Addr(), o.Shown))
	s.tcpListeners[l] = struct{}{}
	return l, nil
}

// Addr is where the listener listens, a *net.TCPAddr.
func (l *TCPListener) Addr() net.Addr { return l.addr }

func (l *TCPListener) fail(op string, err error) error {
	return opError(op, l.options.network(), op, nil, l.addr, err)
}

// Accept waits for a connection, a *TCPConn.
func (l *TCPListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err // not c: a nil *TCPConn in an interface is not nil
	}
	return c, nil
}

// AcceptTCP waits for a connection, which may have ended already.
func (l *TCPListener) AcceptTCP() (*TCPConn, error) {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, l.fail("accept", s.ended())
		case l.deadline != never && s.readClock() >= l.deadline:
			return nil, l.fail("accept", os.ErrDeadlineExceeded)
		}
		if conn := l.listener.Accept(); conn != nil {
			if l.listener.Len() > 0 {
				s.role.signal(&l.acceptable) // one signal may be for several connections
			}
			return l.adopt(conn), nil
		}
		if s.broken != nil {
			return nil, l.fail("accept", s.broken)
		}
		s.waitFor(&l.acceptable, l.deadline)
	}
}

// adopt makes a socket of a connection of the listener.
//
// +checklocks:l.stack.mu
func (l *TCPListener) adopt(conn *tcp.Conn) *TCPConn {
	s := l.stack
	c := s.newTCPConn(&l.options)
	c.begin(conn) // +checklocksignore: a connection of this stack
	c.port = l.port
	c.port.users++
	c.connected = true
	c.finished = conn.State() == tcp.Closed || conn.State() == tcp.TimeWait
	if c.loop = s.isLoopBackTCP(conn.Local(), conn.Remote()); !c.loop && !s.unserved {
		// The lookup of the route starts before the application reads the request. An error
		// is reported when the first segment is sent.
		c.route, _ = s.usableRoute(conn.Local().Addr, conn.Remote().Addr)
	}
	return c
}

// SetDeadline sets when Accept, also a call that blocks already, fails with
// os.ErrDeadlineExceeded. The zero time: never.
func (l *TCPListener) SetDeadline(t time.Time) error {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed {
		return s.ended()
	}
	l.deadline = s.deadline(t)
	s.role.broadcast(&l.acceptable)
	return nil
}

// Close stops listening. Connections that have not been accepted get a RST; the others
// are not affected.
func (l *TCPListener) Close() error {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed {
		return l.fail("close", s.ended())
	}
	s.readClock()
	l.close()
	return nil
}

// +checklocks:l.stack.mu
func (l *TCPListener) close() {
	s := l.stack
	l.closed = true
	delete(s.tcpListeners, l)
	l.listener.Close()
	s.role.broadcast(&l.acceptable)
	s.settle()
	l.port.leave()
}
