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
func (s *Stack) countICMP(err error) {
	if err == wire.ErrChecksum {
		s.count[icmpChecksum]++
	} else {
		s.count[icmpTruncated]++
	}
}

// sendEchoReply answers a ping (RFC 1122, section 3.2.2.6; RFC 4443, section 4.2).
func (s *Stack) sendEchoReply(p *packet, reply wire.EchoFields, data []byte) {
	if headersLen(p.dst)-wire.EthernetHeaderLen+len(p.payload) > s.mtu || p.eth.Src.IsGroup() {
		s.count[icmpIgnored]++
		return
	}
	f, message, ok := s.replyICMP(p, len(p.payload))
	if !ok {
		return
	}
	if p.dst.Is4() {
		wire.PutEcho(message, reply, data)
	} else {
		wire.PutEcho6(message, p.ip6.Dst, p.ip6.Src, reply, data)
	}
	if s.transmit(f) {
		s.count[icmpEchoRepliesSent]++
	}
}

// replyICMP allocates a frame for an answer of n bytes of ICMP to p, and writes its headers.
func (s *Stack) replyICMP(p *packet, n int) (f Frame, message []byte, ok bool) {
	head, protocol := headersLen4, wire.ProtocolICMP
	if !p.dst.Is4() {
		head, protocol = headersLen6, wire.ProtocolICMPv6
	}
	if f, ok = s.reply(head + n); !ok {
		return f, nil, false
	}
	s.replyHeaders(f.Data, p, protocol, n)
	return f, f.Data[head:], true
}

// sendICMPError reports an error to the sender of a packet to our address, unless the rate limit
// is reached, or RFC 1122, section 3.2.2, or RFC 4443, section 2.4, forbids it. Of what these
// forbid, only errors about ICMPv6 errors, and about packets from a group address of the link, are
// left here: other packets without an answer have been dropped before. kind and word, the
// second word of the header, are of ICMPv6; over IPv4 the error is destination unreachable.
func (s *Stack) sendICMPError(p *packet, kind, code uint8, word uint32) {
	v4 := p.dst.Is4()
	if !s.ownedAddress || p.eth.Src.IsGroup() || !v4 && p.ip6.IsError() {
		return
	}
	if !s.errorTokens.take(s.now, icmpErrorInterval, icmpErrorBurst) {
		s.count[icmpUnreachablesLimited]++
		return
	}
	n := 0
	if v4 {
		n = wire.UnreachableLen(p.ip.Packet)
	} else {
		n = wire.ICMPv6ErrorLen(p.ip6.Packet)
	}
	f, message, ok := s.replyICMP(p, n)
	if !ok {
		return
	}
	if v4 {
		wire.PutUnreachable(message, code, 0, p.ip.Packet)
	} else {
		wire.PutICMPv6Error(message, p.ip6.Dst, p.ip6.Src, kind, code, word, p.ip6.Packet)
	}
	if s.transmit(f) {
		s.count[icmpUnreachablesSent]++
	}
}

// inputICMPError takes an error to the socket that sent the packet it quotes. err: it could not
// be read. Such a message can be forged, so it must quote something that a socket of this
// stack could have sent (RFC 5927, section 4.1, has the idea for TCP).
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
			s.settleTCP()
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
		c.noteError()
	case e.Unreachable && (e.Errno == syscall.ENETUNREACH || e.Errno == syscall.EHOSTUNREACH):
		// Transient errors, which the engine, like Linux, does not report. RFC 1122,
		// section 4.1.3.3, requires that they are reported to the application.
		c.setError(e.Errno)
	}
}
