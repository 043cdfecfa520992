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
	m, err := wire.ParseICMPv4(p.ip.Payload)
	if err != nil {
		if err == wire.ErrChecksum {
			s.count[icmpChecksum]++
		} else {
			s.count[icmpTruncated]++
		}
		return
	}
	switch {
	case m.Type() == wire.ICMPEchoRequest && s.wholeAddress:
		s.sendEchoReply(p, m)
	case m.IsError():
		s.inputICMPError(m)
	default:
		s.count[icmpIgnored]++
	}
}

// sendEchoReply answers a ping (RFC 1122, section 3.2.2.6).
func (s *Stack) sendEchoReply(p *packet, request wire.ICMPv4) {
	if wire.IPv4HeaderLen+len(request) > s.mtu || p.eth.Src.IsGroup() {
		s.count[icmpIgnored]++
		return
	}
	f, ok := s.reply(headersLen + len(request))
	if !ok {
		return
	}
	s.replyHeaders(f.Data, p, wire.ProtocolICMP, len(request))
	wire.PutEcho(f.Data[headersLen:], wire.EchoFields{Type: wire.ICMPEchoReply, ID: request.ID(), Seq: request.Seq()}, request.Payload())
	if s.transmit(f) {
		s.count[icmpEchoRepliesSent]++
	}
}

// sendUnreachable reports to the sender of a packet that no socket or protocol takes it,
// unless the rate limit is reached or RFC 1122, section 3.2.2, forbids it. What that forbids
// for broadcasts, impossible sources and fragments needs no check here, since inputPacket
// has dropped them.
func (s *Stack) sendUnreachable(p *packet, code uint8) {
	if !s.wholeAddress || p.eth.Src.IsGroup() {
		return
	}
	if !s.errorTokens.take(s.now, icmpErrorInterval, icmpErrorBurst) {
		s.count[icmpUnreachablesLimited]++
		return
	}
	n := wire.UnreachableLen(p.ip.Packet)
	f, ok := s.reply(headersLen + n)
	if !ok {
		return
	}
	s.replyHeaders(f.Data, p, wire.ProtocolICMP, n)
	wire.PutUnreachable(f.Data[headersLen:], code, 0, p.ip.Packet)
	if s.transmit(f) {
		s.count[icmpUnreachablesSent]++
	}
}

// inputICMPError takes an error to the socket that sent the packet it quotes.
// Such a message can be forged, so it must quote something that a socket of this
// stack could have sent (RFC 5927, section 4.1, has the idea for TCP).
func (s *Stack) inputICMPError(m wire.ICMPv4) {
	quoted, err := m.Quoted()
	if err != nil {
		s.count[icmpTruncated]++
		return
	}
	if quoted.Src == s.addr && quoted.Protocol == wire.ProtocolTCP {
		if s.tcp.ProcessICMP(tcp.Time(s.readClock()), m, quoted) == nil {
			s.count[icmpUnmatched]++
		} else {
			s.count[icmpErrors]++
			s.settleTCP()
		}
		return
	}
	if quoted.Src != s.addr || quoted.Protocol != wire.ProtocolUDP {
		s.count[icmpUnmatched]++
		return
	}
	sock, pending := s.udp.ProcessICMP(m, quoted)
	if sock == nil {
		if _, _, ok := wire.QuotedPorts(quoted); ok {
			s.count[icmpUnmatched]++
		} else {
			s.count[icmpTruncated]++
		}
		return
	}
	s.count[icmpErrors]++
	if m.Type() == wire.ICMPUnreachable && m.Code() == wire.ICMPFragmentationNeeded {
		s.lowerPathMTU(quoted, m.NextHopMTU())
	}
	if !sock.Connected() {
		return
	}
	c := sock.Owner.(*UDPConn)
	if pending {
		c.noteError()
		return
	}
	if m.Type() == wire.ICMPUnreachable {
		// Transient errors, which the engine, like Linux, does not report. RFC 1122,
		// section 4.1.3.3, requires that they are reported to the application.
		switch m.Code() {
		case wire.ICMPNetUnreachable:
			c.setError(syscall.ENETUNREACH)
		case wire.ICMPHostUnreachable:
			c.setError(syscall.EHOSTUNREACH)
		}
	}
}
