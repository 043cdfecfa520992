package stack

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
)

// TCPOptions of a connection, or of all that a listener accepts. The zero value
// works.
type TCPOptions struct {
	SendBuffer    int // bytes; 0: it grows with what the path holds
	ReceiveBuffer int // bytes; 0: likewise
	KeepAlive     tcp.KeepAlive

	// Released is called once when the local port of a connection is free again:
	// when both its owner and the engine are done with it. It must be quick and
	// must not call the stack.
	Released func()
}

// ErrNoPort is the error of [Stack.DialTCP] if Config.TCPPorts have no port from which
// there is no connection to the remote address. It is an EADDRNOTAVAIL.
var ErrNoPort = fmt.Errorf("%w: each local port has a connection to the remote address", syscall.EADDRNOTAVAIL)

// TCPPorts are the local ports that a stack which shares its address may open
// connections from. Its methods are called under the stack's lock: they must be quick
// and must not call the stack.
type TCPPorts interface {
	// Choose calls pick with the ports that there are, and notes that a connection
	// uses the port that it returns, and that Choose returns too; 0: none.
	Choose(pick func(from []tcp.PortBlock) uint16) uint16
	// Release is called once for each port that Choose has returned, when both the
	// connection's owner and the engine are done with it.
	Release(port uint16)
}

func (o *TCPOptions) engine(s *Stack, owner any) tcp.Options {
	return tcp.Options{
		Owner: owner, MTU: s.mtu, SendBuffer: o.SendBuffer, ReceiveBuffer: o.ReceiveBuffer, KeepAlive: o.KeepAlive,
	}
}

// TCPConn is one TCP connection of a stack. Its methods may be called from any
// goroutine. Errors are bare: io.EOF, net.ErrClosed, os.ErrDeadlineExceeded and
// syscall.Errno values.
type TCPConn struct {
	stack *Stack
	conn  *tcp.Conn
	route *route // to the peer; nil: not looked for yet
	mtu   int    // of the route, as the engine was told
	loop  bool   // the peer is in this stack

	// readSlow and writeSlow say that there is more to look at than the queues:
	// closed, deadline set.
	readSlow, writeSlow bool
	closed              bool
	posted              bool // a reader has posted its memory
	answering           bool // a reader was woken and has not called again
	ackHeld             bool // for what it might write
	writing             bool // somebody writes more than there was room for
	connected           bool
	drained             bool // the peer has all, and our FIN
	finished            bool // the engine is done with it
	chosen              bool // its local port is of Config.TCPPorts
	readers             int  // that wait
	ackSlot             int  // in Stack.acking
	readDeadline        instant
	writeDeadline       instant
	reads               uint32        // since the clock was last read for readDeadline
	linger              time.Duration // negative: Close does not wait
	released            func()

	readable  event
	writable  event // also: opened
	turn      event // writing has become false
	reclaimed event // memory that was lent has been returned
}

func (s *Stack) newTCPConn(o *TCPOptions) *TCPConn {
	c := &TCPConn{stack: s, readDeadline: never, writeDeadline: never, linger: -1, released: o.Released}
	c.setSlow()
	return c
}

// LocalAddr and RemoteAddr are the ends of the connection.
func (c *TCPConn) LocalAddr() netip.AddrPort  { return c.conn.Local().Netip() }
func (c *TCPConn) RemoteAddr() netip.AddrPort { return c.conn.Remote().Netip() }

// Info is what there is to know about the connection at the moment.
func (c *TCPConn) Info() tcp.Info {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.conn.Info()
}

// TCPUsage is what all TCP connections of a stack take at a moment.
type TCPUsage struct {
	Connections int // those in TIME-WAIT left out
	TimeWaits   int
	Memory      int // bytes of buffers
}

// TCPUsage returns it.
func (s *Stack) TCPUsage() TCPUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return TCPUsage{s.tcp.Len(), s.tcp.TimeWaits(), s.tcp.MemoryInUse()}
}

// SetReadDeadline sets the time at which reads, also those that block already,
// fail with os.ErrDeadlineExceeded. The zero time: never.
func (c *TCPConn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline is the same for writes, which block while the send buffer is
// full.
func (c *TCPConn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

// SetDeadline sets both.
func (c *TCPConn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

func (c *TCPConn) setDeadlines(t time.Time, read, write bool) error {
	return c.set(func(tcp.Time) {
		at := never
		if !t.IsZero() {
			at = min(c.stack.instant(t), never-1)
		}
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

// SetNoDelay turns Nagle's algorithm off, as it is at first, or on.
func (c *TCPConn) SetNoDelay(on bool) error {
	return c.set(func(now tcp.Time) { c.conn.SetNagle(now, !on) })
}

// SetCork changes how long small writes gather while text is in flight, which is
// [tcp.DefaultCork] at first. Negative: not at all.
func (c *TCPConn) SetCork(d time.Duration) error {
	return c.set(func(now tcp.Time) { c.conn.SetCork(now, d) })
}

// SetAdaptiveAck lets acknowledgments wait for a millisecond where that has proved worth
// it (on), or leaves them to go out at once, as they do at first.
func (c *TCPConn) SetAdaptiveAck(on bool) error {
	return c.set(func(tcp.Time) { c.conn.SetAdaptiveAck(on) })
}

// SetKeepAlive changes the keepalive.
func (c *TCPConn) SetKeepAlive(k tcp.KeepAlive) error {
	return c.set(func(now tcp.Time) { c.conn.SetKeepAlive(now, k) })
}

// SetUserTimeout changes how long text may stay unacknowledged. Negative: for
// ever.
func (c *TCPConn) SetUserTimeout(d time.Duration) error {
	return c.set(func(tcp.Time) { c.conn.SetUserTimeout(d) })
}

// SetBuffers changes the bounds of the queues, in bytes; 0 leaves one as it is. One that
// is set does not grow any more.
func (c *TCPConn) SetBuffers(send, receive int) error {
	return c.set(func(now tcp.Time) { c.conn.SetBuffers(now, send, receive) })
}

// SetLinger says what Close does with what has not been acknowledged. Negative,
// as it is at first: it is sent behind the back of Close. 0: it is thrown away,
// and the peer gets a RST. Else Close waits so long for it, and does the same
// then.
func (c *TCPConn) SetLinger(d time.Duration) error {
	return c.set(func(tcp.Time) { c.linger = d })
}

// set changes something about a connection that is not closed.
func (c *TCPConn) set(f func(now tcp.Time)) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	f(tcp.Time(s.readClock()))
	s.finishTCP()
	return nil
}

func (c *TCPConn) setSlow() {
	trouble := c.closed || c.stack.broken != nil
	c.readSlow = trouble || c.readDeadline != never
	c.writeSlow = trouble || c.writeDeadline != never
}

func (c *TCPConn) wakeAll() {
	s := c.stack
	s.broadcast(&c.readable)
	s.broadcast(&c.writable)
	s.broadcast(&c.turn)
	s.broadcast(&c.reclaimed)
}

// readTrouble returns the reason why the connection is not read at all.
func (c *TCPConn) readTrouble() error {
	if c.closed {
		return net.ErrClosed
	}
	if c.readDeadline == never {
		return nil
	}
	s := c.stack
	if c.reads++; c.reads%readsPerClock == 0 {
		s.readClock()
	}
	if s.now >= c.readDeadline {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// writeTrouble is readTrouble for writing.
func (c *TCPConn) writeTrouble() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeDeadline != never && c.stack.readClock() >= c.writeDeadline:
		return os.ErrDeadlineExceeded
	}
	return c.stack.broken
}

// CloseRead says that nothing more will be read: reads return io.EOF.
func (c *TCPConn) CloseRead() error {
	return c.set(func(now tcp.Time) {
		c.conn.CloseRead(now)
		c.stack.broadcast(&c.readable)
	})
}

// CloseWrite sends a FIN after all that has been written. Reading goes on.
func (c *TCPConn) CloseWrite() (err error) {
	if e := c.set(func(now tcp.Time) {
		c.resumeAck()
		if err = c.conn.CloseWrite(now); c.conn.State() == tcp.TimeWait || err == syscall.ECONNRESET {
			err = syscall.ENOTCONN
		}
		c.stack.broadcast(&c.writable)
	}); e != nil {
		return e
	}
	return err
}

// Close lets go of the connection. What has been written is still sent, and then
// a FIN; see [TCPConn.SetLinger]. If there is text that has not been read, the
// peer gets a RST. What blocks on the connection returns net.ErrClosed.
func (c *TCPConn) Close() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.close(c.linger)
	if c.linger > 0 {
		for until := s.now + instant(c.linger); !c.drained && !c.finished && s.now < until && !s.closed && s.broken == nil; {
			s.waitFor(&s.drained, until)
		}
		if !c.drained && !c.finished {
			c.conn.Abort()
			s.finishTCP()
		}
	}
	return nil
}

func (c *TCPConn) close(linger time.Duration) {
	s := c.stack
	now := tcp.Time(s.readClock())
	c.closed = true
	c.setSlow()
	c.resumeAck()
	if linger == 0 {
		c.conn.Abort()
	} else {
		c.conn.Close(now)
	}
	c.wakeAll()
	s.finishTCP()
	c.release()
}

// release is called when the owner or the engine is done with the connection.
func (c *TCPConn) release() {
	s := c.stack
	if _, known := s.tcpConns[c]; !known || !c.closed || !c.finished {
		return
	}
	delete(s.tcpConns, c)
	if c.released != nil {
		c.released()
	}
	if c.chosen {
		s.ports.Release(c.conn.Local().Port)
	}
}

// closeTCP ends everything, when the stack closes. Every connection is closed as by
// Close, and what was written has a moment to reach its peer. What has not ended then
// ends with a RST.
func (s *Stack) closeTCP() {
	s.closeAll()
	for until := s.readClock() + closePatience; s.draining() && s.now < until; {
		s.waitFor(&s.drained, until)
	}
	s.closeAll() // what has come meanwhile
	s.tcp.Close()
	s.finishTCP()
}

// closeAll closes all that has not been closed.
func (s *Stack) closeAll() {
	for l := range s.tcpListeners {
		l.close()
	}
	for c := range s.tcpConns {
		if !c.closed {
			c.close(c.linger)
		}
	}
}

// closePatience is how long Stack.Close waits for what was written.
const closePatience = second

// draining reports whether a connection that was closed has something to send
// that the peer does not have.
func (s *Stack) draining() bool {
	if s.broken != nil || s.down != 0 || s.clock != nil { // time that does not pass by itself
		return false
	}
	for c := range s.tcpConns {
		if !c.drained && !c.finished {
			return true
		}
	}
	return false
}
