package stack

import (
	"net"
	"net/netip"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// UDPDatagram is a received datagram in the memory it came in.
type UDPDatagram struct {
	Payload []byte         // the application's until Return
	From    netip.AddrPort // the sender
	ECN     uint8          // of the IP header, see [wire.ECNMask]

	datagram udp.Datagram
	conn     *UDPConn
}

// inputUDP takes a packet that is a datagram or a super-frame, and reports whether its
// frame is kept. to: the socket that is a member of the group the packet is for; nil: the engine looks the
// socket up.
//
// +checklocks:s.mu
func (s *Stack) inputUDP(p *packet, to *udp.Socket, group uint8) (kept bool) {
	in := udp.Inbound{To: to, Group: group, Src: p.src, Dst: p.dst, Data: p.payload, Frame: p.frame, GSOSize: p.gso, ECN: p.ecn, Reassembled: p.reassembled, Complete: p.uplink.complete}
	switch {
	case p.memory != memoryFrame:
		in.Heap, in.Frame = true, 0
	case s.lent >= s.quota:
		in.Data, in.Frame = s.copyBeyondQuota(in.Data)
		in.Heap = true
	}
	sock, n, verdict := s.udp.Process(&in)
	if n > 0 {
		c, ok := sock.Owner.(*UDPConn)
		if !ok {
			port := sock.Owner.(*UDPPort)
			port.touch()  // +checklocksignore: a port of this stack
			port.input(p) // +checklocksignore: a port of this stack
			if in.Heap {
				s.freeCopy(in.Frame)
			}
			return false
		}
		for range n {
			s.role.signal(&c.readable)
		}
		if s.unserved {
			s.noteSource(sock, p)
		}
		if in.Heap {
			return false
		}
		s.lent++
		return true
	}
	if in.Heap {
		s.freeCopy(in.Frame)
	}
	switch {
	case verdict != udp.NoSocket:
	case p.dst.Is4():
		s.sendICMPError(p, wire.ICMPUnreachable, wire.ICMPPortUnreachable, 0)
	default:
		s.sendICMPError(p, wire.ICMPv6Unreachable, wire.ICMPv6PortUnreachable, 0)
	}
	return false
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

// ReadFromUDPAddrPort receives a datagram and returns its sender. What does not fit into b is
// lost.
func (c *UDPConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, from, err := c.recv(b)
	if err != nil {
		return 0, netip.AddrPort{}, c.fail("read", "recvfrom", c.remote, err)
	}
	return n, c.stack.netipPort(from), nil
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
			m.Addr, m.ECN = s.netipPort(d.From), d.ECN
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

// Borrow waits for a datagram and lends the memory that it was received in, without a copy.
// It must be given back with Return, and counts against the stack's frame quota until then.
func (c *UDPConn) Borrow() (UDPDatagram, error) {
	s := c.stack
	var d udp.Datagram
	s.mu.Lock()
	err := c.take(&d)
	s.mu.Unlock()
	if err != nil {
		return UDPDatagram{}, c.fail("read", "read", c.remote, err)
	}
	return UDPDatagram{Payload: d.Payload, From: s.netipPort(d.From), ECN: d.ECN, datagram: d, conn: c}, nil
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
//
// +checklocks:c.stack.mu
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
					s.role.signal(&c.readable) // its signal may have woken this goroutine, which does not take it
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

// usable returns why the socket has ended, if it has.
func (c *UDPConn) usable() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return s.ended()
	}
	return s.broken
}

// Datagrams beyond the quota are copied to buffers that are used again. Datagram.Frame is
// then the number of the buffer, from 1. 0 is memory that the garbage collector frees.
const (
	copySize  = 2048 // bytes
	maxCopies = 1024
)

type copies struct {
	buffers [][]byte
	free    []uint64
}

// +checklocks:s.mu
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

// +checklocks:s.mu
func (s *Stack) freeCopy(number uint64) {
	if number != 0 {
		s.copies.free = append(s.copies.free, number)
	}
}
