package stack

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"

	"github.com/unet-go/unet/proto/frag"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// inputFragment takes a fragment of a UDP datagram to an owned address, and the datagram if that
// completes it. The datagram gets memory of its own. All other fragments are dropped. Those to a
// shared address do not reach the stack, since only the first one has a port. The TCP and ICMP
// messages of use here fit any MTU, and neighbour discovery must not be fragmented (RFC 6980).
func (s *Stack) inputFragment(p *packet) {
	udp, dropped := p.ip.Protocol == wire.ProtocolUDP, ipv4Fragment
	if !p.dst.Is4() { // the next header of the first fragment counts (RFC 8200, section 4.5)
		next := p.ip6.Protocol
		udp, dropped = next == wire.ProtocolUDP || next == wire.ProtocolDestination || p.ip6.Fragment&^7 != 0, ipv6Fragment
	}
	if !s.ownedAddress || !udp {
		s.count[dropped]++
		return
	}
	var whole []byte
	var v frag.Verdict
	if p.dst.Is4() {
		whole, v = s.fragments.IPv4(frag.Time(s.now), &p.ip)
	} else {
		whole, v = s.fragments.IPv6(frag.Time(s.now), p.ip6)
	}
	if v == frag.Complete {
		link := p.data[:len(p.data)-len(p.eth.Payload)]
		s.inputPacket(&packet{data: slices.Concat(link, whole), memory: tcp.MemoryHeap, reassembled: true})
	}
}

// SetDontFragment sets whether a datagram that is longer than the path's MTU is EMSGSIZE, also at
// an owned address. A program that finds out the path's MTU itself needs that. By default the
// datagram is sent in fragments.
func (c *UDPConn) SetDontFragment(dont bool) {
	c.stack.mu.Lock()
	c.dontFragment = dont
	c.stack.mu.Unlock()
}

// queueFragments is queue for a datagram that does not fit into a packet. The port program permits
// fragments only from the owner of an address. While there is no route the datagram is not
// held: its sender waits, as for a link that takes nothing.
func (c *UDPConn) queueFragments(r *route, flow *wire.UDPFlow, b []byte, reserved *Frame) error {
	s := c.stack
	v6 := r.headers.len == headersLen6
	head, room, most := r.headers.len, r.maxPayload+wire.UDPHeaderLen, wire.MaxUDPPayload
	if v6 {
		head, room, most = head+wire.IPv6FragmentLen, room-wire.IPv6FragmentLen, math.MaxUint16-wire.UDPHeaderLen
	}
	switch {
	case !s.ownedAddress, r.group, c.dontFragment, len(b) > most, room < 8:
		return syscall.EMSGSIZE
	case r.state != routeReady:
		return errNoRoom
	}
	s.divided = slices.Grow(s.divided[:0], wire.UDPHeaderLen+len(b))[:wire.UDPHeaderLen+len(b)]
	wire.PutUDPCopy(s.divided, flow, b)
	s.pieces = s.pieces[:0]
	for p := range frag.Pieces(len(s.divided), room) {
		f, ok := s.link.Alloc(head + p.Len)
		if !ok {
			s.releaseAll(s.pieces)
			return errNoFrame
		}
		s.pieces = append(s.pieces, f)
		if head+p.Len > len(f.Data) {
			s.releaseAll(s.pieces)
			return syscall.EMSGSIZE
		}
	}
	if s.ids == nil {
		s.ids = frag.NewIDs(rand.Uint32)
	}
	id := s.ids.IPv6()
	if !v6 {
		id = uint32(s.ids.IPv4())
	}
	i := 0
	for p := range frag.Pieces(len(s.divided), room) {
		f := &s.pieces[i]
		f.Data = f.Data[:head+p.Len]
		c.putFragment(f.Data, r, flow.Src, p, id)
		copy(f.Data[head:], s.divided[p.Offset:])
		i++
	}
	for i, f := range s.pieces {
		if !s.link.Send(f) {
			s.flush()
			if !s.link.Send(f) {
				s.releaseAll(s.pieces[i:])
				return errNoRoom
			}
		}
		s.count[framesSent]++
		s.unflushed = true
	}
	r.sent++
	c.udp.CountSent()
	if reserved != nil {
		s.link.Release(*reserved)
	}
	return nil
}

// putFragment writes the headers of a fragment to the start of b.
func (c *UDPConn) putFragment(b []byte, r *route, from wire.Addr, p frag.Piece, id uint32) {
	ip := b[wire.EthernetHeaderLen:]
	if r.headers.len == headersLen6 {
		r.headers.put(b, from, wire.ProtocolFragment, wire.IPv6FragmentLen+p.Len)
		wire.PutIPv6Fragment(ip[wire.IPv6HeaderLen:], wire.ProtocolUDP, p.Field(true), id)
		if c.tos != 0 {
			setTOS(b, c.tos)
		}
		return
	}
	r.headers.put(b, from, wire.ProtocolUDP, p.Len)
	ip[1] = c.tos
	binary.BigEndian.PutUint16(ip[4:], uint16(id))
	binary.BigEndian.PutUint16(ip[6:], p.Field(false)) // without DF
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^wire.Fold(wire.Sum(ip[:wire.IPv4HeaderLen], 0)))
}
