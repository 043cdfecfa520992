//go:build linux

package capture

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

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

// describe is a frame in a few words. data are the captured bytes, which may end anywhere. length is the length of
// the whole frame. The parsers of package wire refuse frames that are cut or have a wrong checksum, so this reads
// the headers itself.
func describe(data []byte, length int) string {
	if len(data) < wire.EthernetHeaderLen {
		return fmt.Sprintf("truncated frame, length %d", length)
	}
	dst, src := net.HardwareAddr(data[:6]), net.HardwareAddr(data[6:12])
	kind, b := wire.EtherType(binary.BigEndian.Uint16(data[12:])), data[wire.EthernetHeaderLen:]
	vlans := ""
	for (kind == wire.EtherTypeVLAN || kind == wire.EtherTypeQinQ) && len(b) >= wire.VLANTagLen {
		vlans += fmt.Sprintf("vlan %d, ", binary.BigEndian.Uint16(b)&0xfff)
		kind, b = wire.EtherType(binary.BigEndian.Uint16(b[2:])), b[wire.VLANTagLen:]
	}
	switch {
	case kind == wire.EtherTypeIPv4 && len(b) >= wire.IPv4HeaderLen && b[0]>>4 == 4 && b[0]&15 >= 5:
		header := int(b[0]&15) * 4
		fragment := binary.BigEndian.Uint16(b[6:])&0x3fff != 0 // the flag MF, or an offset
		return vlans + describeIP("IP", netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), b[9], fragment,
			b[min(header, len(b)):], int(binary.BigEndian.Uint16(b[2:]))-header, length)
	case kind == wire.EtherTypeIPv6 && len(b) >= wire.IPv6HeaderLen && b[0]>>4 == 6:
		next, fragment, payload := skipExtensions(b[6], b[wire.IPv6HeaderLen:])
		return vlans + describeIP("IP6", netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), next, fragment,
			payload, int(binary.BigEndian.Uint16(b[4:]))-(len(b)-wire.IPv6HeaderLen-len(payload)), length)
	case kind == wire.EtherTypeARP && len(b) >= wire.ARPLen && b[4] == 6 && b[5] == 4:
		return vlans + describeARP(b, length)
	case kind == wire.EtherTypeUNet && len(b) >= wire.MessageHeaderLen:
		return fmt.Sprintf("%sU-Net %s > %s: message tag %d > %d, length %d", vlans, src, dst,
			binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[4:]), length)
	}
	return fmt.Sprintf("%s%s > %s, ethertype %#04x, length %d", vlans, src, dst, uint16(kind), length)
}

// describeARP is the text for an ARP packet.
func describeARP(b []byte, length int) string {
	sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	if binary.BigEndian.Uint16(b[6:]) == wire.ARPRequest {
		return fmt.Sprintf("ARP, Request who-has %s tell %s, length %d", target, sender, length)
	}
	return fmt.Sprintf("ARP, Reply %s is-at %s, length %d", sender, net.HardwareAddr(b[8:14]), length)
}

// protocolNames are the names of IP protocols in lines.
var protocolNames = map[uint8]string{wire.ProtocolICMP: "ICMP", wire.ProtocolTCP: "TCP", wire.ProtocolUDP: "UDP", wire.ProtocolICMPv6: "ICMP6"}

// describeIP is the text for an IP packet in a frame of this length. payload are the captured bytes after its IP headers, of which size
// is the length by these headers.
func describeIP(version string, src, dst netip.Addr, protocol uint8, fragment bool, payload []byte, size, length int) string {
	name, known := protocolNames[protocol]
	if !known {
		name = fmt.Sprint("protocol ", protocol)
	}
	switch b := payload; {
	case fragment:
		name = "fragment of " + name
	case protocol == wire.ProtocolUDP && len(b) >= wire.UDPHeaderLen:
		return fmt.Sprintf("%s %s.%d > %s.%d: UDP, length %d", version, src, binary.BigEndian.Uint16(b), dst, binary.BigEndian.Uint16(b[2:]),
			int(binary.BigEndian.Uint16(b[4:]))-wire.UDPHeaderLen)
	case protocol == wire.ProtocolTCP && len(b) >= wire.TCPHeaderLen:
		flags, ack := wire.TCPFlags(b[13]), ""
		if flags&wire.TCPAck != 0 {
			ack = fmt.Sprintf(", ack %d", binary.BigEndian.Uint32(b[8:]))
		}
		return fmt.Sprintf("%s %s.%d > %s.%d: Flags [%s], seq %d%s, win %d, length %d", version, src, binary.BigEndian.Uint16(b), dst, binary.BigEndian.Uint16(b[2:]),
			tcpFlags(flags), binary.BigEndian.Uint32(b[4:]), ack, binary.BigEndian.Uint16(b[14:]), size-int(b[12]>>4)*4)
	case (protocol == wire.ProtocolICMP || protocol == wire.ProtocolICMPv6) && len(b) >= wire.ICMPv4HeaderLen:
		name += fmt.Sprintf(" type %d code %d", b[0], b[1])
	}
	return fmt.Sprintf("%s %s > %s: %s, length %d", version, src, dst, name, length)
}

// tcpFlags are the flags of a TCP segment as tcpdump writes them.
func tcpFlags(flags wire.TCPFlags) string {
	var b strings.Builder
	for i, name := range []byte("FSRP.UEW") { // from the lowest bit on
		if flags>>i&1 != 0 {
			b.WriteByte(name)
		}
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()
}
