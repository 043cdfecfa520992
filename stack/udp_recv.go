package stack

import (
	"net"
	"net/netip"

	"github.com/unet-go/unet/proto/udp"
)

// RecvFrom waits for a datagram and copies its payload to b. What does not fit
// is lost, as with recvfrom(2).
func (c *UDPSocket) RecvFrom(b []byte) (n int, from netip.AddrPort, err error) {
	s := c.stack
	var d udp.Datagram
	s.mu.Lock()
	if c.recvSlow || !c.udp.Pop(&d) {
		if err := c.await(); err != nil {
			s.mu.Unlock()
			return 0, netip.AddrPort{}, err
		}
		c.udp.Pop(&d)
	}
	n = copy(b, d.Payload)
	s.giveBack(&d)
	s.mu.Unlock()
	return n, d.From.Netip(), nil
}

// Recv is RecvFrom without the sender, for a connected socket. Like the Read of
// package net, and unlike RecvFrom, it takes no datagram if b has no room at all:
// it returns 0 at once.
func (c *UDPSocket) Recv(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, c.usable()
	}
	n, _, err = c.RecvFrom(b)
	return n, err
}

// usable returns the reason why the socket will never do anything again.
func (c *UDPSocket) usable() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return s.broken
}

// UDPMessage is one datagram of a batch.
type UDPMessage struct {
	Buf  []byte         // receive: where to; send: the payload
	N    int            // receive: how many bytes of Buf were filled
	Addr netip.AddrPort // receive: the sender; send: the destination, zero for that of a connected socket
}

// RecvBatch waits for a datagram, then takes all that are there, up to
// len(msgs), and returns how many.
func (c *UDPSocket) RecvBatch(msgs []UDPMessage) (n int, err error) {
	if len(msgs) == 0 {
		return 0, nil
	}
	s := c.stack
	var d udp.Datagram
	s.mu.Lock()
	if c.recvSlow || c.udp.Len() == 0 {
		if err := c.await(); err != nil {
			s.mu.Unlock()
			return 0, err
		}
	}
	for n < len(msgs) && c.udp.Pop(&d) {
		m := &msgs[n]
		m.N = copy(m.Buf, d.Payload)
		m.Addr = d.From.Netip()
		s.giveBack(&d)
		n++
	}
	s.mu.Unlock()
	return n, nil
}

// UDPDatagram is a received datagram in the memory it came in.
type UDPDatagram struct {
	Payload []byte         // the application's until Return
	From    netip.AddrPort // the sender

	datagram udp.Datagram
	socket   *UDPSocket
}

// Borrow waits for a datagram and lends it without a copy. It counts against
// the stack's frame quota until it is returned.
func (c *UDPSocket) Borrow() (UDPDatagram, error) {
	s := c.stack
	var d udp.Datagram
	s.mu.Lock()
	if c.recvSlow || !c.udp.Pop(&d) {
		if err := c.await(); err != nil {
			s.mu.Unlock()
			return UDPDatagram{}, err
		}
		c.udp.Pop(&d)
	}
	s.mu.Unlock()
	return UDPDatagram{Payload: d.Payload, From: d.From.Netip(), datagram: d, socket: c}, nil
}

// Return gives the memory of a borrowed datagram back, also after the socket
// has been closed. d is empty afterwards; to return it again is a bug.
func (c *UDPSocket) Return(d *UDPDatagram) {
	if d.socket != c {
		panic("BUG: stack: a datagram is returned that was not borrowed here, or has been returned")
	}
	s := c.stack
	s.mu.Lock()
	s.giveBack(&d.datagram)
	s.mu.Unlock()
	*d = UDPDatagram{}
}
