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
		return vlans + describeIPv4(b, length)
	case kind == wire.EtherTypeIPv6 && len(b) >= wire.IPv6HeaderLen && b[0]>>4 == 6:
		return vlans + describeIPv6(b, length)
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

// ipPacket is a packet after its IP headers.
type ipPacket struct {
	version  string // "IP" or "IP6"
	src, dst netip.Addr
	protocol uint8
	fragment bool
	payload  []byte // its captured bytes
	size     int    // of the payload, by the IP headers
}

// describeIPv4 is the text for an IPv4 packet.
func describeIPv4(b []byte, length int) string {
	header := int(b[0]&15) * 4
	return ipPacket{
		version: "IP", src: netip.AddrFrom4([4]byte(b[12:])), dst: netip.AddrFrom4([4]byte(b[16:])), protocol: b[9],
		fragment: binary.BigEndian.Uint16(b[6:])&0x3fff != 0, // the flag MF, or an offset
		payload:  b[min(header, len(b)):], size: int(binary.BigEndian.Uint16(b[2:])) - header,
	}.describe(length)
}

// describeIPv6 is the text for an IPv6 packet. It skips the extension headers.
func describeIPv6(b []byte, length int) string {
	p := ipPacket{
		version: "IP6", src: netip.AddrFrom16([16]byte(b[8:])), dst: netip.AddrFrom16([16]byte(b[24:])), protocol: b[6],
		payload: b[wire.IPv6HeaderLen:], size: int(binary.BigEndian.Uint16(b[4:])),
	}
	for len(p.payload) >= 8 {
		header := 8 + 8*int(p.payload[1])
		switch p.protocol {
		case 0, 43, 60: // hop-by-hop options, routing header, destination options
		case wire.ProtocolFragment:
			header = wire.IPv6FragmentLen
			p.fragment = p.fragment || binary.BigEndian.Uint16(p.payload[2:])&0xfff9 != 0
		default:
			return p.describe(length)
		}
		p.protocol, p.payload, p.size = p.payload[0], p.payload[min(header, len(p.payload)):], p.size-header
		if p.fragment {
			break
		}
	}
	return p.describe(length)
}

// describe is the text for the packet in a frame of this length.
func (p ipPacket) describe(length int) string {
	b := p.payload
	switch {
	case p.fragment:
		return fmt.Sprintf("%s %s > %s: fragment of %s, length %d", p.version, p.src, p.dst, protocolName(p.protocol), length)
	case p.protocol == wire.ProtocolUDP && len(b) >= wire.UDPHeaderLen:
		return fmt.Sprintf("%s %s.%d > %s.%d: UDP, length %d", p.version, p.src, binary.BigEndian.Uint16(b), p.dst, binary.BigEndian.Uint16(b[2:]),
			int(binary.BigEndian.Uint16(b[4:]))-wire.UDPHeaderLen)
	case p.protocol == wire.ProtocolTCP && len(b) >= wire.TCPHeaderLen:
		flags, ack := wire.TCPFlags(b[13]), ""
		if flags&wire.TCPAck != 0 {
			ack = fmt.Sprintf(", ack %d", binary.BigEndian.Uint32(b[8:]))
		}
		return fmt.Sprintf("%s %s.%d > %s.%d: Flags [%s], seq %d%s, win %d, length %d", p.version, p.src, binary.BigEndian.Uint16(b), p.dst, binary.BigEndian.Uint16(b[2:]),
			tcpFlags(flags), binary.BigEndian.Uint32(b[4:]), ack, binary.BigEndian.Uint16(b[14:]), p.size-int(b[12]>>4)*4)
	case p.protocol == wire.ProtocolICMP && len(b) >= wire.ICMPv4HeaderLen:
		return fmt.Sprintf("%s %s > %s: ICMP %s, length %d", p.version, p.src, p.dst, icmpName(icmpTypes, b[0], b[1]), length)
	case p.protocol == wire.ProtocolICMPv6 && len(b) >= wire.ICMPv6HeaderLen:
		return fmt.Sprintf("%s %s > %s: ICMP6 %s, length %d", p.version, p.src, p.dst, icmpName(icmpv6Types, b[0], b[1]), length)
	}
	return fmt.Sprintf("%s %s > %s: %s, length %d", p.version, p.src, p.dst, protocolName(p.protocol), length)
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

// protocolName is the name of an IP protocol, or its number.
func protocolName(protocol uint8) string {
	switch protocol {
	case wire.ProtocolICMP:
		return "ICMP"
	case 2:
		return "IGMP"
	case wire.ProtocolTCP:
		return "TCP"
	case wire.ProtocolUDP:
		return "UDP"
	case 47:
		return "GRE"
	case 50:
		return "ESP"
	case 51:
		return "AH"
	case wire.ProtocolICMPv6:
		return "ICMP6"
	case 89:
		return "OSPF"
	case 112:
		return "VRRP"
	case 132:
		return "SCTP"
	}
	return fmt.Sprint("protocol ", protocol)
}

// icmpType is the name of a type of ICMP messages, and the names of its codes from 0 on.
type icmpType struct {
	name  string
	codes []string
}

var icmpTypes = map[uint8]icmpType{
	0: {name: "EchoReply"},
	3: {"DestinationUnreachable", []string{"Net", "Host", "Protocol", "Port", "FragmentationNeeded", "SourceRoutingFailed", "NetUnknown", "HostUnknown", "SourceIsolated",
		"NetAdminProhibited", "HostAdminProhibited", "NetTOS", "HostTOS", "CommAdminProhibited", "HostPrecedence", "PrecedenceCutoff"}},
	4:  {name: "SourceQuench"},
	5:  {"Redirect", []string{"Net", "Host", "TOS+Net", "TOS+Host"}},
	8:  {name: "EchoRequest"},
	9:  {name: "RouterAdvertisement"},
	10: {name: "RouterSolicitation"},
	11: {"TimeExceeded", []string{"TTLExceeded", "FragmentReassemblyTimeExceeded"}},
	12: {"ParameterProblem", []string{"PointerIndicatesError", "MissingOption", "BadLength"}},
	13: {name: "TimestampRequest"},
	14: {name: "TimestampReply"},
}

var icmpv6Types = map[uint8]icmpType{
	1: {"DestinationUnreachable", []string{"NoRouteToDst", "AdminProhibited", "BeyondScopeOfSrc", "AddressUnreachable", "PortUnreachable", "SrcAddressFailedPolicy",
		"RejectRouteToDst"}},
	2:   {name: "PacketTooBig"},
	3:   {"TimeExceeded", []string{"HopLimitExceeded", "FragmentReassemblyTimeExceeded"}},
	4:   {"ParameterProblem", []string{"ErroneousHeaderField", "UnrecognizedNextHeader", "UnrecognizedIPv6Option"}},
	128: {name: "EchoRequest"},
	129: {name: "EchoReply"},
	133: {name: "RouterSolicitation"},
	134: {name: "RouterAdvertisement"},
	135: {name: "NeighborSolicitation"},
	136: {name: "NeighborAdvertisement"},
	137: {name: "Redirect"},
}

// icmpName is the name of a type and code.
func icmpName(types map[uint8]icmpType, typ, code uint8) string {
	t, ok := types[typ]
	switch {
	case !ok:
		return fmt.Sprintf("%d(%d)", typ, code)
	case int(code) < len(t.codes):
		return fmt.Sprintf("%s(%s)", t.name, t.codes[code])
	case code == 0:
		return t.name
	}
	return fmt.Sprintf("%s(Code: %d)", t.name, code)
}
