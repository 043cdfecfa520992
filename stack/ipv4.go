package stack

import (
	"encoding/binary"
	"net/netip"

	"github.com/unet-go/unet/wire"
)

const (
	ttl = 64 // RFC 1700

	// headersLen is the length of the Ethernet and IPv4 headers that are sent, in bytes.
	headersLen = wire.EthernetHeaderLen + wire.IPv4HeaderLen
)

func (s *Stack) countEthernet(err error) {
	if err == wire.ErrNestedVLAN {
		s.count[frameNestedVLAN]++
	} else {
		s.count[frameTruncated]++
	}
}

func (s *Stack) countIPv4(err error) {
	switch err {
	case wire.ErrTruncated:
		s.count[ipv4Truncated]++
	case wire.ErrVersion:
		s.count[ipv4Version]++
	case wire.ErrLength:
		s.count[ipv4Length]++
	default:
		s.count[ipv4Checksum]++
	}
}

// subnetBroadcast is the address of all hosts of a subnet. For one of 31 or 32 bits,
// which has none (RFC 3021), it is the limited one (RFC 919).
func subnetBroadcast(p netip.Prefix) [4]byte {
	if p.Bits() >= 31 {
		return [4]byte{255, 255, 255, 255}
	}
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|^uint32(0)>>p.Bits())
	return a
}

// impossibleSource reports whether no host sends from a (RFC 1122, section 3.2.1.3).
func (s *Stack) impossibleSource(a [4]byte) bool {
	return a[0] == 0 || a[0] == 127 || a[0] >= 224 || a == s.broadcast4
}

// headers is a template of the Ethernet header and of the IPv4 header, with DF set and
// ID 0 (RFC 6864, section 4.1). Protocol, total length and checksum are filled in for each
// packet.
type headers struct {
	bytes [headersLen]byte
	sum   uint32 // ones-complement sum of the IPv4 header, those three taken as 0
}

func makeHeaders(src, dst wire.LinkAddr, from, to [4]byte) (h headers) {
	wire.PutEthernet(h.bytes[:], dst, src, wire.EtherTypeIPv4)
	ip := h.bytes[wire.EthernetHeaderLen:]
	wire.PutIPv4(ip, wire.IPv4Fields{TTL: ttl, DontFragment: true, Src: from, Dst: to})
	h.sum = uint32(^binary.BigEndian.Uint16(ip[10:]))
	return h
}

// put writes the headers of a packet with n bytes after the IPv4 header to the
// start of b. The checksum is the template's plus protocol and length (RFC 1624).
func (h *headers) put(b []byte, protocol uint8, n int) {
	p := (*[headersLen]byte)(b)
	*p = h.bytes
	p[23] = protocol
	length := uint32(wire.IPv4HeaderLen + n)
	sum := h.sum + length + uint32(protocol)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(p[16:18], uint16(length))
	binary.BigEndian.PutUint16(p[24:26], ^uint16(sum))
}

// setECNCapable changes the header of a packet to ECT(0), and its checksum (RFC 1624).
func setECNCapable(b []byte) {
	p := (*[headersLen]byte)(b)
	p[15] |= wire.ECNCapable
	sum := uint32(^binary.BigEndian.Uint16(p[24:26])) + wire.ECNCapable
	binary.BigEndian.PutUint16(p[24:26], ^uint16(sum+sum>>16))
}

// replyHeaders writes the headers of an answer to the received packet p, with n bytes after
// the IPv4 header. It goes to the MAC address that p came from, without a route.
func (s *Stack) replyHeaders(b []byte, p *packet, protocol uint8, n int) {
	wire.PutEthernet(b, p.eth.Src, s.linkAddr, wire.EtherTypeIPv4)
	wire.PutIPv4(b[wire.EthernetHeaderLen:], wire.IPv4Fields{
		TotalLen: uint16(wire.IPv4HeaderLen + n), TTL: ttl, Protocol: protocol, DontFragment: true,
		Src: s.addr, Dst: p.ip.Src,
	})
}

// inputARP answers requests for our address (RFC 826), if it is ours alone; for a shared
// one the kernel answers. MAC addresses of others come from the route service.
func (s *Stack) inputARP(b []byte) {
	a, err := wire.ParseARP(b)
	if err != nil {
		s.count[arpMalformed]++
		return
	}
	link, sender := a.SenderLink(), a.SenderAddr()
	probe := a.Op() == wire.ARPRequest && sender == [4]byte{} // RFC 5227: asks, but claims nothing
	switch {
	case !s.wholeAddress:
		s.count[arpNotOurs]++
	case a.Op() != wire.ARPRequest && a.Op() != wire.ARPReply,
		link.IsGroup(), link == wire.LinkAddr{},
		!probe && s.impossibleSource(sender):
		s.count[arpBogus]++
	case sender == s.addr:
		if link != s.linkAddr {
			s.count[arpConflict]++
		}
	case a.TargetAddr() != s.addr || a.Op() != wire.ARPRequest:
		s.count[arpNotOurs]++
	default:
		f, ok := s.reply(wire.EthernetHeaderLen + wire.ARPLen)
		if !ok {
			return
		}
		wire.PutEthernet(f.Data, link, s.linkAddr, wire.EtherTypeARP)
		wire.PutARP(f.Data[wire.EthernetHeaderLen:], wire.ARPFields{
			Op: wire.ARPReply, SenderLink: s.linkAddr, SenderAddr: s.addr, TargetLink: link, TargetAddr: sender,
		})
		if s.transmit(f) {
			s.count[arpRepliesSent]++
		}
	}
}
