//go:build linux

package wiretap

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// segment is a frame as decoded by gopacket or by tshark.
type segment struct {
	frame    int // its number in the capture
	src, dst netip.AddrPort
	udp      bool // a datagram, or its last fragment; the fields below are TCP's
	fragment bool

	seq, ack            uint32
	text                int // bytes of data
	header              int // bytes, with options
	window              uint16
	syn, ack_, fin, rst bool

	mss           int // that it offers; 0: nothing
	scale         int // that it offers; -1: nothing
	sackPermitted bool
	ece, cwr      bool
	ect           bool // it may be marked, or is
	sackBlocks    int
	timestamps    bool
	tsVal         uint32

	merged     bool     // by the kernel's GRO, after it came
	violations []string // what the decoder objects to
}

func (s *segment) String() string {
	flags := ""
	for _, f := range []struct {
		name string
		set  bool
	}{{"SYN", s.syn}, {"FIN", s.fin}, {"RST", s.rst}, {"ACK", s.ack_}} {
		if f.set {
			flags += " " + f.name
		}
	}
	return fmt.Sprintf("frame %d, %v to %v,%s seq %d ack %d window %d, %d bytes", s.frame, s.src, s.dst, flags, s.seq, s.ack, s.window, s.text)
}

// length is the length of the segment in sequence numbers.
func (s *segment) length() uint32 {
	n := uint32(s.text)
	if s.syn {
		n++
	}
	if s.fin {
		n++
	}
	return n
}

// decoder is gopacket's, for the frames of a cable.
type decoder struct {
	mtu    int
	eth    layers.Ethernet
	ip4    layers.IPv4
	ip6    layers.IPv6
	tcp    layers.TCP
	udp    layers.UDP
	text   gopacket.Payload
	parser *gopacket.DecodingLayerParser
	layers []gopacket.LayerType
}

func newDecoder(mtu int) *decoder {
	d := &decoder{mtu: mtu}
	d.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &d.eth, &d.ip4, &d.ip6, &d.tcp, &d.udp, &d.text)
	return d
}

// packet is the IP header of a frame.
type packet struct {
	src, dst net.IP
	protocol layers.IPProtocol // of fragments, too
	length   int               // bytes, with the header
	ecn      uint8
	fragment bool
	last     bool // it is the last fragment of several
	network  gopacket.NetworkLayer
}

// network is the IP header of the decoded frame; ok is false if it has none.
func (d *decoder) network() (p packet, ok bool) {
	if len(d.layers) < 2 {
		return p, false
	}
	switch ip4, ip6 := &d.ip4, &d.ip6; d.layers[1] {
	case layers.LayerTypeIPv4:
		more := ip4.Flags&layers.IPv4MoreFragments != 0
		return packet{ip4.SrcIP, ip4.DstIP, ip4.Protocol, int(ip4.Length), ip4.TOS & 3, more || ip4.FragOffset != 0, !more && ip4.FragOffset != 0, ip4}, true
	case layers.LayerTypeIPv6:
		p = packet{ip6.SrcIP, ip6.DstIP, ip6.NextHeader, 40 + int(ip6.Length), ip6.TrafficClass & 3, false, false, ip6}
		if b := ip6.Payload; ip6.NextHeader == layers.IPProtocolIPv6Fragment && len(b) >= 8 {
			p.protocol, p.fragment, p.last = layers.IPProtocol(b[0]), true, b[3]&1 == 0
		}
		return p, true
	}
	return p, false
}

// decode decodes a frame; ok is false if it is neither TCP nor UDP. Of the fragments of a UDP
// datagram the last one stands for it. It verifies checksums if checksums is true.
func (d *decoder) decode(frame []byte, checksums bool) (s segment, ok bool) {
	err := d.parser.DecodeLayers(frame, &d.layers)
	ip, ok := d.network()
	s.udp = ip.protocol == layers.IPProtocolUDP
	switch {
	case !ok || !s.udp && ip.protocol != layers.IPProtocolTCP:
		return s, false
	case ip.fragment:
		s.fragment = true
		s.src, s.dst = addrPort(ip.src, 0), addrPort(ip.dst, 0)
		return s, s.udp && ip.last
	}
	s.scale = -1
	violation := func(format string, args ...any) { s.violations = append(s.violations, fmt.Sprintf(format, args...)) }
	if err != nil || d.parser.Truncated || len(d.layers) < 3 || d.layers[2] != layers.LayerTypeTCP && d.layers[2] != layers.LayerTypeUDP {
		violation("malformed: %v", err)
		return s, true
	}
	if ip.length != len(frame)-14 {
		violation("%d bytes of IP in a frame of %d", ip.length, len(frame))
	}
	s.merged = ip.length > d.mtu
	checksums = checksums && !s.merged // a sum over all, with the checksum in it, leaves nothing
	if checksums && d.layers[1] == layers.LayerTypeIPv4 {
		if sum := fold(0, frame[14:14+int(d.ip4.IHL)*4]); sum != 0xffff {
			violation("IP checksum %#04x", d.ip4.Checksum)
		}
	}
	if s.udp {
		u := &d.udp
		s.src, s.dst = addrPort(ip.src, uint16(u.SrcPort)), addrPort(ip.dst, uint16(u.DstPort))
		if checksums {
			sum := fold(uint32(ip.protocol)+uint32(u.Length), slices.Concat(ip.src, ip.dst, u.Contents, u.Payload, []byte{0})) // gopacket computes none
			if sum != 0xffff || u.Checksum == 0 || int(u.Length) != 8+len(u.Payload) {
				violation("UDP checksum %#04x", u.Checksum)
			}
		}
		return s, true
	}
	t := &d.tcp
	s.src, s.dst = addrPort(ip.src, uint16(t.SrcPort)), addrPort(ip.dst, uint16(t.DstPort))
	s.seq, s.ack, s.window = t.Seq, t.Ack, t.Window
	s.syn, s.ack_, s.fin, s.rst = t.SYN, t.ACK, t.FIN, t.RST
	s.header, s.text = int(t.DataOffset)*4, len(t.Payload)
	s.options(t.Options, violation)
	s.ece, s.cwr, s.ect = t.ECE, t.CWR, ip.ecn != 0
	if t.URG || t.NS || t.Urgent != 0 {
		violation("a flag that was not asked for")
	}
	if checksums {
		t.SetNetworkLayerForChecksum(ip.network)
		if sum, err := t.ComputeChecksum(); err != nil || sum != 0 {
			violation("TCP checksum %#04x", t.Checksum)
		}
	}
	return s, true
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a, port)
}

// fold is the ones' complement sum of RFC 1071.
func fold(sum uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}

func (s *segment) options(list []layers.TCPOption, violation func(string, ...any)) {
	for _, o := range list {
		want := -1
		switch o.OptionType {
		case layers.TCPOptionKindMSS:
			if want = 2; len(o.OptionData) == want {
				s.mss = int(o.OptionData[0])<<8 | int(o.OptionData[1])
			}
		case layers.TCPOptionKindWindowScale:
			if want = 1; len(o.OptionData) == want {
				s.scale = int(o.OptionData[0])
			}
		case layers.TCPOptionKindSACKPermitted:
			want = 0
			s.sackPermitted = true
		case layers.TCPOptionKindTimestamps:
			if want = 8; len(o.OptionData) == want {
				s.timestamps = true
				s.tsVal = uint32(o.OptionData[0])<<24 | uint32(o.OptionData[1])<<16 | uint32(o.OptionData[2])<<8 | uint32(o.OptionData[3])
			}
		case layers.TCPOptionKindSACK:
			s.sackBlocks = len(o.OptionData) / 8
			want = s.sackBlocks * 8
		case layers.TCPOptionKindEndList, layers.TCPOptionKindNop:
			continue
		default:
			violation("option %v", o.OptionType)
			continue
		}
		if want != len(o.OptionData) {
			violation("option %v of %d bytes", o.OptionType, len(o.OptionData))
		}
	}
}
