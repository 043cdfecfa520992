//go:build linux

package pathlink

import (
	"encoding/binary"

	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/wire"
)

// end is what a tag of ports names: an address, a protocol and a port. That of a U-Net message is only an address, by which the table
// names its tag.
type end struct {
	addr     wire.Addr
	protocol uint8
	port     uint16
}

// Offsets in an Ethernet frame without a VLAN tag.
const (
	atType = 12
	atIP   = wire.EthernetHeaderLen

	portsLen = 4 // the two ports begin the headers of TCP and UDP
)

// ends are the source and the destination of a frame. ok is false for all but U-Net messages, and TCP and UDP in one packet, without
// a VLAN tag, options of IPv4 and extension headers of IPv6, from and to one host.
func ends(b []byte) (src, dst end, ok bool) {
	if len(b) < atIP+wire.IPv4HeaderLen+portsLen {
		return messageEnds(b)
	}
	ip := b[atIP:]
	var protocol uint8
	var ports []byte
	switch wire.EtherType(binary.BigEndian.Uint16(b[atType:])) {
	case wire.EtherTypeIPv4:
		const moreOrOffset = 0x3fff
		if ip[0] != 0x45 || binary.BigEndian.Uint16(ip[6:])&moreOrOffset != 0 {
			return src, dst, false
		}
		protocol = ip[9]
		src.addr, dst.addr = wire.AddrFrom4([4]byte(ip[12:16])), wire.AddrFrom4([4]byte(ip[16:20]))
		ports = ip[wire.IPv4HeaderLen:]
	case wire.EtherTypeIPv6:
		if len(ip) < wire.IPv6HeaderLen+portsLen {
			return src, dst, false
		}
		if ip[8] == 0xff || ip[24] == 0xff { // several hosts; among these addresses are those of message tags
			return src, dst, false
		}
		protocol = ip[6]
		src.addr, dst.addr = wire.AddrFrom16([16]byte(ip[8:24])), wire.AddrFrom16([16]byte(ip[24:40]))
		ports = ip[wire.IPv6HeaderLen:]
	default:
		return messageEnds(b)
	}
	src.protocol, dst.protocol = protocol, protocol
	src.port, dst.port = binary.BigEndian.Uint16(ports), binary.BigEndian.Uint16(ports[2:])
	return src, dst, protocol == wire.ProtocolTCP || protocol == wire.ProtocolUDP
}

// messageEnds are the source and the destination of a U-Net message.
func messageEnds(b []byte) (src, dst end, ok bool) {
	if len(b) < atIP+wire.MessageHeaderLen || wire.EtherType(binary.BigEndian.Uint16(b[atType:])) != wire.EtherTypeUNet {
		return src, dst, false
	}
	m := wire.Message(b[atIP:])
	src.addr, dst.addr = tagtable.MessageAddr(m.Src()), tagtable.MessageAddr(m.Dst())
	return src, dst, m[0] == wire.MessageVersion
}
