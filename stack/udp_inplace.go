package stack

import (
	"net/netip"
	"syscall"

	"github.com/unet-go/unet/wire"
)

// UDPBuffer is a frame in which a datagram is composed in place.
type UDPBuffer struct {
	// Payload is the room for the payload; what Commit sends is its start.
	Payload []byte

	frame  Frame
	socket *UDPSocket
}

// Reserve hands out a frame to compose a datagram in. It must go to [Commit] or
// [Cancel], and counts against the stack's frame quota until then: beyond it,
// ENOBUFS. Like a send it waits while no frame is free.
//
// [Commit]: UDPSocket.Commit
// [Cancel]: UDPSocket.Cancel
func (c *UDPSocket) Reserve() (UDPBuffer, error) {
	s := c.stack
	s.mu.Lock()
	if c.sendSlow {
		if err := c.sendTrouble(); err != nil {
			s.mu.Unlock()
			return UDPBuffer{}, err
		}
	}
	if s.lent >= s.quota {
		s.mu.Unlock()
		return UDPBuffer{}, syscall.ENOBUFS
	}
	f, ok := s.link.Alloc()
	if !ok {
		var err error
		if f, err = c.allocWait(0); err != nil {
			s.mu.Unlock()
			return UDPBuffer{}, err
		}
	}
	s.lent++
	s.mu.Unlock()
	end := min(len(f.Data), wire.EthernetHeaderLen+s.mtu)
	return UDPBuffer{Payload: f.Data[payloadOffset:end:end], frame: f, socket: c}, nil
}

// Commit sends the first n bytes of b's payload, to the peer of a connected
// socket if to is the zero value. It takes the buffer only if it succeeds;
// after an error b is still the caller's, to commit again or to cancel.
func (c *UDPSocket) Commit(b *UDPBuffer, n int, to netip.AddrPort) error {
	s := c.stack
	s.mu.Lock()
	err := c.commit(b, n, to)
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	return err
}

func (c *UDPSocket) commit(b *UDPBuffer, n int, to netip.AddrPort) error {
	c.own(b)
	if n < 0 || n > len(b.Payload) {
		return syscall.EMSGSIZE
	}
	s := c.stack
	dst := c.udp.Remote()
	if to.IsValid() {
		var err error
		if dst, err = c.destination(to); err != nil {
			return err
		}
	}
	r := c.route
	if c.sendSlow || r == nil || r.dst != dst.Addr || r.state != routeReady {
		var err error
		if r, err = c.prepare(dst); err != nil {
			return err
		}
	}
	if r == nil {
		if err := c.loopBack(b.Payload[:n], dst); err != nil {
			return err
		}
		s.link.Release(b.frame)
		c.took(b)
		return nil
	}
	if n > r.maxPayload {
		return syscall.EMSGSIZE
	}
	f := b.frame
	f.Data = f.Data[:payloadOffset+n]
	if err := c.udp.EmitInPlace(f.Data[headersLen:], s.addr, dst); err != nil {
		return err
	}
	if err := c.sendFrame(r, f); err != nil {
		return err
	}
	c.took(b)
	return nil
}

// Cancel gives a reserved frame back unsent.
func (c *UDPSocket) Cancel(b *UDPBuffer) {
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
func (c *UDPSocket) own(b *UDPBuffer) {
	if b.socket != c {
		panic("BUG: stack: a buffer that was not reserved here, or is used up")
	}
}

func (c *UDPSocket) took(b *UDPBuffer) {
	c.stack.lent--
	*b = UDPBuffer{}
}
