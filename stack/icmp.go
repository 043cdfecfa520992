package stack

import (
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// The rate limit of ICMP errors: a bucket of tokens (RFC 1812, section 4.3.2.8).
const (
	icmpErrorBurst    = 32
	icmpErrorInterval = second / 100 // one token comes back
)

// inputICMP takes an ICMP message to our address.
//
// +checklocks:s.mu
func (s *Stack) inputICMP(p *packet) {
	m, err := wire.ParseICMPv4(p.payload)
	if err != nil {
		s.countICMP(err)
		return
	}
	switch {
	case m.Type() == wire.ICMPEchoRequest && s.ownedAddress:
		s.sendEchoReply(p, wire.EchoFields{Type: wire.ICMPEchoReply, ID: m.ID(), Seq: m.Seq()}, m.Payload())
	case m.Type() == wire.ICMPRedirect:
		s.count[icmpIgnored]++ // routes come from the route service
	case m.IsError():
		e, err := m.Report()
		s.inputICMPError(&e, err)
	default:
		s.count[icmpIgnored]++
	}
}

// countICMP counts a message of either version that could not be parsed.
//
// +checklocks:s.mu
func (s *Stack) countICMP(err error) {
	if err == wire.ErrChecksum {
		s.count[icmpChecksum]++
	} else {
		s.count[icmpTruncated]++
	}
}

// sendEchoReply answers a ping (RFC 1122, section 3.2.2.6; RFC 4443, section 4.2), in fragments
// if it does not fit into a packet.
//
// +checklocks:s.mu
func (s *Stack) sendEchoReply(p *packet, reply wire.EchoFields, data []byte) {
	if p.eth.Src.IsGroup() {
		s.count[icmpIgnored]++
		return
	}
	n, protocol := len(p.payload), wire.ProtocolICMP
	if !p.dst.Is4() {
		protocol = wire.ProtocolICMPv6
	}
	u := p.uplink
	mtu, head := u.mtu, headersLen(p.dst)
	if r := s.routes[ends{p.dst, p.src}]; r != nil {
		mtu = min(mtu, r.maxPayload+wire.UDPHeaderLen+head-wire.EthernetHeaderLen) // with what ICMP has reported
	}
	if room := mtu - (head - wire.EthernetHeaderLen); n > room {
		h := makeHeaders(u.addr, p.eth.Src, p.dst, p.src)
		putEcho(s.toDivide(n), p, reply, data)
		if s.sendDivided(u, &h, protocol, 0, room) == nil {
			s.count[icmpEchoRepliesSent]++
		} else {
			s.count[replyNoFrame]++
		}
		return
	}
	f, ok := s.reply(u, head+n)
	if !ok {
		return
	}
	s.replyHeaders(f.Data, p, protocol, n)
	putEcho(f.Data[head:], p, reply, data)
	if s.transmit(u, f) {
		s.count[icmpEchoRepliesSent]++
	}
}

// putEcho writes a reply to the message in p.
func putEcho(b []byte, p *packet, reply wire.EchoFields, data []byte) {
	if p.dst.Is4() {
		wire.PutEcho(b, reply, data)
	} else {
		wire.PutEcho6(b, p.dst.As16(), p.ip6.Src, reply, data)
	}
}

// mayReport reports whether an error may be sent about a packet whose source is a host: not if the packet is an
// error itself or comes from a group address of the link (RFC 1122, section 3.2.2; RFC 4443, section 2.4). The caller
// knows whether its destination permits one. Errors about packets to a shared address are the kernel's.
func (s *Stack) mayReport(p *packet) bool {
	switch {
	case !s.ownedAddress, p.eth.Src.IsGroup():
		return false
	case !p.dst.Is4():
		return !p.ip6.IsError()
	}
	return p.ip.Protocol != wire.ProtocolICMP || len(p.ip.Payload) > 0 && !wire.ICMPv4(p.ip.Payload).IsError()
}

// sendICMPError reports an error to the sender of a packet, unless mayReport forbids it. The error
// comes from p.dst, which is one of our addresses. word is the second word of its header.
//
// +checklocks:s.mu
func (s *Stack) sendICMPError(p *packet, kind, code uint8, word uint32) {
	if !s.mayReport(p) {
		return
	}
	quote := p.ip.Packet
	if !p.dst.Is4() {
		quote = p.ip6.Packet
	}
	s.sendErrorAbout(quote, p.eth.Src, p.dst, p.src, kind, code, word)
}

// sendErrorAbout sends an error about a packet to a MAC address, unless the rate limit is reached.
//
// +checklocks:s.mu
func (s *Stack) sendErrorAbout(packet []byte, link wire.LinkAddr, from, to wire.Addr, kind, code uint8, word uint32) {
	if !s.errorTokens.take(s.now, icmpErrorInterval, icmpErrorBurst) {
		s.count[icmpUnreachablesLimited]++
		return
	}
	head, protocol, n := headersLen4, wire.ProtocolICMP, wire.ICMPv4ErrorLen(packet)
	if !from.Is4() {
		head, protocol, n = headersLen6, wire.ProtocolICMPv6, wire.ICMPv6ErrorLen(packet)
	}
	u := s.uplinkOf(from)
	f, ok := s.reply(u, head+n)
	if !ok {
		return
	}
	h := makeHeaders(u.addr, link, from, to)
	h.put(f.Data, protocol, n)
	if from.Is4() {
		wire.PutICMPv4Error(f.Data[head:], kind, code, word, packet)
	} else {
		wire.PutICMPv6Error(f.Data[head:], from.As16(), to.As16(), kind, code, word, packet)
	}
	if s.transmit(u, f) {
		s.count[icmpUnreachablesSent]++
	}
}

// inputICMPError takes an error to the socket that sent the packet it quotes. err: it could not
// be read. Such a message can be forged, so it must quote something that a socket of this
// stack could have sent (RFC 5927, section 4.1, has the idea for TCP).
//
// +checklocks:s.mu
func (s *Stack) inputICMPError(e *wire.ICMPError, err error) {
	if err != nil {
		s.count[icmpTruncated]++
		return
	}
	if s.isOurs(e.Src) && e.Protocol == wire.ProtocolTCP {
		if s.tcp.ProcessICMP(tcp.Time(s.readClock()), e) == nil {
			s.count[icmpUnmatched]++
		} else {
			s.count[icmpErrors]++
			s.settle()
		}
		return
	}
	if !s.isOurs(e.Src) || e.Protocol != wire.ProtocolUDP {
		s.count[icmpUnmatched]++
		return
	}
	if e.TooBig && !e.Dst.Is4() && e.MTU < wire.MinIPv6MTU { // RFC 8201, section 4
		s.count[pathMTUIgnored]++
		return
	}
	sock, pending := s.udp.ProcessICMP(e)
	if sock == nil {
		if _, _, ok := e.Ports(); ok {
			s.count[icmpUnmatched]++
		} else {
			s.count[icmpTruncated]++
		}
		return
	}
	s.count[icmpErrors]++
	if e.TooBig {
		s.lowerPathMTU(e)
	}
	if !sock.Connected() {
		return
	}
	c := sock.Owner.(*UDPConn)
	switch {
	case pending:
		c.noteError() // +checklocksignore: a socket of this stack
	case e.Unreachable && (e.Errno == syscall.ENETUNREACH || e.Errno == syscall.EHOSTUNREACH):
		// Transient errors, which the engine, like Linux, does not report. RFC 1122,
		// section 4.1.3.3, requires that they are reported to the application.
		c.setError(e.Errno) // +checklocksignore: a socket of this stack
	}
}
