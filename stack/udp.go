package stack

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// UDPOptions of a socket. The zero value works.
type UDPOptions struct {
	QueueDatagrams int  // bound of the receive queue, datagrams; 0: [udp.DefaultQueueDatagrams]
	QueueBytes     int  // bound of the receive queue, bytes of payload; 0: [udp.DefaultQueueBytes]
	Reuse          bool // sockets that all set it may share a local port, see [udp.Table.Open]
	// Released is called once, when the socket has been closed. It must be quick and
	// must not call the stack.
	Released func()
}

// UDPConn is a UDP socket in this process. It is a net.PacketConn and, when it
// was dialled, a net.Conn, and behaves as package net's: deadlines, addresses,
// truncation, net.ErrClosed, os.ErrDeadlineExceeded, and the errnos that arrive
// as ICMP. Datagrams longer than the route's MTU are EMSGSIZE: nothing is
// fragmented. Its methods may be called from any goroutine.
//
// A send waits while the link takes no more: until the write deadline, or for a second,
// which is ENOBUFS. It does not wait for the route service: the datagram is held, and if
// there is no route the next call of a connected socket is EHOSTUNREACH, as is for a
// second each send to that destination. A datagram that the link has queued is sent; if
// the link takes it no further, the next send gets the error, and is not queued.
//
// Read, Write and their AddrPort forms do not allocate. ReadBatch and
// WriteBatch take one lock and one kick for many datagrams; Borrow and Reserve
// save the copy.
type UDPConn struct {
	stack *Stack
	udp   *udp.Socket
	src   [4]byte // address it sends from
	route *route  // of the last destination

	// recvSlow and sendSlow say that there is more to look at than the queue or
	// the route: socket closed, error pending, deadline set.
	recvSlow, sendSlow bool
	closed             bool
	pending            error // set by the stack; the engine keeps those it sets
	readDeadline       instant
	writeDeadline      instant
	reads              uint32 // since the clock was last read for readDeadline
	readable           event

	local, remote net.Addr // *net.UDPAddr; remote is nil unless connected
	released      func()
}

var (
	_ net.PacketConn = (*UDPConn)(nil)
	_ net.Conn       = (*UDPConn)(nil)
)

// UDPMessage is one datagram of a batch.
type UDPMessage struct {
	Buf  []byte         // receive: where to; send: the payload
	N    int            // receive: how many bytes of Buf were filled
	Addr netip.AddrPort // receive: the sender; send: the destination, zero for that of a connected socket
}

// UDPDatagram is a received datagram in the memory it came in.
type UDPDatagram struct {
	Payload []byte         // the application's until Return
	From    netip.AddrPort // the sender

	datagram udp.Datagram
	conn     *UDPConn
}

// UDPBuffer is a frame in which a datagram is composed.
type UDPBuffer struct {
	Payload []byte // the room for the payload; what Commit sends is its start

	frame Frame
	conn  *UDPConn
}

const (
	// payloadOffset is where the payload stands in a frame that is sent.
	payloadOffset = headersLen + wire.UDPHeaderLen
	// readsPerClock bounds how many datagrams a reader takes past its deadline
	// while there is always one queued.
	readsPerClock = 64

	// How long a send waits for a link that takes nothing.
	yieldsBeforeSleep = 64
	sendPause         = 50 * time.Microsecond
	sendTimeout       = second
)

// loopback is where the kernel sends what has no address.
var loopback = [4]byte{127, 0, 0, 1}

// ListenUDP makes a socket that receives from everybody. The address in local
// is the stack's, or unspecified; port 0 asks for a free one. Errors: EAFNOSUPPORT,
// EADDRNOTAVAIL, EADDRINUSE.
func (s *Stack) ListenUDP(local netip.AddrPort, o UDPOptions) (*UDPConn, error) {
	return s.openUDP(local, udp.AddrPort{}, o)
}

// DialUDP makes a socket that talks to remote only.
func (s *Stack) DialUDP(local, remote netip.AddrPort, o UDPOptions) (*UDPConn, error) {
	r, ok := wire.AddrPortFrom(remote)
	if !ok {
		return nil, syscall.EAFNOSUPPORT
	}
	if r.Port == 0 {
		return nil, syscall.EINVAL
	}
	if r.Addr == [4]byte{} {
		r.Addr = loopback
	}
	return s.openUDP(local, r, o)
}

func (s *Stack) openUDP(local netip.AddrPort, remote udp.AddrPort, o UDPOptions) (*UDPConn, error) {
	l, ok := wire.AddrPortFrom(local)
	if !ok {
		return nil, syscall.EAFNOSUPPORT
	}
	c := &UDPConn{stack: s, src: s.addr, readDeadline: never, writeDeadline: never, released: o.Released}
	if remote.Addr[0] == 127 {
		c.src = remote.Addr
	}
	switch {
	case l.Addr == [4]byte{}:
		if !remote.IsZero() {
			l.Addr = c.src
		}
	case l.Addr != c.src:
		return nil, syscall.EADDRNOTAVAIL
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, net.ErrClosed
	}
	var err error
	c.udp, err = s.udp.Open(l, remote, udp.Options{
		QueueDatagrams: o.QueueDatagrams, QueueBytes: o.QueueBytes, Reuse: o.Reuse, Owner: c,
	})
	if err != nil {
		return nil, err
	}
	c.local = net.UDPAddrFromAddrPort(c.udp.Local().Netip())
	if c.udp.Connected() {
		c.remote = net.UDPAddrFromAddrPort(remote.Netip())
	}
	s.sockets[c] = struct{}{}
	c.setSlow()
	return c, nil
}

// LocalAddr is the address and port of the socket, a *net.UDPAddr.
func (c *UDPConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the address that was dialled, a *net.UDPAddr, or nil.
func (c *UDPConn) RemoteAddr() net.Addr { return c.remote }

// Counters are what the socket has received, dropped and sent.
func (c *UDPConn) Counters() udp.SocketCounters {
	c.stack.mu.Lock()
	defer c.stack.mu.Unlock()
	return c.udp.Counters()
}

// fail is err as package net has it.
func (c *UDPConn) fail(op, call string, to net.Addr, err error) error {
	return opError(op, "udp", call, c.local, to, err)
}

// Close ends the socket. What blocks on it returns net.ErrClosed; what is
// queued is gone.
func (c *UDPConn) Close() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return c.fail("close", "close", c.remote, net.ErrClosed)
	}
	c.close()
	return nil
}

// close needs the lock.
func (c *UDPConn) close() {
	s := c.stack
	c.closed, c.recvSlow, c.sendSlow = true, true, true
	s.udp.Close(c.udp)
	var d udp.Datagram
	for c.udp.Pop(&d) {
		s.giveBack(d.Frame, d.Heap)
	}
	delete(s.sockets, c)
	s.broadcast(&c.readable)
	if c.released != nil {
		c.released()
	}
}

// SetReadDeadline sets when reads, also those that block already, fail with
// os.ErrDeadlineExceeded. The zero time: never.
func (c *UDPConn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline is the same for writes, which block only while the link takes
// no more.
func (c *UDPConn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

// SetDeadline sets both.
func (c *UDPConn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// setDeadlines calls back those who read with the old deadline. Those who wait for the link
// look at theirs all the time.
func (c *UDPConn) setDeadlines(t time.Time, read, write bool) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return opError("set", "udp", "", nil, c.local, net.ErrClosed)
	}
	at := s.deadline(t)
	s.readClock()
	if read {
		c.readDeadline, c.reads = at, 0
		s.broadcast(&c.readable)
	}
	if write {
		c.writeDeadline = at
	}
	c.setSlow()
	return nil
}

func (c *UDPConn) setSlow() {
	trouble := c.closed || c.pending != nil || c.udp.HasError()
	c.recvSlow = trouble || c.readDeadline != never
	c.sendSlow = trouble || c.writeDeadline != never || c.stack.down != 0 || c.stack.broken != nil || c.stack.kickErr != nil
}

// noteError makes the next call look for the pending error.
func (c *UDPConn) noteError() {
	c.setSlow()
	c.stack.broadcast(&c.readable)
}

// setError makes err the pending error, which the next call returns.
func (c *UDPConn) setError(err error) {
	if !c.closed {
		c.pending = err
		c.noteError()
	}
}

// trouble returns the reason why the socket can do nothing at all, or its
// pending error, once.
func (c *UDPConn) trouble() error {
	if c.closed {
		return net.ErrClosed
	}
	err := c.udp.TakeError()
	if c.pending != nil {
		err = c.pending
		c.pending = nil
	}
	c.setSlow()
	return err
}

// Read receives a datagram. What does not fit into b is lost. If b has no room at all it
// takes no datagram.
func (c *UDPConn) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		err = c.usable()
	} else {
		n, _, err = c.recv(b)
	}
	if err != nil {
		err = c.fail("read", "read", c.remote, err)
	}
	return n, err
}

// ReadFromUDPAddrPort receives a datagram and tells its sender. What does not fit into b is
// lost.
func (c *UDPConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, from, err := c.recv(b)
	if err != nil {
		return 0, netip.AddrPort{}, c.fail("read", "recvfrom", c.remote, err)
	}
	return n, from.Netip(), nil
}

// ReadFrom is ReadFromUDPAddrPort for net.PacketConn; the address is a
// *net.UDPAddr.
func (c *UDPConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// ReadBatch waits for a datagram, then takes all that are there, up to
// len(msgs), and returns how many.
func (c *UDPConn) ReadBatch(msgs []UDPMessage) (n int, err error) {
	if len(msgs) == 0 {
		return 0, nil
	}
	s := c.stack
	var d udp.Datagram
	s.mu.Lock()
	if err = c.take(&d); err == nil {
		for more := true; more; more = n < len(msgs) && c.udp.Pop(&d) {
			m := &msgs[n]
			m.N = copy(m.Buf, d.Payload)
			m.Addr = d.From.Netip()
			s.giveBack(d.Frame, d.Heap)
			n++
		}
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("read", "read", c.remote, err)
	}
	return n, err
}

// Borrow waits for a datagram and lends it where it lies, without a copy. It must go back
// with Return, and counts against the stack's frame quota until then.
func (c *UDPConn) Borrow() (UDPDatagram, error) {
	s := c.stack
	var d udp.Datagram
	s.mu.Lock()
	err := c.take(&d)
	s.mu.Unlock()
	if err != nil {
		return UDPDatagram{}, c.fail("read", "read", c.remote, err)
	}
	return UDPDatagram{Payload: d.Payload, From: d.From.Netip(), datagram: d, conn: c}, nil
}

// Return gives the memory of a borrowed datagram back, also after the socket
// has been closed. d is empty afterwards; to return it again is a bug.
func (c *UDPConn) Return(d *UDPDatagram) {
	if d.conn != c {
		panic("BUG: stack: a datagram is returned that was not borrowed here, or has been returned")
	}
	s := c.stack
	s.mu.Lock()
	s.giveBack(d.datagram.Frame, d.datagram.Heap)
	s.mu.Unlock()
	*d = UDPDatagram{}
}

// recv waits for a datagram and copies it to b.
func (c *UDPConn) recv(b []byte) (n int, from udp.AddrPort, err error) {
	s := c.stack
	var d udp.Datagram
	s.mu.Lock()
	if err = c.take(&d); err == nil {
		n = copy(b, d.Payload)
		s.giveBack(d.Frame, d.Heap)
	}
	s.mu.Unlock()
	return n, d.From, err
}

// take waits for a datagram and moves it to *d, or returns the reason why none will come.
func (c *UDPConn) take(d *udp.Datagram) error {
	s := c.stack
	for {
		if c.recvSlow {
			err := c.trouble()
			if err == nil {
				err = s.pastDeadline(c.readDeadline, &c.reads)
			}
			if err != nil {
				if c.udp.Len() > 0 && !c.closed {
					s.signal(&c.readable) // its signal may have woken this goroutine, which does not take it
				}
				return err
			}
		}
		if c.udp.Pop(d) {
			return nil
		}
		if s.broken != nil {
			return s.broken
		}
		s.waitFor(&c.readable, c.readDeadline)
	}
}

// usable returns the reason why the socket will never do anything again.
func (c *UDPConn) usable() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return s.broken
}

// Write sends a datagram to the address that was dialled.
func (c *UDPConn) Write(b []byte) (int, error) {
	s := c.stack
	s.mu.Lock()
	err := c.send(c.udp.Remote(), b, nil)
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	if err != nil {
		return 0, c.fail("write", "write", c.remote, err)
	}
	return len(b), nil
}

// WriteToUDPAddrPort sends a datagram to an address.
func (c *UDPConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	s := c.stack
	s.mu.Lock()
	dst, err := c.destination(to)
	if err == nil {
		err = c.send(dst, b, nil)
	}
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	if err != nil {
		return 0, c.fail("write", "sendto", net.UDPAddrFromAddrPort(to), err)
	}
	return len(b), nil
}

// WriteTo is WriteToUDPAddrPort for net.PacketConn; addr is a *net.UDPAddr.
func (c *UDPConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, &net.OpError{Op: "write", Net: "udp", Source: c.local, Addr: addr, Err: syscall.EINVAL}
	}
	return c.WriteToUDPAddrPort(b, a.AddrPort())
}

// WriteBatch sends datagrams with one kick. It returns how many were sent: all,
// unless there is an error.
func (c *UDPConn) WriteBatch(msgs []UDPMessage) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	for n < len(msgs) && err == nil {
		dst := c.udp.Remote()
		if m := &msgs[n]; m.Addr.IsValid() {
			dst, err = c.destination(m.Addr)
		}
		if err == nil {
			err = c.send(dst, msgs[n].Buf, nil)
		}
		if err == nil {
			n++
		}
	}
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("write", "write", c.remote, err)
	}
	return n, err
}

// Reserve hands out a frame to compose a datagram in. It must go to Commit or
// Cancel, and counts against the stack's frame quota until then: beyond it,
// ENOBUFS. Like a send it waits while no frame is free.
func (c *UDPConn) Reserve() (UDPBuffer, error) {
	f, err := c.reserve()
	if err != nil {
		return UDPBuffer{}, c.fail("write", "write", c.remote, err)
	}
	end := min(len(f.Data), wire.EthernetHeaderLen+c.stack.mtu)
	return UDPBuffer{Payload: f.Data[payloadOffset:end:end], frame: f, conn: c}, nil
}

func (c *UDPConn) reserve() (f Frame, err error) {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.sendTrouble(); err != nil {
		return f, err
	}
	if s.lent >= s.quota {
		return f, syscall.ENOBUFS
	}
	f, ok := s.link.Alloc()
	if !ok {
		if err := c.retry(errNoFrame, func() error {
			if f, ok = s.link.Alloc(); !ok {
				return errNoFrame
			}
			return nil
		}); err != nil {
			return f, err
		}
	}
	s.lent++
	return f, nil
}

// Commit sends the first n bytes of b's payload, to the address that was dialled if to is
// the zero value. After an error b is still the caller's, to commit again or to cancel.
func (c *UDPConn) Commit(b *UDPBuffer, n int, to netip.AddrPort) error {
	c.own(b)
	s := c.stack
	s.mu.Lock()
	err := error(syscall.EMSGSIZE)
	if n >= 0 && n <= len(b.Payload) {
		dst := c.udp.Remote()
		if err = nil; to.IsValid() {
			dst, err = c.destination(to)
		}
		if err == nil {
			err = c.send(dst, b.Payload[:n], &b.frame)
		}
	}
	if err == nil {
		c.took(b)
	}
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("write", "write", c.remote, err)
	}
	return err
}

// Cancel gives a reserved frame back unsent.
func (c *UDPConn) Cancel(b *UDPBuffer) {
	c.own(b)
	s := c.stack
	s.mu.Lock()
	if !s.closed {
		s.link.Release(b.frame)
	}
	c.took(b)
	s.mu.Unlock()
}

// own panics if b is not a buffer that c has handed out.
func (c *UDPConn) own(b *UDPBuffer) {
	if b.conn != c {
		panic("BUG: stack: a buffer that was not reserved here, or is used up")
	}
}

func (c *UDPConn) took(b *UDPBuffer) {
	c.stack.lent--
	*b = UDPBuffer{}
}

func (c *UDPConn) destination(to netip.AddrPort) (udp.AddrPort, error) {
	dst, ok := wire.AddrPortFrom(to)
	switch {
	case c.udp.Connected():
		return dst, net.ErrWriteToConnected
	case !ok:
		return dst, syscall.EAFNOSUPPORT
	case dst.Port == 0:
		return dst, syscall.EINVAL
	case dst.Addr == [4]byte{}:
		dst.Addr = loopback
	}
	return dst, nil
}

// The link cannot take a datagram now.
var (
	errNoFrame = errors.New("stack: no free frame")
	errNoRoom  = errors.New("stack: the send queue is full")
)

// send queues one datagram with the payload b; the caller flushes. If reserved is not nil it
// is the frame that b lies in, which is taken unless send fails. mu is held, but may be
// released meanwhile.
func (c *UDPConn) send(to udp.AddrPort, b []byte, reserved *Frame) error {
	err := c.queue(to, b, reserved)
	if err == errNoFrame || err == errNoRoom {
		err = c.retry(err, func() error { return c.queue(to, b, reserved) })
	}
	return err
}

// queue is send without waiting: errNoFrame or errNoRoom if the link takes nothing now.
func (c *UDPConn) queue(to udp.AddrPort, b []byte, reserved *Frame) error {
	s := c.stack
	r := c.route
	if c.sendSlow || r == nil || r.dst != to.Addr || r.state != routeReady {
		var err error
		if r, err = c.prepare(to); err != nil {
			return err
		}
		if r == nil {
			return c.loopBack(to, b, reserved)
		}
	}
	if len(b) > r.maxPayload {
		return syscall.EMSGSIZE
	}
	n := payloadOffset + len(b)
	flow := wire.UDPFlow{Src: s.addr, Dst: to.Addr, SrcPort: c.udp.Local().Port, DstPort: to.Port}
	var f Frame
	if reserved != nil {
		f = *reserved
		f.Data = f.Data[:n]
		wire.PutUDPInPlace(f.Data[headersLen:], &flow)
	} else {
		var ok bool
		if f, ok = s.alloc(n); !ok {
			return errNoFrame
		}
		if n > len(f.Data) {
			s.link.Release(f)
			return syscall.EMSGSIZE
		}
		f.Data = f.Data[:n]
		wire.PutUDPCopy(f.Data[headersLen:], &flow, b)
	}
	r.headers.put(f.Data, wire.ProtocolUDP, n-headersLen)
	r.sent++
	switch {
	case r.state != routeReady:
		s.hold(r, f, c)
	case s.link.Send(f):
		s.count[framesSent]++
		s.unflushed = true
		c.udp.CountSent()
	default:
		if reserved == nil {
			s.link.Release(f)
		}
		return errNoRoom
	}
	return nil
}

// prepare looks at all that may keep a datagram from being sent: errors, the deadline, the
// link, the route. A nil route means a destination within the stack.
func (c *UDPConn) prepare(to udp.AddrPort) (*route, error) {
	s := c.stack
	if err := c.sendTrouble(); err != nil {
		return nil, err
	}
	if to.Addr == [4]byte{} {
		return nil, syscall.EDESTADDRREQ
	}
	// If our address is shared, a port that is not ours may be another endpoint's.
	if to.Addr[0] == 127 || to.Addr == s.addr && (s.wholeAddress || s.udp.Lookup(c.loopBackSource(to), to) != nil) {
		return nil, nil
	}
	if err := s.unsendable(to.Addr); err != nil {
		return nil, err
	}
	if s.kickErr != nil {
		if err := s.flush(); err != nil {
			return nil, err
		}
	}
	r, err := s.usableRoute(to.Addr)
	if err == nil {
		c.route = r
	}
	return r, err
}

func (c *UDPConn) sendTrouble() error {
	if err := c.trouble(); err != nil {
		return err
	}
	if err := c.stack.broken; err != nil {
		return err
	}
	if c.writeDeadline != never && c.stack.readClock() >= c.writeDeadline {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// retry calls try until that returns neither errNoFrame nor errNoRoom, as err was. After
// sendTimeout the link is stuck: ENOBUFS. If the link has no frame to give back, packets
// that are held give way.
func (c *UDPConn) retry(err error, try func() error) error {
	s := c.stack
	s.count[sendBlocked]++
	s.retrying++
	giveUp := s.readClock() + sendTimeout
	for i := 0; ; i++ {
		short := err == errNoFrame
		if err = s.flush(); err != nil {
			break
		}
		s.input()
		if short && i >= yieldsBeforeSleep && len(s.held) > 0 {
			s.dropHeld(0)
		}
		if err = try(); err != errNoFrame && err != errNoRoom {
			break
		}
		if s.readClock() >= giveUp {
			err = syscall.ENOBUFS
			break
		}
		s.mu.Unlock()
		if i < yieldsBeforeSleep {
			runtime.Gosched()
		} else {
			time.Sleep(sendPause)
		}
		s.mu.Lock()
		if e := c.sendTrouble(); e != nil {
			err = e
			break
		}
		if s.down != 0 {
			err = s.down
			break
		}
	}
	if s.retrying--; s.closed {
		s.noteLeft()
	}
	return err
}

// loopBackSource is whom a datagram to an address of our own comes from: from
// 127.0.0.1 to 127.0.0.1, and from our address to our address.
func (c *UDPConn) loopBackSource(to udp.AddrPort) udp.AddrPort {
	return udp.AddrPort{Addr: to.Addr, Port: c.udp.Local().Port}
}

// loopBack hands a datagram to a socket of this stack, without a frame. The host's own
// loopback network is not reached from here: ENETUNREACH.
func (c *UDPConn) loopBack(to udp.AddrPort, b []byte, reserved *Frame) error {
	s := c.stack
	if len(b) > wire.MaxUDPPayload {
		return syscall.EMSGSIZE
	}
	from := c.loopBackSource(to)
	if to.Addr[0] == 127 && s.udp.Lookup(from, to) == nil {
		return syscall.ENETUNREACH
	}
	data := make([]byte, wire.UDPHeaderLen+len(b))
	wire.PutUDPCopy(data, &wire.UDPFlow{Src: from.Addr, Dst: to.Addr, SrcPort: from.Port, DstPort: to.Port}, b)
	sock, n, verdict := s.udp.Process(&udp.Inbound{Src: from.Addr, Dst: to.Addr, Data: data, Heap: true})
	if verdict == udp.NoSocket {
		if c.udp.Connected() {
			c.setError(syscall.ECONNREFUSED)
		}
	} else {
		if n > 0 {
			s.signal(&sock.Owner.(*UDPConn).readable)
		}
		s.count[loopedBack]++
		c.udp.CountSent()
	}
	if reserved != nil {
		s.link.Release(*reserved)
	}
	return nil
}

// inputUDP takes the datagram, or super-frame, in a packet, and reports whether the frame
// is kept.
func (s *Stack) inputUDP(p *packet) (kept bool) {
	in := udp.Inbound{Src: p.ip.Src, Dst: p.ip.Dst, Data: p.ip.Payload, Frame: p.frame, GSOSize: p.gso}
	switch {
	case p.memory != tcp.MemoryFrame:
		in.Heap, in.Frame = true, 0
	case s.lent >= s.quota:
		in.Data, in.Frame = s.copyBeyondQuota(in.Data)
		in.Heap = true
	}
	sock, n, verdict := s.udp.Process(&in)
	for range n {
		s.signal(&sock.Owner.(*UDPConn).readable)
	}
	switch {
	case n > 0 && !in.Heap:
		s.lent++
		return true
	case n == 0 && in.Heap:
		s.freeCopy(in.Frame)
	}
	if verdict == udp.NoSocket {
		s.sendUnreachable(p, wire.ICMPPortUnreachable)
	}
	return false
}

// Datagrams beyond the quota live in buffers that are used again: the number of
// the buffer, from 1, stands in Datagram.Frame. 0 is memory that is left to the
// collector.
const (
	copySize  = 2048 // bytes
	maxCopies = 1024
)

type copies struct {
	buffers [][]byte
	free    []uint64
}

func (s *Stack) copyBeyondQuota(data []byte) (copied []byte, number uint64) {
	s.count[quotaCopied]++
	c := &s.copies
	if k := len(c.free) - 1; k >= 0 && len(data) <= copySize {
		number = c.free[k]
		c.free = c.free[:k]
	} else if len(c.buffers) < maxCopies && len(data) <= copySize {
		c.buffers = append(c.buffers, make([]byte, copySize))
		number = uint64(len(c.buffers))
	} else {
		return append([]byte(nil), data...), 0
	}
	copied = c.buffers[number-1][:len(data)]
	copy(copied, data)
	return copied, number
}

func (s *Stack) freeCopy(number uint64) {
	if number != 0 {
		s.copies.free = append(s.copies.free, number)
	}
}

// giveBack returns the memory of a datagram or segment that a socket has kept: the frame
// with that ID, or with heap the copy of that number.
func (s *Stack) giveBack(frame uint64, heap bool) {
	if heap {
		s.freeCopy(frame)
		return
	}
	s.lent--
	if !s.closed {
		s.link.Release(Frame{ID: frame})
	}
}
