package unet

import (
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
)

// TCPConn is a TCP connection in this process. It is a net.Conn and behaves as
// package net's *TCPConn: deadlines, half-close, addresses, and errors to test
// for, syscall.ECONNREFUSED, ECONNRESET, EPIPE, ETIMEDOUT and EHOSTUNREACH among
// them. Its methods may be called from any goroutine.
//
// Read and Write do not allocate.
type TCPConn struct {
	sock          *stack.TCPConn
	local, remote net.Addr

	mu        sync.Mutex
	keepAlive tcp.KeepAlive
}

var _ net.Conn = (*TCPConn)(nil)

// Text is received text in the memory it came in.
type Text = stack.TCPText

func newTCPConn(sock *stack.TCPConn) *TCPConn {
	return &TCPConn{
		sock:      sock,
		local:     net.TCPAddrFromAddrPort(sock.LocalAddr()),
		remote:    net.TCPAddrFromAddrPort(sock.RemoteAddr()),
		keepAlive: keepAlive,
	}
}

// fail dresses an error of the socket as package net does.
func (c *TCPConn) fail(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: sysError(op, err)}
}

// failToSet is fail for what package net sets without naming the peer.
func (c *TCPConn) failToSet(err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: "set", Net: "tcp", Addr: c.local, Err: err}
}

// Read receives text.
func (c *TCPConn) Read(b []byte) (int, error) {
	n, err := c.sock.Read(b)
	if err != nil {
		err = c.fail("read", err)
	}
	return n, err
}

// Write sends text, and waits while the send buffer has no room for it.
func (c *TCPConn) Write(b []byte) (int, error) {
	n, err := c.sock.Write(b)
	if err != nil {
		err = c.fail("write", err)
	}
	return n, err
}

// Lend is Write without the copy: b is sent from where it lies, and must not change
// until Reclaim has returned. Large pieces gain by it, small ones do not.
func (c *TCPConn) Lend(b []byte) error { return c.fail("write", c.sock.Lend(b)) }

// Reclaim waits until all that was lent is the caller's again: the peer has it, or the
// connection is over. It also works after Close. When it fails, by the write deadline
// or because the link is broken, the memory is still lent.
func (c *TCPConn) Reclaim() error { return c.fail("write", c.sock.Reclaim()) }

// Borrow waits for text and lends its first piece where it lies, without a copy.
// It must go back with [Text.Return], and may hold a frame of the segment until
// then.
func (c *TCPConn) Borrow() (Text, error) {
	t, err := c.sock.Borrow()
	return t, c.fail("read", err)
}

// Close lets go of the connection. What has been written is still sent, see
// SetLinger. Blocked calls return net.ErrClosed.
func (c *TCPConn) Close() error { return c.fail("close", c.sock.Close()) }

// CloseRead says that nothing more will be read.
func (c *TCPConn) CloseRead() error {
	return c.fail("close", sysError("shutdown", c.sock.CloseRead()))
}

// CloseWrite says that nothing more will be written: the peer reads io.EOF.
func (c *TCPConn) CloseWrite() error {
	return c.fail("close", sysError("shutdown", c.sock.CloseWrite()))
}

// LocalAddr is the address and port on this side, a *net.TCPAddr.
func (c *TCPConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address and port, a *net.TCPAddr.
func (c *TCPConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the read and the write deadline.
func (c *TCPConn) SetDeadline(t time.Time) error { return c.failToSet(c.sock.SetDeadline(t)) }

// SetReadDeadline sets when reads, also blocked ones, fail with
// os.ErrDeadlineExceeded. Zero is never.
func (c *TCPConn) SetReadDeadline(t time.Time) error { return c.failToSet(c.sock.SetReadDeadline(t)) }

// SetWriteDeadline sets the same for writes, which block while the send buffer is
// full.
func (c *TCPConn) SetWriteDeadline(t time.Time) error {
	return c.failToSet(c.sock.SetWriteDeadline(t))
}

// SetNoDelay turns Nagle's algorithm off, as it is at first, or on.
func (c *TCPConn) SetNoDelay(noDelay bool) error { return c.fail("set", c.sock.SetNoDelay(noDelay)) }

// SetCork changes how long small writes gather while text is in flight.
// Negative: not at all.
func (c *TCPConn) SetCork(d time.Duration) error { return c.fail("set", c.sock.SetCork(d)) }

// SetUserTimeout changes how long what was written may stay unacknowledged before
// the connection fails with ETIMEDOUT, or with what an ICMP error has said meanwhile, as
// TCP_USER_TIMEOUT does in the kernel.
// Negative: for ever; 0: 5 minutes, as at first.
func (c *TCPConn) SetUserTimeout(d time.Duration) error {
	return c.fail("set", c.sock.SetUserTimeout(d))
}

// SetAdaptiveAck lets acknowledgments wait for up to a millisecond: of text that has
// been answered at once several times, for the next answer; in a stream of full
// segments, for the second of two. At first they go out at once, or with an answer that
// is written at once. On suits streams; off suits requests and replies.
func (c *TCPConn) SetAdaptiveAck(on bool) error { return c.fail("set", c.sock.SetAdaptiveAck(on)) }

// SetLinger says what Close does with what has not been acknowledged: negative,
// it is sent in the background, as at first; 0, it is thrown away and the peer
// gets a RST; else Close waits so many seconds for it, and does the same then.
func (c *TCPConn) SetLinger(sec int) error {
	return c.fail("set", c.sock.SetLinger(time.Duration(sec)*time.Second))
}

// SetReadBuffer bounds what has been received and not read, in bytes. At first the bound
// grows with what the path holds.
func (c *TCPConn) SetReadBuffer(bytes int) error { return c.failToSet(c.sock.SetBuffers(0, bytes)) }

// SetWriteBuffer bounds what has been written and not acknowledged, in bytes. At first the
// bound grows with what may be in flight.
func (c *TCPConn) SetWriteBuffer(bytes int) error { return c.failToSet(c.sock.SetBuffers(bytes, 0)) }

// SetKeepAlive turns the keepalive on, as it is at first, or off.
func (c *TCPConn) SetKeepAlive(on bool) error {
	return c.changeKeepAlive(func(k *tcp.KeepAlive) { k.Enable = on })
}

// SetKeepAlivePeriod changes how long the peer may be silent before it is probed. As in
// package net, 0 is the default, and what is negative changes nothing.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keepAlive
	f(&k)
	if max(k.Idle, k.Interval) > maxKeepAliveTime || k.Count > maxKeepAliveCount {
		return c.fail("set", sysError("setsockopt", syscall.EINVAL))
	}
	if err := c.sock.SetKeepAlive(k); err != nil {
		return c.fail("set", err)
	}
	c.keepAlive = k
	return nil
}

// Info is what there is to know about the connection at the moment, as TCP_INFO
// is in the kernel.
func (c *TCPConn) Info() tcp.Info { return c.sock.Info() }
