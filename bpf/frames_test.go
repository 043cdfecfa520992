//go:build linux

package bpf

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
)

// The addresses in the tables of frames.
var (
	shared  = netip.MustParseAddr("10.0.0.1") // the uplink's own address
	owned   = netip.MustParseAddr("10.0.0.77")
	peer    = netip.MustParseAddr("10.0.0.2")
	peerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x0b}
	bcast   = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

	shared6 = netip.MustParseAddr("fd00::1")
	owned6  = netip.MustParseAddr("fd00::aa:77")
	peer6   = netip.MustParseAddr("fd00::2")
	nobody6 = netip.IPv6Unspecified()
	nodes6  = netip.MustParseAddr("ff02::1") // all nodes
)

func eth(dst, src net.HardwareAddr, t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{DstMAC: dst, SrcMAC: src, EthernetType: t}
}

func ip4(src, dst netip.Addr, p layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: p, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

func ip6(src, dst netip.Addr, p layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: p, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

// packet is an Ethernet frame with an IPv4 or IPv6 packet.
func packet(dstMAC, srcMAC net.HardwareAddr, src, dst netip.Addr, p layers.IPProtocol, ls ...gopacket.SerializableLayer) []byte {
	if src.Is4() {
		return frametest.Build(append([]gopacket.SerializableLayer{eth(dstMAC, srcMAC, layers.EthernetTypeIPv4), ip4(src, dst, p)}, ls...)...)
	}
	return frametest.Build(append([]gopacket.SerializableLayer{eth(dstMAC, srcMAC, layers.EthernetTypeIPv6), ip6(src, dst, p)}, ls...)...)
}

func udp(src, dst uint16) *layers.UDP {
	return &layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}
}

func datagram(dstMAC, srcMAC net.HardwareAddr, src, dst netip.AddrPort, n int) []byte {
	return packet(dstMAC, srcMAC, src.Addr(), dst.Addr(), layers.IPProtocolUDP, udp(src.Port(), dst.Port()), gopacket.Payload(make([]byte, n)))
}

func tcp(src, dst uint16) *layers.TCP {
	return &layers.TCP{SrcPort: layers.TCPPort(src), DstPort: layers.TCPPort(dst), ACK: true,
		Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 180}}}}
}

// segment has a TCP header of 24 bytes.
func segment(dstMAC, srcMAC net.HardwareAddr, src, dst netip.AddrPort, n int) []byte {
	return packet(dstMAC, srcMAC, src.Addr(), dst.Addr(), layers.IPProtocolTCP, tcp(src.Port(), dst.Port()), gopacket.Payload(make([]byte, n)))
}

func vlan(id uint16, inner layers.EthernetType) *layers.Dot1Q {
	return &layers.Dot1Q{VLANIdentifier: id, Type: inner}
}

// tagged inserts a VLAN tag into a frame, with four bits of priority.
func tagged(frame []byte, t layers.EthernetType, id uint16, priority byte) []byte {
	tag := binary.BigEndian.AppendUint16(nil, uint16(t))
	tag = binary.BigEndian.AppendUint16(tag, uint16(priority)<<12|id)
	return slices.Concat(frame[:12], tag, frame[12:])
}

func arp(dstMAC, srcMAC, sender net.HardwareAddr, senderIP, target netip.Addr, op uint16) []byte {
	return frametest.Build(eth(dstMAC, srcMAC, layers.EthernetTypeARP), &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
		SourceHwAddress: sender, SourceProtAddress: senderIP.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: target.AsSlice(),
	})
}

// message is a U-Net message by docs/message-format.md.
func message(dstMAC, srcMAC net.HardwareAddr, dst, src byte, length, n int) []byte {
	h := []byte{1, 0, byte(length >> 8), byte(length), 0, 0, 0, dst, 0, 0, 0, src}
	return frametest.Build(eth(dstMAC, srcMAC, 0x88b5), gopacket.Payload(append(h, make([]byte, n)...)))
}

// quote is an ICMP or ICMPv6 message that quotes packet.
func quote(dstMAC, srcMAC net.HardwareAddr, src, dst netip.Addr, t uint8, quoted []byte) []byte {
	if src.Is4() {
		return packet(dstMAC, srcMAC, src, dst, layers.IPProtocolICMPv4,
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(t, 0)}, gopacket.Payload(quoted))
	}
	return packet(dstMAC, srcMAC, src, dst, layers.IPProtocolICMPv6,
		&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(t, 0)}, gopacket.Payload(append(make([]byte, 4), quoted...)))
}

// nd is a neighbour discovery message of ICMPv6.
func nd(dstMAC, srcMAC net.HardwareAddr, src, dst netip.Addr, t uint8, body gopacket.SerializableLayer) []byte {
	return packet(dstMAC, srcMAC, src, dst, layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(t, 0)}, body)
}

func linkOption(t layers.ICMPv6Opt, link net.HardwareAddr) layers.ICMPv6Options {
	return layers.ICMPv6Options{{Type: t, Data: link}}
}

func solicits(target netip.Addr, options layers.ICMPv6Options) *layers.ICMPv6NeighborSolicitation {
	return &layers.ICMPv6NeighborSolicitation{TargetAddress: target.AsSlice(), Options: options}
}

func advertises(target netip.Addr, flags uint8, options layers.ICMPv6Options) *layers.ICMPv6NeighborAdvertisement {
	return &layers.ICMPv6NeighborAdvertisement{Flags: flags, TargetAddress: target.AsSlice(), Options: options}
}

// solicitedNode is the solicited-node address of a, and its MAC address.
func solicitedNode(a netip.Addr) (netip.Addr, net.HardwareAddr) {
	b := a.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], b[13:])
	return netip.AddrFrom16(group), net.HardwareAddr{0x33, 0x33, 0xff, b[13], b[14], b[15]}
}

var (
	group4          = netip.MustParseAddr("239.129.2.3")
	subnetBroadcast = netip.MustParseAddr("10.0.0.255")
)

// groupMAC is the MAC address of a group, or of broadcast.
func groupMAC(a netip.Addr) net.HardwareAddr {
	switch {
	case a.Is6():
		b := a.As16()
		return append(net.HardwareAddr{0x33, 0x33}, b[12:]...)
	case a.IsMulticast():
		b := a.As4()
		return net.HardwareAddr{1, 0, 0x5e, b[1] & 0x7f, b[2], b[3]}
	}
	return bcast
}

// edit changes one byte of a copy.
func edit(frame []byte, at int, v byte) []byte {
	f := slices.Clone(frame)
	f[at] = v
	return f
}

// edit16 changes two bytes of a copy.
func edit16(frame []byte, at int, v uint16) []byte {
	f := slices.Clone(frame)
	binary.BigEndian.PutUint16(f[at:], v)
	return f
}

// padded appends n bytes beyond all lengths.
func padded(frame []byte, n int) []byte { return append(slices.Clone(frame), make([]byte, n)...) }

// fragment4 makes a plain IPv4 frame a fragment: the packet's bytes from offset
// on, n of them at most.
func fragment4(frame []byte, offset, n int, more bool) []byte {
	payload := frame[atIPv4Payload:]
	part := payload[min(offset, len(payload)):min(offset+n, len(payload))]
	f := append(slices.Clone(frame[:atIPv4Payload]), part...)
	field := uint16(offset / 8)
	if more {
		field |= 0x2000
	}
	return edit16(edit16(f, atTotalLength, uint16(20+len(part))), atFragment, field)
}

// fragmentID is the identification of an IPv6 packet in fragments.
var fragmentID byte = 9

// fragment6 is fragment4 for IPv6, with a fragment header.
func fragment6(frame []byte, offset, n int, more bool) []byte {
	payload := frame[atIPv6Payload:]
	part := payload[min(offset, len(payload)):min(offset+n, len(payload))]
	field := uint16(offset)
	if more {
		field |= 1
	}
	header := binary.BigEndian.AppendUint16([]byte{frame[atNextHeader], 0}, field)
	f := append(slices.Clone(frame[:atIPv6Payload]), append(append(header, 0, 0, 0, fragmentID), part...)...)
	return edit(edit16(f, atPayloadLength, uint16(8+len(part))), atNextHeader, 44)
}

// extended6 inserts an extension header of 8 bytes before a packet's payload.
func extended6(frame []byte, kind byte) []byte {
	f := append(slices.Clone(frame[:atIPv6Payload]), frame[atNextHeader], 0, 1, 4, 0, 0, 0, 0)
	f = append(f, frame[atIPv6Payload:]...)
	return edit(edit16(f, atPayloadLength, uint16(len(f)-atIPv6Payload)), atNextHeader, kind)
}

// extendedBy inserts n destination options headers of 8 bytes and 8*more.
func extendedBy(frame []byte, n int, more byte) []byte {
	f := slices.Clone(frame[:atIPv6Payload])
	for i := range n {
		next := byte(60)
		if i == n-1 {
			next = frame[atNextHeader]
		}
		option := 4 + 8*int(more) // of padding, which fills the header
		f = append(f, next, more, 1, byte(option))
		f = append(f, make([]byte, option)...)
	}
	f = append(f, frame[atIPv6Payload:]...)
	return edit(edit16(f, atPayloadLength, uint16(len(f)-atIPv6Payload)), atNextHeader, 60)
}

// authenticated6 inserts an authentication header of 24 bytes (RFC 4302).
func authenticated6(frame []byte) []byte {
	f := append(slices.Clone(frame[:atIPv6Payload]), frame[atNextHeader], 4)
	f = append(append(f, make([]byte, 22)...), frame[atIPv6Payload:]...)
	return edit(edit16(f, atPayloadLength, uint16(len(f)-atIPv6Payload)), atNextHeader, 51)
}

// Offsets into a frame with a plain IPv4 or IPv6 header.
const (
	atIP            = 14
	atVersionIHL    = 14
	atTotalLength   = 16
	atFragment      = 20
	atProtocol      = 23
	atIPv4Payload   = 34
	atUDPLength     = atIPv4Payload + 4
	atTCPOffset     = atIPv4Payload + 12
	atPayloadLength = 18
	atNextHeader    = 20
	atHopLimit      = 21
	atIPv6Payload   = 54
	atUDPLength6    = atIPv6Payload + 4
	atTCPOffset6    = atIPv6Payload + 12
)
