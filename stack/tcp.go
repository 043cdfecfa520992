package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// TCPOptions of a connection, or of all that a listener accepts. The zero value
// works.
type TCPOptions struct {
	SendBuffer    int // bytes; 0: it grows with what the path holds
	ReceiveBuffer int // bytes; 0: likewise
	KeepAlive     tcp.KeepAlive

	// Released is called once when the local port is free again: when both the owner and
	// the engine are done with the connection that was dialled, or with the listener and all
	// that it has accepted. It is not called for a dial or a listen that fails. It must be
	// quick and must not call the stack.
	Released func()
}

// TCPListenOptions of a listener. The zero value works.
type TCPListenOptions struct {
	Backlog int // connections that wait to be accepted; 0: [tcp.DefaultAcceptQueue]
	TCPOptions
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

// portUse counts who uses a local port.
type portUse struct {
	users    int
	released func()
}

func (p *portUse) leave() {
	if p.users--; p.users == 0 && p.released != nil {
		p.released()
	}
}

// TCPConn is a TCP connection in this process. It is a net.Conn and behaves as
// package net's *TCPConn: deadlines, half-close, addresses, and errors to test
// for, syscall.ECONNREFUSED, ECONNRESET, EPIPE, ETIMEDOUT and EHOSTUNREACH among
// them. Its methods may be called from any goroutine.
//
// Read and Write do not allocate.
type TCPConn struct {
	stack *Stack
	conn  *tcp.Conn
	route *route // to the peer; nil: not looked up yet
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
	keepAlive           tcp.KeepAlive // as it was set

	readable  event
	writable  event // also: opened
	turn      event // writing has become false
	reclaimed event // memory that was lent has been returned

	local, remote net.Addr // *net.TCPAddr
	port          *portUse // nil: nobody is told
}

var _ net.Conn = (*TCPConn)(nil)

func (s *Stack) newTCPConn(o *TCPOptions) *TCPConn {
	c := &TCPConn{stack: s, readDeadline: never, writeDeadline: never, linger: -1, keepAlive: o.KeepAlive}
	c.setSlow()
	return c
}

// begin makes c the socket of a connection of the engine.
func (c *TCPConn) begin(conn *tcp.Conn) {
	c.conn, conn.Owner = conn, c
	c.local = net.TCPAddrFromAddrPort(conn.Local().Netip())
	c.remote = net.TCPAddrFromAddrPort(conn.Remote().Netip())
	c.stack.tcpConns[c] = struct{}{}
}

func (o *TCPOptions) engine(s *Stack) tcp.Options {
	return tcp.Options{MTU: s.mtu, SendBuffer: o.SendBuffer, ReceiveBuffer: o.ReceiveBuffer, KeepAlive: o.KeepAlive}
}

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
// of ctx. What waits to be received is taken in before a dial fails because two ends, or
// all ports, have a connection.
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
		if o.Released != nil {
			c.port = &portUse{1, o.Released}
		}
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
	s.readClock()
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
	for range batchesPerPoll {
		// Frames that wait to be received may end connections.
		if err = c.enter(from, to, o); err == nil || s.input() == 0 {
			break
		}
	}
	if err == nil {
		s.settleTCP()
	}
	return err
}

// enter chooses the local port, if from has none, and makes the connection.
func (c *TCPConn) enter(from, to tcp.AddrPort, o *TCPOptions) error {
	s := c.stack
	if c.chosen = from.Port == 0 && s.ports != nil; c.chosen {
		pick := func(blocks []tcp.PortBlock) uint16 { return s.tcp.ChoosePort(from.Addr, to, blocks) }
		if from.Port = s.ports.Choose(pick); from.Port == 0 {
			return ErrNoPort
		}
	}
	conn, err := s.tcp.Dial(tcp.Time(s.now), from, to, o.engine(s))
	if err != nil {
		if c.chosen {
			s.ports.Release(from.Port)
		}
		return err
	}
	c.begin(conn)
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

// LocalAddr is the address and port on this side, a *net.TCPAddr.
func (c *TCPConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address and port, a *net.TCPAddr.
func (c *TCPConn) RemoteAddr() net.Addr { return c.remote }

// Info is what there is to know about the connection at the moment, as TCP_INFO
// is in the kernel.
func (c *TCPConn) Info() tcp.Info {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.conn.Info()
}

// fail is err as package net has it.
func (c *TCPConn) fail(op, call string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return opError(op, "tcp", call, c.local, c.remote, err)
}

// Read receives data: it waits for some, and copies to p what there is. After the last it
// returns io.EOF. While it waits, what comes is copied straight to p.
func (c *TCPConn) Read(p []byte) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	if c.answering {
		c.resumeAck() // it was not for an answer
	}
	for {
		if c.readSlow {
			if err = c.readTrouble(); err != nil {
				break
			}
		}
		if len(p) == 0 {
			break
		}
		if n, err = c.conn.Read(tcp.Time(s.now), p); n > 0 || err != nil {
			break
		}
		if err = s.broken; err != nil {
			break
		}
		if n = c.awaitData(p); n > 0 {
			break
		}
	}
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.settleTCP()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("read", "read", err)
	}
	return n, err
}

// awaitData waits until there is something to read, and returns how much of it has been
// copied to p. Before it waits it lets go what was written and is corked.
func (c *TCPConn) awaitData(p []byte) (n int) {
	s := c.stack
	seq := c.readable.seq
	c.readers++
	c.conn.Flush(tcp.Time(s.now))
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.settleTCP()
	}
	if c.readable.seq == seq { // or the answer has come, in a connection within the stack
		post := p != nil && !c.posted && c.conn.Post(p)
		c.posted = c.posted || post
		s.waitFor(&c.readable, c.readDeadline)
		if post {
			c.posted = false
			n = c.conn.Unpost(tcp.Time(s.now))
		}
	}
	c.readers--
	return n
}

// TCPText is received data in the memory it came in.
type TCPText struct {
	Text []byte // the application's until Return

	loan  tcp.Loan
	stack *Stack
}

// Borrow waits for data and lends its first piece where it lies, without a copy. It must go
// back with [TCPText.Return]. A piece that lies in a frame counts against the stack's frame
// quota until then. After the last piece it returns io.EOF.
func (c *TCPConn) Borrow() (t TCPText, err error) {
	s := c.stack
	s.mu.Lock()
	c.resumeAck()
	for {
		if err = c.readTrouble(); err != nil {
			break
		}
		if _, err = c.conn.Read(tcp.Time(s.now), nil); err != nil {
			break
		}
		if loan, ok := c.conn.Borrow(tcp.Time(s.now)); ok {
			t = TCPText{loan.Data, loan, s}
			break
		}
		if err = s.broken; err != nil {
			break
		}
		c.awaitData(nil)
	}
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.settleTCP()
	}
	s.mu.Unlock()
	return t, c.fail("read", "read", err)
}

// Return gives the memory of borrowed data back, also after the connection has
// been closed. t is empty afterwards; to return it again is a bug.
func (t *TCPText) Return() {
	s := t.stack
	if s == nil {
		panic("BUG: stack: data is returned that was not borrowed, or has been returned")
	}
	s.mu.Lock()
	s.tcp.Return(&t.loan)
	s.mu.Unlock()
	*t = TCPText{}
}

// Write queues p to be sent, and waits while there is no room for all of it. The
// first small write leaves in this call; one that follows while the peer has not
// acknowledged it may wait a little for more, see [TCPConn.SetCork].
func (c *TCPConn) Write(p []byte) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	now := s.readClock()
	c.resumeAck()
	if !c.writeSlow && !c.writing {
		if s.link.Pending() { // perhaps the window has closed, or the connection is over
			s.receive()
			now = s.now
		}
		n, err = c.conn.Write(tcp.Time(now), p)
		s.settleTCP()
	}
	if err == nil && (n < len(p) || c.writeSlow || c.writing) {
		err = c.writeInTurn(func(now tcp.Time) (done bool, err error) {
			k, err := c.conn.Write(now, p[n:])
			n += k
			return n == len(p), err
		})
	} else if s.role != roleApplication {
		s.lookAround()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("write", "write", err)
	}
	return n, err
}

// writeInTurn calls write until that is done, waiting for room in between, while
// nobody else writes.
func (c *TCPConn) writeInTurn(write func(now tcp.Time) (done bool, err error)) error {
	s := c.stack
	for c.writing {
		if err := c.writeTrouble(); err != nil {
			return err
		}
		s.waitFor(&c.turn, c.writeDeadline)
	}
	c.writing = true
	defer func() {
		c.writing = false
		s.signal(&c.turn)
	}()
	for {
		if err := c.writeTrouble(); err != nil {
			return err
		}
		seq := c.writable.seq
		s.readClock()
		if s.link.Pending() {
			s.receive()
		}
		done, err := write(tcp.Time(s.now))
		s.settleTCP()
		if done || err != nil {
			return err
		}
		if c.writable.seq == seq { // or there is room, in a connection within the stack
			s.waitFor(&c.writable, c.writeDeadline)
		}
	}
}

// lookAround does for a writer, who may go on writing for long, what nobody polls
// for: it takes in the acknowledgments that have come and sends what has been corked
// long enough. The caretaker keeps out of that.
func (s *Stack) lookAround() {
	s.roleMoves++
	if s.role == roleCaretaker {
		s.signal(&s.recall)
	}
	if s.link.Pending() {
		s.input()
	}
	if s.now >= s.timerAt {
		s.runDue()
	}
	if s.role == roleFree {
		s.lookSoonForTCP()
	}
}

// Lend is Write without the copy: p is sent from where it lies, and must not change until
// Reclaim has returned. Large pieces gain by it, small ones do not. It waits while there is
// no room for p; there is for any length when nothing else is queued. After an error nothing
// of p is queued.
func (c *TCPConn) Lend(p []byte) error {
	s := c.stack
	s.mu.Lock()
	c.resumeAck()
	err := c.writeInTurn(func(now tcp.Time) (bool, error) { return c.conn.Lend(now, p) })
	s.mu.Unlock()
	return c.fail("write", "write", err)
}

// Reclaim waits until all that was lent is the caller's again: the peer has it, or the
// connection is over. It also works after Close. When it fails, by the write deadline
// or because the link is broken, the memory is still lent.
func (c *TCPConn) Reclaim() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	c.resumeAck()
	for {
		lent, returned := c.conn.Lent()
		switch {
		case lent == returned:
			return nil
		case s.broken != nil:
			return c.fail("write", "write", s.broken)
		case s.readClock() >= c.writeDeadline:
			return c.fail("write", "write", os.ErrDeadlineExceeded)
		}
		seq := c.reclaimed.seq
		c.conn.Flush(tcp.Time(s.now))
		s.settleTCP()
		if c.reclaimed.seq == seq {
			s.waitFor(&c.reclaimed, c.writeDeadline)
		}
	}
}

// readTrouble returns the reason why the connection is not read at all.
func (c *TCPConn) readTrouble() error {
	if c.closed {
		return net.ErrClosed
	}
	return c.stack.pastDeadline(c.readDeadline, &c.reads)
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

// CloseRead says that nothing more will be read: reads return io.EOF.
func (c *TCPConn) CloseRead() error {
	return c.fail("close", "shutdown", c.change(func(now tcp.Time) {
		c.conn.CloseRead(now)
		c.stack.broadcast(&c.readable)
	}))
}

// CloseWrite sends a FIN after all that has been written: the peer reads io.EOF. Reading
// goes on.
func (c *TCPConn) CloseWrite() error {
	var failed error
	err := c.change(func(now tcp.Time) {
		c.resumeAck()
		if failed = c.conn.CloseWrite(now); c.conn.State() == tcp.TimeWait || failed == syscall.ECONNRESET {
			failed = syscall.ENOTCONN
		}
		c.stack.broadcast(&c.writable)
	})
	if err == nil {
		err = failed
	}
	return c.fail("close", "shutdown", err)
}

// Close lets go of the connection. What has been written is still sent, and then
// a FIN; see [TCPConn.SetLinger]. If there is data that has not been read, the
// peer gets a RST. What blocks on the connection returns net.ErrClosed.
func (c *TCPConn) Close() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return c.fail("close", "close", net.ErrClosed)
	}
	c.close(c.linger)
	if c.linger > 0 {
		for until := s.now + instant(c.linger); !c.drained && !c.finished && s.now < until && !s.closed && s.broken == nil; {
			s.waitFor(&s.drained, until)
		}
		if !c.drained && !c.finished {
			c.conn.Abort()
			s.settleTCP()
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
	s.settleTCP()
	c.release()
}

// release is called when the owner or the engine is done with the connection.
func (c *TCPConn) release() {
	s := c.stack
	if _, known := s.tcpConns[c]; !known || !c.closed || !c.finished {
		return
	}
	delete(s.tcpConns, c)
	if c.port != nil {
		c.port.leave()
	}
	if c.chosen {
		s.ports.Release(c.conn.Local().Port)
	}
}

// closeTCP ends everything, when the stack closes. Every connection is closed as by
// Close, and what was written has a second to reach its peer. What has not ended then
// ends with a RST.
func (s *Stack) closeTCP() {
	s.closeAll()
	for until := s.readClock() + second; s.draining() && s.now < until; {
		s.waitFor(&s.drained, until)
	}
	s.closeAll() // what has come meanwhile
	s.tcp.Close()
	s.settleTCP()
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
// unspecified; port 0 asks for a free one. Errors: EAFNOSUPPORT, EADDRNOTAVAIL,
// EADDRINUSE.
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
	l := &TCPListener{stack: s, options: o.TCPOptions, deadline: never, port: &portUse{1, o.Released}}
	l.listener, err = s.tcp.Listen(at, tcp.ListenOptions{Owner: l, AcceptQueue: o.Backlog, Options: o.engine(s)})
	if err != nil {
		return nil, err
	}
	l.addr = net.TCPAddrFromAddrPort(l.listener.Addr().Netip())
	s.tcpListeners[l] = struct{}{}
	return l, nil
}

// Addr is where the listener listens, a *net.TCPAddr.
func (l *TCPListener) Addr() net.Addr { return l.addr }

func (l *TCPListener) fail(op string, err error) error {
	return opError(op, "tcp", op, nil, l.addr, err)
}

// Accept waits for a connection, a *TCPConn.
func (l *TCPListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err // a bare nil, not one in an interface
	}
	return c, nil
}

// AcceptTCP waits for a connection. It may be over already.
func (l *TCPListener) AcceptTCP() (*TCPConn, error) {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, l.fail("accept", net.ErrClosed)
		case l.deadline != never && s.readClock() >= l.deadline:
			return nil, l.fail("accept", os.ErrDeadlineExceeded)
		}
		if conn := l.listener.Accept(); conn != nil {
			if l.listener.Len() > 0 {
				s.signal(&l.acceptable) // there may have been one signal for several
			}
			return l.adopt(conn), nil
		}
		if s.broken != nil {
			return nil, l.fail("accept", s.broken)
		}
		s.waitFor(&l.acceptable, l.deadline)
	}
}

// adopt makes a socket of a connection that has come to the listener.
func (l *TCPListener) adopt(conn *tcp.Conn) *TCPConn {
	s := l.stack
	c := s.newTCPConn(&l.options)
	c.begin(conn)
	c.port = l.port
	c.port.users++
	c.connected = true
	c.finished = conn.State() == tcp.Closed || conn.State() == tcp.TimeWait
	if c.loop = s.isLoopBackTCP(conn.Local(), conn.Remote()); !c.loop {
		// The route is looked up while the application reads the request. If
		// there is none, the first segment finds that out.
		c.route, _ = s.usableRoute(conn.Remote().Addr)
	}
	return c
}

// SetDeadline sets when Accept, also one that blocks already, fails with
// os.ErrDeadlineExceeded. The zero time: never.
func (l *TCPListener) SetDeadline(t time.Time) error {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed {
		return l.fail("set", net.ErrClosed)
	}
	l.deadline = s.deadline(t)
	s.broadcast(&l.acceptable)
	return nil
}

// Close stops listening. Connections that have not been accepted get a RST, and
// those that have live on.
func (l *TCPListener) Close() error {
	s := l.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed {
		return l.fail("close", net.ErrClosed)
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
	s.settleTCP()
	l.port.leave()
}
