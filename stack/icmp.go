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
	case m.Type() == wire.ICMPRedirect:
		s.count[icmpIgnored]++ // routes come from the route service
	case m.IsError():
		e, err := m.Report()
		s.inputICMPError(&e, err)
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
	f, ok := s.reply(headersLen4 + len(request))
	if !ok {
		return
	}
	s.replyHeaders(f.Data, p, wire.ProtocolICMP, len(request))
	wire.PutEcho(f.Data[headersLen4:], wire.EchoFields{Type: wire.ICMPEchoReply, ID: request.ID(), Seq: request.Seq()}, request.Payload())
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
	f, ok := s.reply(headersLen4 + n)
	if !ok {
		return
	}
	s.replyHeaders(f.Data, p, wire.ProtocolICMP, n)
	wire.PutUnreachable(f.Data[headersLen4:], code, 0, p.ip.Packet)
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
