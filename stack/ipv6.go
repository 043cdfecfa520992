package stack

import "github.com/unet-go/unet/wire"

const ndHopLimit = 255 // of neighbour discovery (RFC 4861, section 3.1)

// allNodes is the multicast address of all hosts of a link (RFC 4291, section 2.7.1).
var allNodes = [16]byte{0: 0xff, 1: 2, 15: 1}

// +checklocks:s.mu
func (s *Stack) countIPv6(err error) {
	switch err {
	case wire.ErrTruncated:
		s.count[ipv6Truncated]++
	case wire.ErrVersion:
		s.count[ipv6Version]++
	default:
		s.count[ipv6Extension]++
	}
}

// inputIPv6 is inputPacket for an IPv6 packet. group: it was sent to a multicast or broadcast
// MAC address.
//
// +checklocks:s.mu
func (s *Stack) inputIPv6(p *packet, group bool) (kept bool) {
	const noNextHeader = 59
	ip := &s.ip6
	p.ip6 = ip
	err := ip.Parse(p.eth.Payload)
	if err != nil && err != wire.ErrParameterProblem {
		s.countIPv6(err)
		return false
	}
	p.src, p.dst, p.payload, p.ecn = wire.AddrFrom16(ip.Src), wire.AddrFrom16(ip.Dst), ip.Payload, ip.TrafficClass&wire.ECNMask
	forged := false // it looks like an address with a zone
	if p.uplink.zone != 0 {
		forged = p.src.Zone()|p.dst.Zone() != 0
		p.src, p.dst = p.uplink.scoped(p.src), p.uplink.scoped(p.dst)
	}
	switch {
	case p.src.Is4(), p.dst.Is4(), forged: // IPv4-mapped addresses are in no header
		s.count[ipv6Source]++
	case ip.Dst[0] == 0xff && err == nil && ip.Fragment == 0 && ip.Protocol == wire.ProtocolICMPv6:
		s.inputICMPv6(p)
	case p.dst != s.recent && !s.isRecent(p.dst), p.dst == wire.Addr{}:
		if err != nil && s.answersGroup(p) {
			s.count[ipv6Extension]++
			s.sendICMPError(p, wire.ICMPv6ParameterProblem, ip.Problem.Code, ip.Problem.Pointer)
			return false
		}
		if err == nil && ip.Fragment == 0 && ip.Protocol == wire.ProtocolUDP && p.dst.IsMulticast() && !s.impossibleSource(p.src) {
			return s.inputGroup(p)
		}
		s.count[ipv6Destination]++
	case group:
		s.count[ipv6LinkGroup]++
	case s.impossibleSource(p.src), s.isOurs(p.src) && s.ownedAddress:
		s.count[ipv6Source]++
	case err != nil:
		s.count[ipv6Extension]++
		s.sendICMPError(p, wire.ICMPv6ParameterProblem, ip.Problem.Code, ip.Problem.Pointer)
	case ip.Fragment != 0:
		s.inputFragment(p)
	case ip.Protocol == wire.ProtocolUDP:
		return s.inputUDP(p, nil, 0)
	case ip.Protocol == wire.ProtocolTCP:
		return s.inputTCP(p)
	case ip.Protocol == wire.ProtocolICMPv6:
		s.inputICMPv6(p)
	default:
		s.count[ipv6Protocol]++
		if ip.Protocol != noNextHeader {
			s.sendICMPError(p, wire.ICMPv6ParameterProblem, wire.ICMPv6UnknownNextHeader, uint32(ip.ProtocolAt))
		}
	}
	return false
}

// answersGroup reports whether a packet to a multicast address is answered: its source is another
// host, and the stack a member of the group. Then p.dst becomes the address that the answer comes from.
//
// +checklocks:s.mu
func (s *Stack) answersGroup(p *packet) bool {
	if !p.dst.IsMulticast() || s.impossibleSource(p.src) || s.isOurs(p.src) || !s.isMember(p.dst) {
		return false
	}
	p.dst = s.sourceOn(p.uplink, p.src)
	return true
}

// isMember reports whether the stack receives what is sent to an IPv6 multicast address: that of all
// nodes, or of one of its own addresses (RFC 4291, section 2.8), or one that a socket has joined.
//
// +checklocks:s.mu
func (s *Stack) isMember(group wire.Addr) bool {
	if group == wire.AddrFrom16(allNodes) {
		return true
	}
	for _, a := range s.own.Load().all {
		if !a.Is4() && group == wire.AddrFrom16(wire.SolicitedNode(a.As16())) {
			return true
		}
	}
	for c := range s.udpConns {
		if c.udp.Group(group) != 0 {
			return true
		}
	}
	return false
}

// inputICMPv6 takes an ICMPv6 message to our address or to a multicast address.
//
// +checklocks:s.mu
func (s *Stack) inputICMPv6(p *packet) {
	m, err := wire.ParseICMPv6(p.payload, p.ip6.Src, p.ip6.Dst)
	if err != nil {
		s.countICMP(err)
		return
	}
	multicast := p.ip6.Dst[0] == 0xff
	switch kind := m.Type(); {
	case p.reassembled && kind >= wire.ICMPv6RouterSolicitation && kind <= wire.ICMPv6Redirect: // RFC 6980, section 5
		s.count[ndBogus]++
	case kind == wire.ICMPv6NeighborSolicitation, kind == wire.ICMPv6NeighborAdvertisement:
		s.inputNeighbor(p, m)
	case kind == wire.ICMPv6RouterAdvertisement, kind == wire.ICMPv6Redirect:
		s.count[ndIgnored]++ // routes come from the route service
	case kind == wire.ICMPv6EchoRequest && s.ownedAddress && (!multicast || s.answersGroup(p)):
		s.sendEchoReply(p, wire.EchoFields{Type: wire.ICMPv6EchoReply, ID: m.ID(), Seq: m.Seq()}, m.Payload())
	case !multicast && m.IsError():
		e, err := m.Report()
		e.Src, e.Dst = p.uplink.scoped(e.Src), p.uplink.scoped(e.Dst)
		if err == nil && (e.Src != p.dst || e.Dst.Is4()) { // it quotes no packet that was sent from here
			s.count[icmpUnmatched]++
			return
		}
		s.inputICMPError(&e, err)
	default:
		s.count[icmpIgnored]++
	}
}

// inputNeighbor answers solicitations for our addresses (RFC 4861, section 7.2.4), if they are
// ours alone; for shared ones the kernel answers. MAC addresses of others come from the route
// service.
//
// +checklocks:s.mu
func (s *Stack) inputNeighbor(p *packet, m wire.ICMPv6) {
	if !s.ownedAddress {
		s.count[ndNotOurs]++
		return
	}
	n, err := wire.ParseNeighbor(p.ip6, m)
	u := p.uplink
	target := u.scoped(wire.AddrFrom16(n.Target))
	dad := p.src == wire.Addr{}
	multicast := p.ip6.Dst[0] == 0xff
	link := n.Link
	if link == (wire.LinkAddr{}) {
		link = p.eth.Src
	}
	switch {
	case err != nil, link.IsGroup(), link == wire.LinkAddr{}, !dad && s.impossibleSource(p.src),
		!n.Advertisement && !dad && multicast && n.Link == wire.LinkAddr{}: // RFC 4861, section 4.3
		s.count[ndBogus]++
		return
	case target.Is4(), !s.isOursOn(u, target):
		s.count[ndNotOurs]++
		return
	case n.Advertisement, s.isOurs(p.src):
		if link != u.addr {
			s.count[ndConflict]++
		}
		return
	case multicast && p.ip6.Dst != wire.SolicitedNode(n.Target):
		s.count[ndNotOurs]++
		return
	}
	dst := p.ip6.Src
	if dad {
		dst, link = allNodes, wire.MulticastLink(allNodes)
	}
	f, ok := s.reply(u, headersLen6+wire.MaxNeighborLen)
	if !ok {
		return
	}
	wire.PutEthernet(f.Data, link, u.addr, wire.EtherTypeIPv6)
	wire.PutIPv6(f.Data[wire.EthernetHeaderLen:], wire.IPv6Fields{
		PayloadLen: wire.MaxNeighborLen, Protocol: wire.ProtocolICMPv6, HopLimit: ndHopLimit, Src: n.Target, Dst: dst,
	})
	wire.PutNeighbor(f.Data[headersLen6:], n.Target, dst, wire.Neighbor{
		Advertisement: true, Target: n.Target, Link: u.addr, Solicited: !dad, Override: true,
	})
	if s.transmit(u, f) {
		s.count[ndRepliesSent]++
	}
}
