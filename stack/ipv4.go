package stack

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/unet-go/unet/wire"
)

const (
	ttl = 64 // RFC 1700

	// Lengths of the Ethernet and IP headers that are sent, in bytes.
	headersLen4 = wire.EthernetHeaderLen + wire.IPv4HeaderLen
	headersLen6 = wire.EthernetHeaderLen + wire.IPv6HeaderLen
)

// +checklocks:s.mu
func (s *Stack) countEthernet(err error) {
	if err == wire.ErrNestedVLAN {
		s.count[frameNestedVLAN]++
	} else {
		s.count[frameTruncated]++
	}
}

// +checklocks:s.mu
func (s *Stack) countIPv4(err error) {
	switch err {
	case wire.ErrTruncated:
		s.count[ipv4Truncated]++
	case wire.ErrVersion:
		s.count[ipv4Version]++
	case wire.ErrLength:
		s.count[ipv4Length]++
	case wire.ErrChecksum:
		s.count[ipv4Checksum]++
	default:
		s.count[ipv4Option]++
	}
}

// refuseIPv4 counts a packet that cannot be read, and tells the sender of a malformed option (RFC
// 1122, section 3.2.2.5).
//
// +checklocks:s.mu
func (s *Stack) refuseIPv4(p *packet, err error) {
	s.countIPv4(err)
	if err != wire.ErrParameterProblem {
		return
	}
	p.src, p.dst = wire.AddrFrom4(p.ip.Src), wire.AddrFrom4(p.ip.Dst)
	if s.isOurs(p.dst) && p.eth.Dst == p.uplink.addr && !s.isOurs(p.src) && !s.impossibleSource(p.src) && p.ip.FragmentOffset() == 0 {
		s.sendICMPError(p, wire.ICMPParameterProblem, 0, uint32(p.ip.ProblemAt)<<24)
	}
}

// subnetBroadcast is the address of all hosts of a subnet of at most 30 bits.
func subnetBroadcast(p netip.Prefix) wire.Addr {
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|^uint32(0)>>p.Bits())
	return wire.AddrFrom4(a)
}

// impossibleSource reports whether no host sends from a (RFC 1122, section 3.2.1.3; RFC 4291,
// section 2).
func (s *Stack) impossibleSource(a wire.Addr) bool {
	return !a.IsHost() || a.IsLoopback() || s.isBroadcast(a)
}

// headersLen is the length of the headers of a packet to dst.
func headersLen(dst wire.Addr) int {
	if dst.Is4() {
		return headersLen4
	}
	return headersLen6
}

// headers is a template of the Ethernet header and the IP header. An IPv4 header has DF set and
// ID 0 (RFC 6864, section 4.1), unless setFragmentable has changed that, an IPv6 header flow label 0. Protocol, length
// and the IPv4 checksum are filled in for each packet.
type headers struct {
	bytes        [headersLen6]byte
	len          int
	sum          uint32 // ones-complement sum of the IPv4 header, without protocol, length, checksum and ID
	fragmentable bool   // without DF; each packet has another ID
	id           uint16 // of the last packet, if they are fragmentable
}

// makeHeaders makes the template for packets from an address to another.
func makeHeaders(src, dst wire.LinkAddr, from, to wire.Addr) (h headers) {
	h.len = headersLen(to)
	hops := uint8(ttl)
	if to.IsMulticast() {
		hops = 1 // RFC 1112, section 6.1; RFC 3542, section 5.2 leaves it to the system
	}
	ip := h.bytes[wire.EthernetHeaderLen:]
	if h.len == headersLen6 {
		wire.PutEthernet(h.bytes[:], dst, src, wire.EtherTypeIPv6)
		wire.PutIPv6(ip, wire.IPv6Fields{HopLimit: hops, Src: from.As16(), Dst: to.As16()})
		return h
	}
	wire.PutEthernet(h.bytes[:], dst, src, wire.EtherTypeIPv4)
	wire.PutIPv4(ip, wire.IPv4Fields{TTL: hops, DontFragment: true, Src: from.As4(), Dst: to.As4()})
	h.sum = uint32(^binary.BigEndian.Uint16(ip[10:]))
	return h
}

// setFragmentable permits routers to fragment the packets, or forbids it. It has no effect on IPv6.
func (h *headers) setFragmentable(may bool) {
	if h.len == headersLen6 || h.fragmentable == may {
		return
	}
	const df = 0x4000
	h.fragmentable, h.id = may, uint16(rand.Uint32())
	h.bytes[wire.EthernetHeaderLen+6] ^= df >> 8
	if may {
		h.sum += ^uint32(df) & 0xffff
	} else {
		h.sum += df
	}
	h.sum = h.sum&0xffff + h.sum>>16
}

// put writes the headers of a packet with n bytes after the IP header to the start of b. The IPv4
// checksum is the template's plus protocol and length (RFC 1624).
func (h *headers) put(b []byte, protocol uint8, n int) {
	if h.len == headersLen6 {
		h.put6(b, protocol, n)
		return
	}
	p := (*[headersLen4]byte)(b)
	*p = *(*[headersLen4]byte)(h.bytes[:])
	p[23] = protocol
	length := uint32(wire.IPv4HeaderLen + n)
	sum := h.sum + length + uint32(protocol)
	if h.fragmentable {
		h.id++
		binary.BigEndian.PutUint16(p[18:20], h.id)
		sum += uint32(h.id)
	}
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(p[16:18], uint16(length))
	binary.BigEndian.PutUint16(p[24:26], ^uint16(sum))
}

func (h *headers) put6(b []byte, protocol uint8, n int) {
	p := (*[headersLen6]byte)(b)
	*p = h.bytes
	binary.BigEndian.PutUint16(p[18:20], uint16(n))
	p[20] = protocol
}

// setTOS changes the type of service or the traffic class of a packet, which is 0, and the IPv4
// checksum (RFC 1624).
func setTOS(b []byte, tos uint8) {
	p := (*[headersLen4]byte)(b)
	if p[14]>>4 == 6 {
		p[14], p[15] = p[14]|tos>>4, p[15]|tos<<4
		return
	}
	p[15] = tos
	sum := uint32(^binary.BigEndian.Uint16(p[24:26])) + uint32(tos)
	binary.BigEndian.PutUint16(p[24:26], ^uint16(sum+sum>>16))
}

// replyHeaders writes the headers of an answer to the received packet p, with n bytes after
// the IP header, from the address that p was sent to. It goes to the MAC address that p came
// from, without a route.
func (s *Stack) replyHeaders(b []byte, p *packet, protocol uint8, n int) {
	h := makeHeaders(p.uplink.addr, p.eth.Src, p.dst, p.src)
	h.put(b, protocol, n)
}

// inputARP answers requests for our address (RFC 826), if it is ours alone; for a shared
// one the kernel answers. MAC addresses of others come from the route service.
//
// +checklocks:s.mu
func (s *Stack) inputARP(p *packet) {
	u := p.uplink
	a, err := wire.ParseARP(p.eth.Payload)
	if err != nil {
		s.count[arpMalformed]++
		return
	}
	link, sender := a.SenderLink(), a.SenderAddr()
	probe := a.Op() == wire.ARPRequest && sender == [4]byte{} // RFC 5227: asks, but claims nothing
	switch {
	case !s.ownedAddress:
		s.count[arpNotOurs]++
	case a.Op() != wire.ARPRequest && a.Op() != wire.ARPReply,
		link.IsGroup(), link == wire.LinkAddr{},
		!probe && s.impossibleSource(wire.AddrFrom4(sender)):
		s.count[arpBogus]++
	case s.isOurs(wire.AddrFrom4(sender)):
		if link != u.addr {
			s.count[arpConflict]++
		}
	case !s.isOursOn(u, wire.AddrFrom4(a.TargetAddr())) || a.Op() != wire.ARPRequest:
		s.count[arpNotOurs]++
	default:
		f, ok := s.reply(u, wire.EthernetHeaderLen+wire.ARPLen)
		if !ok {
			return
		}
		wire.PutEthernet(f.Data, link, u.addr, wire.EtherTypeARP)
		wire.PutARP(f.Data[wire.EthernetHeaderLen:], wire.ARPFields{
			Op: wire.ARPReply, SenderLink: u.addr, SenderAddr: a.TargetAddr(), TargetLink: link, TargetAddr: sender,
		})
		if s.transmit(u, f) {
			s.count[arpRepliesSent]++
		}
	}
}
