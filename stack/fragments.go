package stack

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"

	"github.com/unet-go/unet/proto/frag"
	"github.com/unet-go/unet/wire"
)

// inputFragment takes a fragment to an owned address, and the packet if that completes it. The
// packet gets memory of its own. Fragments to a shared address are dropped: only the first one has
// a port, so the mux does not deliver them.
//
// +checklocks:s.mu
func (s *Stack) inputFragment(p *packet) {
	v4 := p.dst.Is4()
	if !s.ownedAddress {
		if v4 {
			s.count[ipv4Fragment]++
		} else {
			s.count[ipv6Fragment]++
		}
		return
	}
	var link wire.LinkAddr
	if s.mayReport(p) {
		link = p.eth.Src
	}
	var whole []byte
	var v frag.Verdict
	if v4 {
		whole, v = s.fragments.IPv4(frag.Time(s.now), &p.ip, link)
	} else {
		whole, v = s.fragments.IPv6(frag.Time(s.now), p.ip6, link)
	}
	if due := instant(s.fragments.NextDeadline()); s.fragmentTimer.slot == 0 || due < s.fragmentTimer.at {
		s.startTimer(&s.fragmentTimer.timer, due)
	}
	switch v {
	case frag.Complete:
		head := p.data[:len(p.data)-len(p.eth.Payload)]
		s.inputPacket(&packet{data: slices.Concat(head, whole), memory: memoryHeap, uplink: p.uplink, reassembled: true})
	case frag.HeaderChain:
		s.sendICMPError(p, wire.ICMPv6ParameterProblem, wire.ICMPv6IncompleteHeaderChain, 0)
	}
}

// fragmentTimer is armed while packets are incomplete.
type fragmentTimer struct{ timer }

// +checklocks:s.mu
func (t *fragmentTimer) expired(s *Stack) {
	s.fragments.Expire(frag.Time(s.now))
	s.startTimer(&t.timer, instant(s.fragments.NextDeadline()))
}

// reassemblyTimedOut tells the sender of a packet that some of its fragments have not come in time
// (RFC 1122, section 3.3.2; RFC 8200, section 4.5). first is the first one, without which nothing is sent.
//
// +checklocksignore: a callback
func (s *Stack) reassemblyTimedOut(link wire.LinkAddr, first []byte) {
	if first[0]>>4 == 4 {
		from, to := wire.AddrFrom4([4]byte(first[16:])), wire.AddrFrom4([4]byte(first[12:]))
		s.sendErrorAbout(first, link, from, to, wire.ICMPTimeExceeded, wire.ICMPReassemblyTimeout, 0)
	} else {
		from, to := wire.AddrFrom16([16]byte(first[24:])), wire.AddrFrom16([16]byte(first[8:]))
		for _, a := range s.own.Load().all { // owned addresses, of which one is IPv6
			if a.WithZone(0) == from {
				from = a
			}
		}
		s.sendErrorAbout(first, link, from, to, wire.ICMPv6TimeExceeded, wire.ICMPv6ReassemblyTimeout, 0)
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
//
// +checklocks:c.stack.mu
func (c *UDPConn) queueFragments(r *route, flow *wire.UDPFlow, b []byte, reserved *UDPBuffer) error {
	s := c.stack
	room, least, most := r.maxPayload+wire.UDPHeaderLen, 8, wire.MaxUDPPayload
	if r.headers.len == headersLen6 {
		least, most = least+wire.IPv6FragmentLen, math.MaxUint16-wire.UDPHeaderLen
	}
	switch {
	case !s.ownedAddress, r.group, c.dontFragment, len(b) > most, room < least:
		return syscall.EMSGSIZE
	case r.state != routeReady:
		return errNoRoom
	}
	wire.PutUDPCopy(s.toDivide(wire.UDPHeaderLen+len(b)), flow, b)
	if err := s.sendDivided(r.uplink, &r.headers, wire.ProtocolUDP, c.tos, room); err != nil {
		return err
	}
	r.sent++
	c.udp.CountSent()
	if reserved != nil {
		reserved.uplink.link.Cancel(reserved.frame)
	}
	return nil
}

// toDivide is the memory of the next payload for sendDivided, n bytes.
//
// +checklocks:s.mu
func (s *Stack) toDivide(n int) []byte {
	s.divided = slices.Grow(s.divided[:0], n)[:n]
	return s.divided
}

func (u *uplink) cancelAll(frames []Frame) {
	for _, f := range frames {
		u.link.Cancel(f)
	}
}

// sendDivided sends the payload in s.divided in fragments, which have room for that many bytes
// after the IP header. errNoFrame and errNoRoom: the link takes nothing now.
//
// +checklocks:s.mu
func (s *Stack) sendDivided(u *uplink, h *headers, protocol, tos uint8, room int) error {
	head := h.len
	if head == headersLen6 {
		head, room = head+wire.IPv6FragmentLen, room-wire.IPv6FragmentLen
	}
	divided, pieces := s.divided, s.pieces[:0]
	for p := range frag.Pieces(len(divided), room) {
		f, ok := u.link.Reserve(head + p.Len)
		if !ok {
			u.cancelAll(pieces)
			return errNoFrame
		}
		pieces = append(pieces, f)
		if head+p.Len > len(f.Data) {
			u.cancelAll(pieces)
			return syscall.EMSGSIZE
		}
	}
	s.pieces = pieces
	if s.ids == nil {
		s.ids = frag.NewIDs(rand.Uint32)
	}
	var id uint32
	if h.len == headersLen6 {
		id = s.ids.IPv6()
	} else {
		id = uint32(s.ids.IPv4())
	}
	i := 0
	for p := range frag.Pieces(len(divided), room) {
		f := &pieces[i]
		f.Data = f.Data[:head+p.Len]
		h.putFragment(f.Data, protocol, tos, p, id)
		copy(f.Data[head:], divided[p.Offset:])
		i++
	}
	for i, f := range pieces {
		if !s.send(u, f) {
			u.cancelAll(pieces[i:])
			return errNoRoom
		}
	}
	return nil
}

// putFragment writes the headers of a fragment to the start of b.
func (h *headers) putFragment(b []byte, protocol, tos uint8, p frag.Piece, id uint32) {
	ip := b[wire.EthernetHeaderLen:]
	if h.len == headersLen6 {
		h.put(b, wire.ProtocolFragment, wire.IPv6FragmentLen+p.Len)
		wire.PutIPv6Fragment(ip[wire.IPv6HeaderLen:], protocol, p.Field(true), id)
		if tos != 0 {
			setTOS(b, tos)
		}
		return
	}
	h.put(b, protocol, p.Len)
	ip[1] = tos
	binary.BigEndian.PutUint16(ip[4:], uint16(id))
	binary.BigEndian.PutUint16(ip[6:], p.Field(false)) // without DF
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^wire.Fold(wire.Sum(ip[:wire.IPv4HeaderLen], 0)))
}
