//go:build linux

package bpf

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
)

// TestUplink6 is TestUplink for IPv6.
func TestUplink6(t *testing.T) { inLab(t, true, testUplink6) }

func testUplink6(l *lab) {
	l.claim6(Key6(TagUDP, shared6.As16(), 7000), l.port(l.a))
	l.claim6(Key6(TagTCP, shared6.As16(), 7000), l.port(l.b))
	l.claim6(Key6(TagUDPBlock, shared6.As16(), 7040), l.port(l.b))
	l.claim6(Key6(TagTCPBlock, shared6.As16(), 32768), l.port(l.a))
	l.claim6(Key6(TagAddr, owned6.As16(), 0), l.port(l.b))
	l.claim6(Key6(TagUDP, owned6.As16(), 9), l.port(l.a))
	l.claim6(Key6(TagTCPBlock, owned6.As16(), 128), l.port(l.a))
	l.claim6(Key6(TagTCP, owned6.As16(), 130), l.port(l.b))
	l.claim6(Key6(TagUDP, shared6.As16(), 7001), Owner{Queue: 0})
	l.claim6(Key6(TagUDP, shared6.As16(), 7002), Owner{Queue: 5})

	from := func(p uint16) netip.AddrPort { return netip.AddrPortFrom(peer6, p) }
	to := func(a netip.Addr, p uint16) []byte {
		return datagram(l.mac, peerMAC, from(5000), netip.AddrPortFrom(a, p), 64)
	}
	tcpTo := func(a netip.Addr, p uint16) []byte {
		return segment(l.mac, peerMAC, from(5000), netip.AddrPortFrom(a, p), 64)
	}
	hit, tcpHit := to(shared6, 7000), tcpTo(shared6, 7000)
	l.wantReceived([]received{
		{"UDP hit", hit, l.a, rxPort},
		{"UDP hit with Ethernet padding", padded(hit, 3), l.a, rxPort},
		{"UDP hit with a traffic class and a portTag label", edit(edit(hit, 14, 0x6f), 17, 7), l.a, rxPort},
		{"UDP to a port without an owner", to(shared6, 53), l.a, rxPass},
		{"UDP to another address", to(peer6, 7000), l.a, rxPass},
		{"UDP to an address that differs in its first byte", edit(hit, 38, 0xfc), l.a, rxPass},
		{"UDP to an address that differs in its last byte", edit(hit, 53, 2), l.a, rxPass},
		{"UDP hit, port gone", hit, 0, rxPortGone},
		{"UDP hit for another MAC address", datagram(peerMAC, peerMAC, from(1), netip.AddrPortFrom(shared6, 7000), 64), l.a, rxPass},
		{"UDP hit by Ethernet broadcast", datagram(bcast, peerMAC, from(1), netip.AddrPortFrom(shared6, 7000), 64), l.a, rxPass},
		{"TCP hit, the port of another's UDP tag", tcpHit, l.b, rxPort},
		{"UDP block, first port", to(shared6, 7040), l.b, rxPort},
		{"UDP block, last port", to(shared6, 7103), l.b, rxPort},
		{"port before a UDP block", to(shared6, 7039), l.b, rxPass},
		{"port behind a UDP block", to(shared6, 7104), l.b, rxPass},
		{"TCP to a port of a UDP block", tcpTo(shared6, 7040), l.b, rxPass},
		{"TCP block", tcpTo(shared6, 32800), l.a, rxPort},
		{"port behind a TCP block", tcpTo(shared6, 32832), l.a, rxPass},
		{"owned address, UDP", to(owned6, 1234), l.b, rxPort},
		{"owned address, TCP", tcpTo(owned6, 1), l.b, rxPort},
		{"the exact tag before the owned address", to(owned6, 9), l.a, rxPort},
		{"the block before the owned address", tcpTo(owned6, 129), l.a, rxPort},
		{"the exact tag before the block", tcpTo(owned6, 130), l.b, rxPort},
		{"owned address, ping", quote(l.mac, peerMAC, peer6, owned6, 128, nil), l.b, rxPort},
		{"owned address, no next header", edit(to(owned6, 9), atNextHeader, 59), l.b, rxPort},
		{"ping of the shared address", quote(l.mac, peerMAC, peer6, shared6, 128, nil), l.a, rxPass},
		{"first fragment, UDP hit", fragment6(hit, 0, 32, true), l.a, rxFragment},
		{"later fragment, UDP hit", fragment6(hit, 32, 64, false), l.a, rxPass},
		{"a fragment that is the whole packet, UDP hit", fragment6(hit, 0, 1000, false), l.a, rxFragment},
		{"first fragment, owned address", fragment6(to(owned6, 9), 0, 32, true), l.b, rxPort},
		{"later fragment, owned address", fragment6(to(owned6, 9), 32, 64, false), l.b, rxPort},
		{"first fragment to a port without an owner", fragment6(to(shared6, 53), 0, 32, true), l.a, rxPass},
		{"first fragment of 8 bytes, TCP hit", fragment6(tcpHit, 0, 8, true), l.a, rxFragment},
		{"first fragment of 7 bytes, TCP hit", fragment6(tcpHit, 0, 7, true), l.a, rxPass},
		{"destination options in a first fragment", fragment6(extended6(hit, 60), 0, 32, true), l.a, rxFragment},
		{"first fragment behind destination options", extended6(fragment6(hit, 0, 32, true), 60), l.a, rxFragment},
		{"a fragment in a fragment", fragment6(fragment6(hit, 0, 1000, false), 0, 1000, false), l.a, rxFragment},
		{"later fragment behind destination options", extended6(fragment6(hit, 32, 64, false), 60), l.a, rxPass},
		{"destination options, UDP hit", extended6(hit, 60), l.a, rxExtension},
		{"destination options, port of a block", extended6(tcpTo(shared6, 32800), 60), l.a, rxExtension},
		{"destination options, a port without an owner", extended6(to(shared6, 53), 60), l.a, rxPass},
		{"destination options, a ping", extended6(quote(l.mac, peerMAC, peer6, shared6, 128, nil), 60), l.a, rxPass},
		{"destination options, then ESP", extended6(edit(hit, atNextHeader, 50), 60), l.a, rxPass},
		{"15 extension headers", extendedBy(hit, 15, 0), l.a, rxExtension},
		{"15 extension headers, a port without an owner", extendedBy(to(shared6, 53), 15, 0), l.a, rxPass},
		{"16 extension headers, then any header", extendedBy(to(shared6, 53), 16, 0), l.a, rxExtension},
		{"15 long extension headers", extendedBy(hit, 15, 7), l.a, rxExtension},
		{"16 extension headers, owned address", extendedBy(to(owned6, 9), 16, 0), l.b, rxPort},
		{"extension headers that the frame ends in", extended6(hit, 60)[:58], l.a, rxPass},
		{"a long extension header that the frame ends in", edit(extended6(hit, 60), atIPv6Payload+1, 200), l.a, rxPass},
		{"routing header with segments left", edit(extended6(hit, 43), atIPv6Payload+3, 1), l.a, rxPass},
		{"routing header with none left", edit(extended6(hit, 43), atIPv6Payload+3, 0), l.a, rxExtension},
		{"authentication header", authenticated6(hit), l.a, rxExtension},
		{"destination options, owned address", extended6(to(owned6, 9), 60), l.b, rxPort},
		{"hop-by-hop options, UDP hit", extended6(hit, 0), l.a, rxExtension},
		{"IP version 4 in an IPv6 frame", edit(hit, 14, 0x45), l.a, rxPass},
		{"payload length beyond the frame", edit16(hit, atPayloadLength, 73), l.a, rxBadLength},
		{"payload length less than the frame's", edit16(to(owned6, 1), atPayloadLength, 1), l.b, rxPort},
		{"jumbogram", edit16(hit, atPayloadLength, 0), l.a, rxBadLength},
		{"jumbogram, owned address", edit16(to(owned6, 1), atPayloadLength, 0), l.b, rxBadLength},
		{"jumbogram, no owner", edit16(to(shared6, 53), atPayloadLength, 0), l.b, rxPass},
		{"UDP length beyond the packet", edit16(hit, atUDPLength6, 73), l.a, rxBadLength},
		{"UDP length beyond the packet, in the padding", padded(edit16(hit, atUDPLength6, 73), 3), l.a, rxBadLength},
		{"UDP length less than the header's", edit16(hit, atUDPLength6, 7), l.a, rxBadLength},
		{"UDP jumbogram", edit16(hit, atUDPLength6, 0), l.a, rxBadLength},
		{"UDP length, no owner", edit16(to(shared6, 53), atUDPLength6, 7), l.a, rxPass},
		{"UDP length, owned address: its owner checks", edit16(to(owned6, 1), atUDPLength6, 7), l.b, rxPort},
		{"UDP header cut off", hit[:61], l.a, rxTruncated},
		{"UDP header cut off, owned address", edit16(to(owned6, 1)[:61], atPayloadLength, 7), l.b, rxPort},
		{"TCP data offset of 4 words", edit(tcpHit, atTCPOffset6, 0x40), l.b, rxBadLength},
		{"TCP data offset beyond the packet", edit(edit16(tcpHit, atPayloadLength, 40), atTCPOffset6, 0xb0), l.b, rxBadLength},
		{"TCP data offset up to the packet's end", edit(edit16(tcpHit, atPayloadLength, 40), atTCPOffset6, 0xa0), l.b, rxPort},
		{"TCP header cut off", tcpHit[:73], l.b, rxTruncated},
		{"IPv6 header cut off", hit[:53], l.a, rxTruncated},
		{"802.1Q", frametest.Build(eth(l.mac, peerMAC, layers.EthernetTypeDot1Q), vlan(100, layers.EthernetTypeIPv6),
			ip6(peer6, shared6, layers.IPProtocolUDP), udp(1, 7000), gopacket.Payload("hello")), l.a, rxVLAN},
		{"owner on another queue", to(shared6, 7002), l.a, rxOtherQueue},
		{"owner on this queue, socket gone", to(shared6, 7001), l.a, rxQueueGone},
	})
	testUplinkICMP6(l)
	testUplinkND(l)

	l.reach(l.a)
	long := datagram(l.mac, peerMAC, from(1), netip.AddrPortFrom(shared6, 7000), 9000)
	if _, err := run(l.objs.UnetUplink, long, l.uplink, 100); err != nil {
		l.t.Logf("this kernel's test runs cannot choose the first buffer: %v", err)
		return
	}
	l.want("several buffers", l.objs.UnetUplink, long, l.uplink, 100, rxPort)
	l.want("several buffers, still too short", l.objs.UnetUplink, edit16(long, atPayloadLength, 0xffff), l.uplink, 100, rxBadLength)
}

func testUplinkICMP6(l *lab) {
	at := netip.AddrPortFrom
	sent := func(src netip.Addr, port uint16) []byte { // a packet of this host, as an ICMPv6 error quotes it
		return datagram(peerMAC, l.mac, at(src, port), at(peer6, 1), 64)[atIP:]
	}
	sentTCP := func(src netip.Addr, port uint16) []byte {
		return segment(peerMAC, l.mac, at(src, port), at(peer6, 1), 64)[atIP:]
	}
	report := func(t uint8, to netip.Addr, packet []byte) []byte {
		return quote(l.mac, peerMAC, peer6, to, t, packet)
	}
	unreachable := report(1, shared6, sent(shared6, 7000))
	l.wantReceived([]received{
		{"port unreachable for our datagram", unreachable, l.a, rxPort},
		{"the same, only 8 bytes quoted", report(1, shared6, sent(shared6, 7000)[:48]), l.a, rxPort},
		{"the same, less than 8 bytes quoted", report(1, shared6, sent(shared6, 7000)[:47]), l.a, rxPass},
		{"the same, the quotation in the padding", edit16(unreachable, atPayloadLength, 8+47), l.a, rxPass},
		{"payload length beyond the frame", edit(unreachable, atPayloadLength, 1), l.a, rxBadLength},
		{"packet too big", report(2, shared6, sent(shared6, 7000)), l.a, rxPort},
		{"time exceeded", report(3, shared6, sent(shared6, 7000)), l.a, rxPort},
		{"parameter problem", report(4, shared6, sent(shared6, 7000)), l.a, rxPort},
		{"type 0", report(0, shared6, sent(shared6, 7000)), l.a, rxPass},
		{"an error of a type that is not defined", report(5, shared6, sent(shared6, 7000)), l.a, rxPass},
		{"echo that carries our datagram", report(128, shared6, sent(shared6, 7000)), l.a, rxPass},
		{"a fragment of an error", fragment6(unreachable, 0, 64, true), l.a, rxPass},
		{"unreachable for the kernel's datagram", report(1, shared6, sent(shared6, 53)), l.a, rxPass},
		{"unreachable that quotes TCP", report(1, shared6, sentTCP(shared6, 7000)), l.b, rxPort},
		{"unreachable that quotes 8 bytes of TCP", report(1, shared6, sentTCP(shared6, 7000)[:48]), l.b, rxPort},
		{"unreachable that quotes a port of a block", report(1, shared6, sentTCP(shared6, 32800)), l.a, rxPort},
		{"unreachable that quotes a fragment", report(1, shared6, fragment6(datagram(peerMAC, l.mac, at(shared6, 7000), at(peer6, 1), 64), 0, 64, true)[atIP:]), l.a, rxPass},
		{"unreachable that quotes another protocol", report(1, shared6, edit(sent(shared6, 7000), 6, 132)), l.a, rxPass},
		{"unreachable that quotes IPv4", report(1, shared6, edit(sent(shared6, 7000), 0, 0x45)), l.a, rxPass},
		{"unreachable that quotes another's address", report(1, shared6, sent(owned6, 9)), l.a, rxPass},
		{"unreachable for the owned address", report(1, owned6, sent(owned6, 5)), l.b, rxPort},
		{"unreachable for a more specific tag of it", report(1, owned6, sent(owned6, 9)), l.a, rxPort},
		{"unreachable for a block of it", report(1, owned6, sentTCP(owned6, 131)), l.a, rxPort},
	})
}

func testUplinkND(l *lab) {
	group, groupMAC := solicitedNode(owned6)
	sharedGroup, sharedGroupMAC := solicitedNode(shared6)
	source := linkOption(layers.ICMPv6OptSourceAddress, peerMAC)
	solicitation := nd(groupMAC, peerMAC, peer6, group, 135, solicits(owned6, source))
	l.wantReceived([]received{
		{"solicitation for the owned address", solicitation, l.b, rxPort},
		{"the same, port gone", solicitation, 0, rxPortGone},
		{"the same, from the unspecified address", nd(groupMAC, peerMAC, nobody6, group, 135, solicits(owned6, nil)), l.b, rxPort},
		{"the same, by unicast", nd(l.mac, peerMAC, peer6, owned6, 135, solicits(owned6, source)), l.b, rxPort},
		{"the same, by unicast to the shared address", nd(l.mac, peerMAC, peer6, shared6, 135, solicits(owned6, source)), l.b, rxPort},
		{"by unicast to the owned address, for the shared one", nd(l.mac, peerMAC, peer6, owned6, 135, solicits(shared6, source)), l.b, rxPort},
		{"for the owned address, to all nodes", nd(l.mac, peerMAC, peer6, nodes6, 135, solicits(owned6, source)), l.b, rxPort},
		{"the same by multicast", nd([]byte{0x33, 0x33, 0, 0, 0, 1}, peerMAC, peer6, nodes6, 135, solicits(owned6, source)), l.b, rxPass},
		{"to another group's MAC address", edit(solicitation, 5, 0x78), l.b, rxPass},
		{"to another group", edit(edit(solicitation, 53, 0x78), 5, 0x78), l.b, rxPass},
		{"to a group of another scope", edit(solicitation, 39, 0x05), l.b, rxPass},
		{"by broadcast", nd(bcast, peerMAC, peer6, group, 135, solicits(owned6, source)), l.b, rxPass},
		{"to another host's MAC address", nd(peerMAC, peerMAC, peer6, group, 135, solicits(owned6, source)), l.b, rxPass},
		{"for the shared address", nd(sharedGroupMAC, peerMAC, peer6, sharedGroup, 135, solicits(shared6, source)), l.b, rxPass},
		{"for the shared address, by unicast", nd(l.mac, peerMAC, peer6, shared6, 135, solicits(shared6, source)), l.b, rxPass},
		{"payload length beyond the frame", edit16(solicitation, atPayloadLength, 33), l.b, rxBadLength},
		{"payload that ends before the target", edit16(solicitation, atPayloadLength, 23), l.b, rxPass},
		{"in a fragment", fragment6(solicitation, 0, 1000, false), l.b, rxPass},
		{"target cut off", solicitation[:77], l.b, rxTruncated},
		{"header cut off", solicitation[:53], l.b, rxTruncated},
		{"IP version 4", edit(solicitation, 14, 0x45), l.b, rxPass},
		{"advertisement to the owned address", nd(l.mac, peerMAC, peer6, owned6, 136, advertises(peer6, 0x60, linkOption(layers.ICMPv6OptTargetAddress, peerMAC))), l.b, rxPort},
		{"advertisement of the owned address by another host", nd(l.mac, peerMAC, peer6, shared6, 136, advertises(owned6, 0x60, nil)), l.b, rxPass},
		{"advertisement to all nodes", nd([]byte{0x33, 0x33, 0, 0, 0, 1}, peerMAC, peer6, nodes6, 136, advertises(peer6, 0x20, nil)), l.b, rxPass},
		{"router advertisement to all nodes", nd([]byte{0x33, 0x33, 0, 0, 0, 1}, peerMAC, peer6, nodes6, 134, &layers.ICMPv6RouterAdvertisement{}), l.b, rxPass},
		{"router advertisement to the owned address", nd(l.mac, peerMAC, peer6, owned6, 134, &layers.ICMPv6RouterAdvertisement{}), l.b, rxPort},
		{"a datagram to the group", datagram(groupMAC, peerMAC, netip.AddrPortFrom(peer6, 1), netip.AddrPortFrom(group, 9), 64), l.b, rxPass},
		{"multicast DNS", datagram([]byte{0x33, 0x33, 0, 0, 0, 0xfb}, peerMAC, netip.AddrPortFrom(peer6, 5353), netip.MustParseAddrPort("[ff02::fb]:5353"), 64), l.b, rxPass},
	})
}
