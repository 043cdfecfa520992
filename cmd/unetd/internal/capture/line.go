//go:build linux

package capture

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/wire"
)

// lines writes a line for each packet, as tcpdump -n does.
type lines struct{ *bufio.Writer }

func (l lines) write(p *Packet) error {
	direction := "In "
	if p.Direction == Out {
		direction = "Out"
	}
	comment := ""
	if p.Comment != "" {
		comment = " [" + p.Comment + "]"
	}
	_, err := fmt.Fprintf(l, "%s %s %s %s%s\n", p.Time.Format("15:04:05.000000"), p.Device, direction, describe(p.Data, p.Length), comment)
	return err
}

// describe is a frame in a few words. It makes no use of bytes that are not there.
func describe(data []byte, length int) string {
	packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: false, NoCopy: true})
	var b strings.Builder
	for _, l := range packet.Layers() {
		if v, ok := l.(*layers.Dot1Q); ok {
			fmt.Fprintf(&b, "vlan %d, ", v.VLANIdentifier)
		}
	}
	src, dst, ip := "", "", ""
	fragment := false
	switch n := packet.NetworkLayer().(type) {
	case *layers.IPv4:
		src, dst, ip = n.SrcIP.String(), n.DstIP.String(), "IP"
		fragment = n.FragOffset != 0 || n.Flags&layers.IPv4MoreFragments != 0
	case *layers.IPv6:
		src, dst, ip = n.SrcIP.String(), n.DstIP.String(), "IP6"
	default:
		return b.String() + other(packet, data, length)
	}
	switch t := packet.TransportLayer().(type) {
	case *layers.UDP:
		fmt.Fprintf(&b, "%s %s.%d > %s.%d: UDP, length %d", ip, src, t.SrcPort, dst, t.DstPort, int(t.Length)-8)
	case *layers.TCP:
		fmt.Fprintf(&b, "%s %s.%d > %s.%d: Flags [%s], seq %d", ip, src, t.SrcPort, dst, t.DstPort, flags(t), t.Seq)
		if t.ACK {
			fmt.Fprintf(&b, ", ack %d", t.Ack)
		}
		fmt.Fprintf(&b, ", win %d, length %d", t.Window, tcpLength(packet, t))
	default:
		what := fmt.Sprintf("length %d", length)
		if l := packet.Layer(layers.LayerTypeICMPv4); l != nil {
			what = "ICMP " + l.(*layers.ICMPv4).TypeCode.String() + ", " + what
		} else if l := packet.Layer(layers.LayerTypeICMPv6); l != nil {
			what = "ICMP6 " + l.(*layers.ICMPv6).TypeCode.String() + ", " + what
		} else if fragment {
			what = "fragment of " + packet.NetworkLayer().(*layers.IPv4).Protocol.String() + ", " + what
		} else if n, ok := packet.NetworkLayer().(*layers.IPv4); ok {
			what = n.Protocol.String() + ", " + what
		}
		fmt.Fprintf(&b, "%s %s > %s: %s", ip, src, dst, what)
	}
	return b.String()
}

// tcpLength is the length of a segment's payload, by the length of the IP packet.
func tcpLength(packet gopacket.Packet, t *layers.TCP) int {
	headers := int(t.DataOffset) * 4
	switch n := packet.NetworkLayer().(type) {
	case *layers.IPv4:
		return int(n.Length) - int(n.IHL)*4 - headers
	case *layers.IPv6:
		return int(n.Length) - headers
	}
	return 0
}

// flags are those of a TCP segment as tcpdump writes them.
func flags(t *layers.TCP) string {
	var b strings.Builder
	for _, f := range []struct {
		set  bool
		name byte
	}{{t.FIN, 'F'}, {t.SYN, 'S'}, {t.RST, 'R'}, {t.PSH, 'P'}, {t.ACK, '.'}, {t.URG, 'U'}, {t.ECE, 'E'}, {t.CWR, 'W'}} {
		if f.set {
			b.WriteByte(f.name)
		}
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()
}

// other describes what is not IP.
func other(packet gopacket.Packet, data []byte, length int) string {
	if l := packet.Layer(layers.LayerTypeARP); l != nil {
		a := l.(*layers.ARP)
		src, dst := net.IP(a.SourceProtAddress), net.IP(a.DstProtAddress)
		if a.Operation == layers.ARPRequest {
			return fmt.Sprintf("ARP, Request who-has %s tell %s, length %d", dst, src, length)
		}
		return fmt.Sprintf("ARP, Reply %s is-at %s, length %d", src, net.HardwareAddr(a.SourceHwAddress), length)
	}
	if len(data) < 14 {
		return fmt.Sprintf("truncated frame, length %d", length)
	}
	kind := wire.EtherType(binary.BigEndian.Uint16(data[12:]))
	if kind == wire.EtherTypeUNet && len(data) >= 14+12 {
		return fmt.Sprintf("U-Net %s > %s: message tag %d > %d, length %d", net.HardwareAddr(data[6:12]), net.HardwareAddr(data[:6]),
			binary.BigEndian.Uint32(data[22:]), binary.BigEndian.Uint32(data[18:]), length)
	}
	return fmt.Sprintf("%s > %s, ethertype %#04x, length %d", net.HardwareAddr(data[6:12]), net.HardwareAddr(data[:6]), uint16(kind), length)
}
