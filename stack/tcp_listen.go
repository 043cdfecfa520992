package stack

import (
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/unet-go/unet/proto/tcp"
)

// Addr is where the listener listens.
func (l *TCPListener) Addr() netip.AddrPort { return l.listener.Addr().Netip() }

// Accept waits for a connection. It may be over already.
func (l *TCPListener) Accept() (*TCPConn, error) {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, net.ErrClosed
		case l.deadline != never && s.readClock() >= l.deadline:
			return nil, os.ErrDeadlineExceeded
		}
		if conn := l.listener.Accept(); conn != nil {
			if l.listener.Len() > 0 {
				s.signal(&l.acceptable) // there may have been one signal for several
			}
			return l.adopt(conn), nil
		}
		if s.broken != nil {
			return nil, s.broken
		}
		s.waitFor(&l.acceptable, l.deadline)
	}
}

// adopt makes a socket of a connection that has come to the listener.
func (l *TCPListener) adopt(conn *tcp.Conn) *TCPConn {
	s := l.stack
	c := s.newTCPConn(&l.options)
	c.conn = conn
	conn.Owner = c
	c.connected = true
	c.finished = conn.State() == tcp.Closed || conn.State() == tcp.TimeWait
	s.tcpConns[c] = struct{}{}
	if c.loop = s.isLoopBackTCP(conn.Local(), conn.Remote()); !c.loop {
		// The route is looked for while the application reads the request. If
		// there is none, who has something to send will find that out.
		c.route, _ = s.usableRoute(conn.Remote().Addr)
	}
	return c
}

// SetDeadline sets the time at which Accept fails with os.ErrDeadlineExceeded. The
// zero time: never.
func (l *TCPListener) SetDeadline(t time.Time) error {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.deadline = never
	if !t.IsZero() {
		l.deadline = min(s.instant(t), never-1)
	}
	s.broadcast(&l.acceptable)
	return nil
}

// Close ends the listener. Connections that have not been accepted get a RST;
// those that have live on.
func (l *TCPListener) Close() error {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	s.readClock()
	l.close()
	return nil
}

func (l *TCPListener) close() {
	s := l.stack
	l.closed = true
	delete(s.tcpListeners, l)
	l.listener.Close()
	s.broadcast(&l.acceptable)
	s.finishTCP()
}
