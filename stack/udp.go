package stack

import (
	"cmp"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// UDPOptions of a socket. The zero value works.
type UDPOptions struct {
	Network        string // in the errors of the socket: "udp4" or "udp6"; empty: "udp"
	QueueDatagrams int    // bound of the receive queue, datagrams; 0: [udp.DefaultQueueDatagrams]
	Shared         bool   // see [udp.Options]; only for ListenUDP
	// Groups claims the groups that the socket joins; nil: nothing has to be claimed.
	Groups Groups
	Shown  netip.Addr // in LocalAddr instead of an unspecified address; may be left out
	// Released is called once, when the socket has been closed. It must be quick and
	// must not call the stack.
	Released func()
}

// UDPConn is a UDP socket in this process. It is a net.PacketConn and, when it
// was dialled, a net.Conn, and behaves as package net's: deadlines, addresses,
// truncation, net.ErrClosed, os.ErrDeadlineExceeded, and the errnos that arrive
// as ICMP. Datagrams longer than the path's MTU are sent in fragments by the owner of a whole
// address, unless SetDontFragment forbids it; otherwise they are EMSGSIZE. Its methods may be
// called from any goroutine.
//
// While the link takes no more, a send waits until the write deadline, and fails with
// ENOBUFS after one second. It does not wait for the route service, unless the datagram is to be
// sent in fragments: the datagram is held. If there is no route, the next call of a connected socket
// fails with EHOSTUNREACH, and for one second so does each send to that destination. A send has
// succeeded when the link has queued its datagram. If the link cannot send what is queued,
// the next send returns the error and queues nothing.
//
// Read, Write and their AddrPort forms do not allocate. ReadBatch and
// WriteBatch take one lock and one kick for many datagrams; Borrow and Reserve
// save the copy.
type UDPConn struct {
	stack *Stack
	udp   *udp.Socket

	record *wire.Connection // the published one; nil: none

	route     *route    // of the last destination
	routeFrom wire.Addr // from when it was looked up

	// recvSlow and sendSlow: the next receive or send has to check more than the queue or
	// the route, because the socket is closed, an error is pending or a deadline is set.
	recvSlow, sendSlow bool
	closed             bool
	readDeadline       instant
	writeDeadline      instant
	reads              uint32 // since the clock was last read for readDeadline
	readable           event
	tos                uint8     // type of service of the datagram that queue writes
	from               wire.Addr // its source, if a control message names it; or zero
	dontFragment       bool
	multicastHops      uint8 // TTL or hop limit of what is sent to groups; 0: 1
	noLoop             bool  // what is sent to groups does not come back to sockets of this stack
	broadcasts         bool  // may send to broadcast addresses

	local, remote net.Addr // *net.UDPAddr; remote is nil unless connected
	network       string   // in errors
	groups        Groups
	joined        []joinedGroup // the groups that the socket has joined
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
	ECN  uint8          // receive: that of the IP header, see [wire.ECNMask]; send: not used
}

// ListenUDP makes a socket that receives from every sender. The address in local
// is the stack's, or unspecified; port 0 stands for a free one. Errors: EAFNOSUPPORT,
// EADDRNOTAVAIL, EADDRINUSE.
func (s *Stack) ListenUDP(local netip.AddrPort, o UDPOptions) (*UDPConn, error) {
	return s.openUDP(local, udp.AddrPort{}, o)
}

// DialUDP makes a socket that sends to remote, and receives from remote only.
func (s *Stack) DialUDP(local, remote netip.AddrPort, o UDPOptions) (*UDPConn, error) {
	r, err := s.remoteEnd(remote, cmp.Or(o.Network, "udp"))
	if err != nil {
		return nil, err
	}
	if r.Port == 0 {
		return nil, syscall.EINVAL
	}
	return s.openUDP(local, r, o)
}

func (s *Stack) newUDPConn(o *UDPOptions) *UDPConn {
	return &UDPConn{stack: s, readDeadline: never, writeDeadline: never, network: cmp.Or(o.Network, "udp"), groups: o.Groups, released: o.Released}
}

func (s *Stack) openUDP(local netip.AddrPort, remote udp.AddrPort, o UDPOptions) (*UDPConn, error) {
	c := s.newUDPConn(&o)
	l, err := s.localEnd(local, remote.Addr, c.network)
	if err != nil {
		return nil, err
	}
	if remote.Addr.IsLoopback() && l.Addr != remote.Addr { // see loopBackSource
		return nil, syscall.EADDRNOTAVAIL
	}
	if err := c.open(l, remote, o); err != nil {
		return nil, err
	}
	return c, nil
}

// open opens the socket in the engine.
func (c *UDPConn) open(l, remote udp.AddrPort, o UDPOptions) (err error) {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.broken != nil {
		return s.ended()
	}
	c.udp, err = s.udp.Open(l, remote, udp.Options{
		QueueDatagrams: o.QueueDatagrams, Shared: o.Shared, Owner: c,
	})
	if err != nil {
		return err
	}
	c.local = net.UDPAddrFromAddrPort(s.shown(c.udp.Local(), o.Shown))
	if c.udp.Connected() {
		c.remote = net.UDPAddrFromAddrPort(s.netipPort(remote))
	}
	c.record = s.publisher.recordUDP(c.udp)
	s.udpConns[c] = struct{}{}
	c.setSlow()
	return nil
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
	return opError(op, c.network, call, c.local, to, err)
}

// Close ends the socket. Calls that block on it return net.ErrClosed; queued
// datagrams are dropped.
func (c *UDPConn) Close() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return c.fail("close", "close", c.remote, s.ended())
	}
	c.close()
	return nil
}

// close needs the lock.
//
// +checklocks:c.stack.mu
func (c *UDPConn) close() {
	s := c.stack
	c.closed, c.recvSlow, c.sendSlow = true, true, true
	s.udp.Close(c.udp)
	var d udp.Datagram
	for c.udp.Pop(&d) {
		s.giveBack(d.Frame, d.Heap)
	}
	s.publisher.records.Put(c.record)
	delete(s.udpConns, c)
	c.leaveAll()
	s.role.broadcast(&c.readable)
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

// setDeadlines wakes the readers, which wait with the old deadline. Senders that wait for
// the link check theirs after each try.
func (c *UDPConn) setDeadlines(t time.Time, read, write bool) error {
	return c.set(func() { c.moveDeadlines(t, read, write) }) // +checklocksignore: set calls this with mu held
}

// +checklocks:c.stack.mu
func (c *UDPConn) moveDeadlines(t time.Time, read, write bool) {
	s := c.stack
	at := s.deadline(t)
	s.readClock()
	if read {
		c.readDeadline, c.reads = at, 0
		s.role.broadcast(&c.readable)
	}
	if write {
		c.writeDeadline = at
	}
	c.setSlow()
}

// +checklocks:c.stack.mu
func (c *UDPConn) setSlow() {
	trouble := c.closed || c.udp.HasError()
	c.recvSlow = trouble || c.readDeadline != never
	c.sendSlow = trouble || c.writeDeadline != never || c.stack.down > 0 || c.stack.broken != nil || c.stack.kickErrs > 0
}

// noteError makes the next call look for the pending error.
//
// +checklocks:c.stack.mu
func (c *UDPConn) noteError() {
	c.setSlow()
	c.stack.role.broadcast(&c.readable)
}

// setError makes err the pending error, which the next call returns.
//
// +checklocks:c.stack.mu
func (c *UDPConn) setError(err error) {
	if !c.closed {
		c.udp.SetError(err)
		c.noteError()
	}
}

// trouble returns why a closed socket has ended, or the pending error, once.
//
// +checklocks:c.stack.mu
func (c *UDPConn) trouble() error {
	if c.closed {
		return c.stack.ended()
	}
	err := c.udp.TakeError()
	c.setSlow()
	return err
}
