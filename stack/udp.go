package stack

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// UDPOptions of a socket. The zero value works.
type UDPOptions struct {
	QueueDatagrams int  // bound of the receive queue, datagrams; 0: [udp.DefaultQueueDatagrams]
	QueueBytes     int  // bound of the receive queue, bytes of payload; 0: [udp.DefaultQueueBytes]
	Reuse          bool // sockets that all set it may share a local port, see [udp.Table.Open]
}

// UDPSocket is one UDP socket of a stack. Its methods may be called from any
// goroutine. Errors are bare: net.ErrClosed, os.ErrDeadlineExceeded and
// syscall.Errno values.
type UDPSocket struct {
	stack *Stack
	udp   *udp.Socket
	src   [4]byte // address it sends from

	// recvSlow and sendSlow say that there is more to look at than the queue or
	// the route: socket closed, error pending, deadline set.
	recvSlow, sendSlow bool
	closed             bool
	pending            error // set by the stack; the engine keeps those it sets
	readDeadline       instant
	writeDeadline      instant
	reads              uint32 // since the clock was last read for readDeadline

	readable event
	route    *route // of the last destination
}

// readsPerClock bounds how many datagrams a reader takes past its deadline
// while there is always one queued.
const readsPerClock = 64

// ListenUDP makes a socket that receives from everybody. The address in local
// is the stack's, or unspecified; port 0 asks for a free one.
func (s *Stack) ListenUDP(local netip.AddrPort, o UDPOptions) (*UDPSocket, error) {
	return s.openUDP(local, udp.AddrPort{}, o)
}

// DialUDP makes a socket that talks to remote only.
func (s *Stack) DialUDP(local, remote netip.AddrPort, o UDPOptions) (*UDPSocket, error) {
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

// loopback is where the kernel sends what has no address.
var loopback = [4]byte{127, 0, 0, 1}

func (s *Stack) openUDP(local netip.AddrPort, remote udp.AddrPort, o UDPOptions) (*UDPSocket, error) {
	l, ok := wire.AddrPortFrom(local)
	if !ok {
		return nil, syscall.EAFNOSUPPORT
	}
	c := &UDPSocket{stack: s, src: s.addr, readDeadline: never, writeDeadline: never}
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
	s.sockets[c] = struct{}{}
	c.setSlow()
	return c, nil
}

// LocalAddr is where the socket receives.
func (c *UDPSocket) LocalAddr() netip.AddrPort { return c.udp.Local().Netip() }

// RemoteAddr is whom the socket is connected to, or the zero value.
func (c *UDPSocket) RemoteAddr() netip.AddrPort {
	if !c.udp.Connected() {
		return netip.AddrPort{}
	}
	return c.udp.Remote().Netip()
}

// Counters returns the socket's own counts.
func (c *UDPSocket) Counters() udp.SocketCounters {
	c.stack.mu.Lock()
	defer c.stack.mu.Unlock()
	return c.udp.Counters()
}

// Close ends the socket. What blocks on it returns net.ErrClosed; what is
// queued is gone.
func (c *UDPSocket) Close() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.close()
	return nil
}

// close needs the lock.
func (c *UDPSocket) close() {
	s := c.stack
	c.closed, c.recvSlow, c.sendSlow = true, true, true
	s.udp.Close(c.udp)
	var d udp.Datagram
	for c.udp.Pop(&d) {
		s.giveBack(&d)
	}
	delete(s.sockets, c)
	s.broadcast(&c.readable)
}

// SetReadDeadline sets the time at which reads, also those that block already,
// fail with os.ErrDeadlineExceeded. The zero time: never.
func (c *UDPSocket) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readDeadline, t)
}

// SetWriteDeadline is the same for writes, which block only while the link takes
// no more.
func (c *UDPSocket) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeDeadline, t)
}

// SetDeadline sets both.
func (c *UDPSocket) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// setDeadline sets *d and calls those back who read with the old one. Those who
// wait for the link look at theirs all the time.
func (c *UDPSocket) setDeadline(d *instant, t time.Time) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	*d = never
	if !t.IsZero() {
		*d = min(s.instant(t), never-1)
		s.readClock()
	}
	c.reads = 0
	c.setSlow()
	if d == &c.readDeadline {
		s.broadcast(&c.readable)
	}
	return nil
}

func (c *UDPSocket) setSlow() {
	trouble := c.closed || c.pending != nil || c.udp.HasError()
	c.recvSlow = trouble || c.readDeadline != never
	c.sendSlow = trouble || c.writeDeadline != never || c.stack.down != 0 || c.stack.broken != nil || c.stack.kickErr != nil
}

// noteError makes the next call look for the pending error.
func (c *UDPSocket) noteError() {
	c.setSlow()
	c.stack.broadcast(&c.readable)
}

// setError makes err the pending error, which the next call returns.
func (c *UDPSocket) setError(err error) {
	if !c.closed {
		c.pending = err
		c.noteError()
	}
}

// trouble returns the reason why the socket can do nothing at all, or its
// pending error, once.
func (c *UDPSocket) trouble() error {
	if c.closed {
		return net.ErrClosed
	}
	err := c.pending
	c.pending = nil
	if err == nil {
		err = c.udp.TakeError()
	} else {
		c.udp.TakeError()
	}
	c.setSlow()
	return err
}

// inputUDP takes the datagram, or super-frame, in a packet. See inputEthernet
// for f and kept.
func (s *Stack) inputUDP(eth wire.Ethernet, ip wire.IPv4, f *Frame, gso uint16) (kept bool) {
	in := udp.Inbound{Src: ip.Src(), Dst: ip.Dst(), Data: ip.Payload(), GSOSize: gso}
	switch {
	case f == nil:
		in.Heap = true
	case s.lent >= s.quota:
		in.Data, in.Frame = s.copyBeyondQuota(in.Data)
		in.Heap = true
	default:
		in.Frame = f.ID
	}
	sock, n, verdict := s.udp.Process(&in)
	if n > 0 {
		if !in.Heap {
			s.lent++
			kept = true
		}
		s.signal(&sock.Owner.(*UDPSocket).readable)
		for ; n > 1; n-- {
			s.signal(&sock.Owner.(*UDPSocket).readable)
		}
		return kept
	}
	if in.Heap {
		s.freeCopy(in.Frame)
	}
	if verdict == udp.NoSocket {
		s.sendUnreachable(eth, ip, wire.ICMPPortUnreachable)
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

// giveBack ends the life of a datagram that was popped. mu is held.
func (s *Stack) giveBack(d *udp.Datagram) {
	if !d.Heap {
		s.lent--
		if !s.closed {
			s.link.Release(Frame{ID: d.Frame})
		}
		return
	}
	s.freeCopy(d.Frame)
}

// await returns when a datagram is queued, or the reason why none will be.
func (c *UDPSocket) await() error {
	s := c.stack
	for {
		err := c.recvTrouble()
		if err != nil {
			if c.udp.Len() > 0 && !c.closed {
				s.signal(&c.readable) // it may have been for this goroutine that leaves without it
			}
			return err
		}
		if c.udp.Len() > 0 {
			return nil
		}
		if s.broken != nil {
			return s.broken
		}
		s.waitFor(&c.readable, c.readDeadline)
	}
}

func (c *UDPSocket) recvTrouble() error {
	if err := c.trouble(); err != nil {
		return err
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
