package unet

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// serverConn is a UDP socket to a DNS server. The host learns only by the first query that it has no route to the
// server: an error of Write, or of the Read after it. serverConn then becomes a socket of the kernel and
// repeats the query. It has the methods of a net.PacketConn, by which package net recognizes UDP.
type serverConn struct {
	kernel func() (net.Conn, error)

	mu sync.Mutex // guards what follows
	// +checklocks:mu
	net.Conn // of the host; of the kernel if kernel was called
	// +checklocks:mu
	fallen bool // kernel was called
	// +checklocks:mu
	query []byte // the last one
	// +checklocks:mu
	readBy time.Time // deadline of Read; zero: none
	// +checklocks:mu
	writeBy time.Time // the same of Write
}

// now is the present socket.
func (c *serverConn) now() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Conn
}

// fall replaces the socket from, whose call has failed with err, if err says that the host has no route. It
// returns the new socket, or nil, and repeats the query there.
func (c *serverConn) fall(from net.Conn, err error) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(err, syscall.ENETUNREACH) || c.fallen || c.Conn != from {
		return nil
	}
	c.fallen = true
	to, err := c.kernel()
	if err != nil {
		return nil
	}
	err = c.applyDeadlines(to)
	if err == nil {
		_, err = to.Write(c.query)
	}
	if err != nil {
		to.Close()
		return nil
	}
	from.Close()
	c.Conn = to
	return to
}

func (c *serverConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.query = append(c.query[:0], b...)
	s := c.Conn
	c.mu.Unlock()
	n, err := s.Write(b)
	if err != nil && c.fall(s, err) != nil {
		return len(b), nil
	}
	return n, err
}

func (c *serverConn) Read(b []byte) (int, error) {
	s := c.now()
	n, err := s.Read(b)
	if err != nil {
		if s = c.fall(s, err); s != nil {
			return s.Read(b)
		}
	}
	return n, err
}

func (c *serverConn) WriteTo(b []byte, _ net.Addr) (int, error) { return c.Write(b) }

func (c *serverConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := c.Read(b)
	return n, c.RemoteAddr(), err
}

func (c *serverConn) Close() error         { return c.now().Close() }
func (c *serverConn) LocalAddr() net.Addr  { return c.now().LocalAddr() }
func (c *serverConn) RemoteAddr() net.Addr { return c.now().RemoteAddr() }

func (c *serverConn) SetDeadline(t time.Time) error {
	return c.setDeadlines(&t, &t)
}

func (c *serverConn) SetReadDeadline(t time.Time) error { return c.setDeadlines(&t, nil) }

func (c *serverConn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(nil, &t) }

// setDeadlines sets those that are not nil, also for the socket that may come.
func (c *serverConn) setDeadlines(read, write *time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if read != nil {
		c.readBy = *read
	}
	if write != nil {
		c.writeBy = *write
	}
	return c.applyDeadlines(c.Conn)
}

// applyDeadlines sets the deadlines of s. mu is held.
//
// +checklocks:c.mu
func (c *serverConn) applyDeadlines(s net.Conn) error {
	return errors.Join(s.SetReadDeadline(c.readBy), s.SetWriteDeadline(c.writeBy))
}
