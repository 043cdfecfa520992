//go:build linux

package wiretap

import (
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// segment is what a decoder, gopacket or tshark, makes of a frame.
type segment struct {
	frame    int // its number in the capture
	src, dst netip.AddrPort

	seq, ack            uint32
	text                int // bytes
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

// length is what the segment occupies of the sequence space.
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
	ip     layers.IPv4
	tcp    layers.TCP
	text   gopacket.Payload
	parser *gopacket.DecodingLayerParser
	layers []gopacket.LayerType
}

func newDecoder(mtu int) *decoder {
	d := &decoder{mtu: mtu}
	d.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &d.eth, &d.ip, &d.tcp, &d.text)
	return d
}

// decode decodes a frame; ok is false if it is not TCP. It verifies checksums if
// checksums is true.
func (d *decoder) decode(frame []byte, checksums bool) (s segment, ok bool) {
	err := d.parser.DecodeLayers(frame, &d.layers)
	if len(d.layers) < 2 || d.layers[1] != layers.LayerTypeIPv4 || d.ip.Protocol != layers.IPProtocolTCP {
		return s, false
	}
	s.scale = -1
	violation := func(format string, args ...any) { s.violations = append(s.violations, fmt.Sprintf(format, args...)) }
	addr := func(ip []byte, port layers.TCPPort) netip.AddrPort {
		a, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(a, uint16(port))
	}
	if err != nil || d.parser.Truncated || len(d.layers) < 3 || d.layers[2] != layers.LayerTypeTCP {
		violation("malformed: %v", err)
		return s, true
	}
	t := &d.tcp
	s.src, s.dst = addr(d.ip.SrcIP, t.SrcPort), addr(d.ip.DstIP, t.DstPort)
	s.seq, s.ack, s.window = t.Seq, t.Ack, t.Window
	s.syn, s.ack_, s.fin, s.rst = t.SYN, t.ACK, t.FIN, t.RST
	s.header, s.text = int(t.DataOffset)*4, len(t.Payload)
	s.options(t.Options, violation)
	s.merged = int(d.ip.Length) > d.mtu
	s.ece, s.cwr, s.ect = t.ECE, t.CWR, d.ip.TOS&3 != 0
	if t.URG || t.NS || t.Urgent != 0 {
		violation("a flag that was not asked for")
	}
	if int(d.ip.Length) != len(frame)-14 {
		violation("%d bytes of IP in a frame of %d", d.ip.Length, len(frame))
	}
	if checksums && !s.merged {
		if sum := fold(0, frame[14:14+int(d.ip.IHL)*4]); sum != 0xffff {
			violation("IP checksum %#04x", d.ip.Checksum)
		}
		t.SetNetworkLayerForChecksum(&d.ip)
		// The sum over all, that of the header included, leaves nothing.
		if sum, err := t.ComputeChecksum(); err != nil || sum != 0 {
			violation("TCP checksum %#04x", t.Checksum)
		}
	}
	return s, true
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
