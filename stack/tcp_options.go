package stack

import (
	"net"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
)

// change changes something about a connection that is not closed.
func (c *TCPConn) change(f func(now tcp.Time)) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	f(tcp.Time(s.readClock()))
	s.settleTCP()
	return nil
}

// set is change for an option.
func (c *TCPConn) set(f func(now tcp.Time)) error {
	return c.fail("set", "setsockopt", c.change(f))
}

// setLocal is set for those options whose errors do not name the peer in package net.
func (c *TCPConn) setLocal(f func(now tcp.Time)) error {
	if err := c.change(f); err != nil {
		return opError("set", "tcp", "setsockopt", nil, c.local, err)
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
	return c.setLocal(func(tcp.Time) {
		at := c.stack.deadline(t)
		if read {
			c.readDeadline, c.reads = at, 0
			c.stack.broadcast(&c.readable)
		}
		if write {
			c.writeDeadline = at
			c.stack.broadcast(&c.writable)
			c.stack.broadcast(&c.turn)
			c.stack.broadcast(&c.reclaimed)
		}
		c.setSlow()
	})
}

// SetReadBuffer bounds what has been received and not read, in bytes. At first the bound
// grows with what the path holds.
func (c *TCPConn) SetReadBuffer(bytes int) error {
	return c.setLocal(func(now tcp.Time) { c.conn.SetBuffers(now, 0, bytes) })
}

// SetWriteBuffer bounds what has been written and not acknowledged, in bytes. At first the
// bound grows with what may be in flight.
func (c *TCPConn) SetWriteBuffer(bytes int) error {
	return c.setLocal(func(now tcp.Time) { c.conn.SetBuffers(now, bytes, 0) })
}

// SetNoDelay turns Nagle's algorithm off, as it is at first, or on.
func (c *TCPConn) SetNoDelay(noDelay bool) error {
	return c.set(func(now tcp.Time) { c.conn.SetNagle(now, !noDelay) })
}

// SetCork changes how long small writes gather while data is in flight, which is
// [tcp.DefaultCork] at first. Negative: not at all.
func (c *TCPConn) SetCork(d time.Duration) error {
	return c.set(func(now tcp.Time) { c.conn.SetCork(now, d) })
}

// SetUserTimeout changes how long what was written may stay unacknowledged before
// the connection fails with ETIMEDOUT, or with what an ICMP error has said meanwhile, as
// TCP_USER_TIMEOUT does in the kernel.
// Negative: without limit; 0: 5 minutes, as at first.
func (c *TCPConn) SetUserTimeout(d time.Duration) error {
	return c.set(func(tcp.Time) { c.conn.SetUserTimeout(d) })
}

// SetAdaptiveAck lets acknowledgments wait for up to a millisecond: of data that has
// been answered at once several times, for the next answer; in a stream of full
// segments, for the second of two. At first they go out at once, or with an answer that
// is written at once. On suits streams; off suits requests and replies.
func (c *TCPConn) SetAdaptiveAck(on bool) error {
	return c.set(func(tcp.Time) { c.conn.SetAdaptiveAck(on) })
}

// SetLinger says what Close does with what has not been acknowledged: negative,
// it is sent in the background, as at first; 0, it is thrown away and the peer
// gets a RST; else Close waits so many seconds for it, and does the same then.
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
// sent. As in package net, 0 is the default, and what is negative changes nothing.
func (c *TCPConn) SetKeepAlivePeriod(d time.Duration) error {
	return c.changeKeepAlive(func(k *tcp.KeepAlive) { k.Idle = unlessNegative(d, k.Idle) })
}

// SetKeepAliveConfig changes all of the keepalive. As in package net, what is 0 is
// the default, and what is negative stays as it is. Times are not rounded to seconds.
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

// What Linux takes at most (tcp(7)).
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
