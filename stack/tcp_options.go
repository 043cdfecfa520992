package stack

import (
	"net"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
)

// change calls f under the lock and sends what it has made ready. It fails if the connection is
// closed.
func (c *TCPConn) change(f func(now tcp.Time)) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return s.ended()
	}
	f(tcp.Time(s.readClock()))
	s.settle()
	return nil
}

// set is change for an option.
func (c *TCPConn) set(f func(now tcp.Time)) error {
	return c.fail("set", "setsockopt", c.change(f))
}

// setLocal is set for options whose errors in package net do not contain the remote address.
func (c *TCPConn) setLocal(f func(now tcp.Time)) error {
	if err := c.change(f); err != nil {
		return opError("set", c.network, "setsockopt", nil, c.local, err)
	}
	return nil
}

// SetReadDeadline sets when reads, also those that block already, fail with
// os.ErrDeadlineExceeded. The zero time: never.
func (c *TCPConn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline is the same for writes, which block while the send buffer is
// full.
func (c *TCPConn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

// SetDeadline sets both.
func (c *TCPConn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

func (c *TCPConn) setDeadlines(t time.Time, read, write bool) error {
	return c.setLocal(func(tcp.Time) { c.moveDeadlines(t, read, write) }) // +checklocksignore: setLocal calls this with mu held
}

// +checklocks:c.stack.mu
func (c *TCPConn) moveDeadlines(t time.Time, read, write bool) {
	s := c.stack
	at := s.deadline(t)
	if read {
		c.readDeadline, c.reads = at, 0
		s.role.broadcast(&c.readable)
	}
	if write {
		c.writeDeadline = at
		s.role.broadcast(&c.writable)
		s.role.broadcast(&c.turn)
		s.role.broadcast(&c.reclaimed)
	}
	c.setSlow()
}

// SetReadBuffer bounds what has been received and not read, in bytes. Until it is called
// the bound grows with the path's bandwidth-delay product.
func (c *TCPConn) SetReadBuffer(bytes int) error {
	return c.setLocal(func(now tcp.Time) { c.conn.SetBuffers(now, 0, bytes) })
}

// SetWriteBuffer bounds what has been written and not acknowledged, in bytes. Until it is
// called the bound grows with what may be in flight.
func (c *TCPConn) SetWriteBuffer(bytes int) error {
	return c.setLocal(func(now tcp.Time) { c.conn.SetBuffers(now, bytes, 0) })
}

// SetNoDelay turns Nagle's algorithm off (true, the default) or on.
func (c *TCPConn) SetNoDelay(noDelay bool) error {
	return c.set(func(now tcp.Time) { c.conn.SetNagle(now, !noDelay) })
}

// SetCork changes how long small writes are collected while data is in flight. Negative: not
// at all; 0: [tcp.DefaultCork], the default. While a goroutine polls it is only until that one has nothing
// else to do.
func (c *TCPConn) SetCork(d time.Duration) error {
	return c.set(func(now tcp.Time) { c.conn.SetCork(now, d) })
}

// SetUserTimeout changes how long what was written may stay unacknowledged before
// the connection fails with ETIMEDOUT, or with the error of an ICMP message that has
// arrived meanwhile, as TCP_USER_TIMEOUT does in the kernel. Negative: without limit; 0: 5
// minutes, the default.
func (c *TCPConn) SetUserTimeout(d time.Duration) error {
	return c.set(func(tcp.Time) { c.conn.SetUserTimeout(d) })
}

// SetAdaptiveAck turns adaptive acknowledgments on or off. If on, the default, an acknowledgment waits
// for the application's answer, which carries it. If no answer comes, it is sent after 2 to 8 ms,
// depending on how long earlier answers took. In a stream of full segments it waits for the second of
// two. If off, it is sent at once: so a peer that sends nothing more until it has the
// acknowledgment, as with Nagle's algorithm, does not wait.
func (c *TCPConn) SetAdaptiveAck(on bool) error {
	return c.set(func(tcp.Time) { c.conn.SetAdaptiveAck(on) })
}

// SetLinger sets what Close does with data that has not been acknowledged. Negative, the
// default: it is sent in the background. 0: it is discarded and the peer gets a RST.
// Otherwise Close waits so many seconds for the acknowledgment, and then discards it and
// sends a RST.
func (c *TCPConn) SetLinger(sec int) error {
	return c.set(func(tcp.Time) { c.linger = time.Duration(sec) * time.Second })
}

// KeepAlive is the keepalive as it was set; 0 stands for a default.
func (c *TCPConn) KeepAlive() tcp.KeepAlive {
	c.stack.mu.Lock()
	defer c.stack.mu.Unlock()
	return c.keepAlive
}

// SetKeepAlive turns the keepalive on or off.
func (c *TCPConn) SetKeepAlive(on bool) error {
	return c.changeKeepAlive(func(k *tcp.KeepAlive) { k.Enable = on })
}

// SetKeepAlivePeriod changes how long the peer may be silent before a keepalive probe is
// sent. As in package net, 0 is the default, and a negative value changes nothing.
func (c *TCPConn) SetKeepAlivePeriod(d time.Duration) error {
	return c.changeKeepAlive(func(k *tcp.KeepAlive) { k.Idle = unlessNegative(d, k.Idle) })
}

// SetKeepAliveConfig changes all of the keepalive. As in package net, 0 stands for the
// default, and a negative value changes nothing. Times are not rounded to seconds.
func (c *TCPConn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	return c.changeKeepAlive(func(k *tcp.KeepAlive) {
		k.Enable = config.Enable
		k.Idle = unlessNegative(config.Idle, k.Idle)
		k.Interval = unlessNegative(config.Interval, k.Interval)
		k.Count = unlessNegative(config.Count, k.Count)
	})
}

func unlessNegative[T time.Duration | int](v, otherwise T) T {
	if v < 0 {
		return otherwise
	}
	return v
}

// The limits of Linux (tcp(7)).
const (
	maxKeepAliveTime  = 32767 * time.Second
	maxKeepAliveCount = 127
)

func (c *TCPConn) changeKeepAlive(f func(*tcp.KeepAlive)) error {
	valid := true
	err := c.set(func(now tcp.Time) {
		k := c.keepAlive
		f(&k)
		if valid = max(k.Idle, k.Interval) <= maxKeepAliveTime && k.Count <= maxKeepAliveCount; valid {
			c.keepAlive = k
			c.conn.SetKeepAlive(now, k)
		}
	})
	if !valid {
		err = c.fail("set", "setsockopt", syscall.EINVAL)
	}
	return err
}
