//go:build linux

package bpf

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
)

// Counters of the port program.
const (
	txUplink         = MuxUnetCounterUNET_TX_UPLINK
	txLocal          = MuxUnetCounterUNET_TX_LOCAL
	txTruncated      = MuxUnetCounterUNET_TX_TRUNCATED
	txBadLength      = MuxUnetCounterUNET_TX_BAD_LENGTH
	txBadHeader      = MuxUnetCounterUNET_TX_BAD_HEADER
	txOversize       = MuxUnetCounterUNET_TX_OVERSIZE
	txBadType        = MuxUnetCounterUNET_TX_BAD_ETHERTYPE
	txForgedLink     = MuxUnetCounterUNET_TX_FORGED_LINK
	txForgedAddr     = MuxUnetCounterUNET_TX_FORGED_ADDR
	txForgedTag      = MuxUnetCounterUNET_TX_FORGED_TAG
	txForgedARP      = MuxUnetCounterUNET_TX_FORGED_ARP
	txForgedND       = MuxUnetCounterUNET_TX_FORGED_ND
	txForgedQuote    = MuxUnetCounterUNET_TX_FORGED_QUOTE
	txForgedGroup    = MuxUnetCounterUNET_TX_FORGED_GROUP
	txBroadcast      = MuxUnetCounterUNET_TX_BROADCAST
	txGroup          = MuxUnetCounterUNET_TX_GROUP
	txInfrastructure = MuxUnetCounterUNET_TX_INFRASTRUCTURE
	txForgedRDMA     = MuxUnetCounterUNET_TX_FORGED_RDMA
	txNoOwner        = MuxUnetCounterUNET_TX_NO_OWNER
	txHost           = MuxUnetCounterUNET_TX_HOST
	txToQueue        = MuxUnetCounterUNET_TX_TO_QUEUE
	txPortGone       = MuxUnetCounterUNET_TX_PORT_GONE
	txUplinkGone     = MuxUnetCounterUNET_TX_UPLINK_GONE
)

// Frames that endpoints send: the counters of those that are allowed, and of each reason to drop one.
func TestPort(t *testing.T) {
	inLab(t, true, func(l *lab) {
		claimForPorts(l)
		testPort(l)
		testPortTCP(l)
		testPortEthernet(l)
		testPortARP(l)
		testPortMessages(l)
		testPortLocal(l)
		testPort6(l)
		testPortND(l)
		testPortErrors(l)
		testPortErrors6(l)
		testPortLocal6(l)
		testPortInfrastructure(l)
		testPortGroups(l)
		testPortRDMA(l)
		l.wantAll(txUplink, txUplinkGone)
		testPortBuffers(l)
	})
}

// claimForPorts gives a two UDP ports, a block of TCP ports and a message tag;
// b an owned address, but not port 9 of it, which is a's; and the same in IPv6.
func claimForPorts(l *lab) {
	a, b := l.port(l.a), l.port(l.b)
	for _, port := range []uint16{7000, 7009} {
		l.claim(Key(TagUDP, shared.As4(), port), a)
		l.claim6(Key6(TagUDP, shared6.As16(), port), a)
	}
	l.claim(Key(TagTCPBlock, shared.As4(), 32768), a)
	l.claim6(Key6(TagTCPBlock, shared6.As16(), 32768), a)
	l.claim(Key(TagTCP, shared.As4(), 32770), b)
	l.claim6(Key6(TagTCP, shared6.As16(), 32770), b)
	l.claim(MessageKey(7), a)

	l.claim(Key(TagAddr, owned.As4(), 0), b)
	l.claim6(Key6(TagAddr, owned6.As16(), 0), b)
	l.claim(Key(TagUDP, owned.As4(), 9), a)
	l.claim6(Key6(TagUDP, owned6.As16(), 9), a)
	l.claim(MessageKey(8), b)

	l.claim(Key(TagUDP, shared.As4(), 7001), Owner{Queue: 0})
	l.claim6(Key6(TagUDP, shared6.As16(), 7001), Owner{Queue: 0})
}

func testPort(l *lab) {
	at := netip.AddrPortFrom
	out := func(src, dst netip.AddrPort) []byte { return datagram(peerMAC, l.mac, src, dst, 64) }
	ping := func(src netip.Addr) []byte { return quote(peerMAC, l.mac, src, peer, 8, nil) }
	good := out(at(shared, 7000), at(peer, 1))
	fromOwned := out(at(owned, 5), at(peer, 1))
	// routed has a loose source route (RFC 791, 3.1) through 10.0.0.9.
	routed := func(src netip.AddrPort) []byte {
		ip := ip4(src.Addr(), peer, layers.IPProtocolUDP)
		ip.Options = []layers.IPv4Option{{OptionType: 131, OptionLength: 7, OptionData: []byte{4, 10, 0, 0, 9}}, {OptionType: 0}}
		return frametest.Build(eth(peerMAC, l.mac, layers.EthernetTypeIPv4), ip, udp(src.Port(), 1), gopacket.Payload("hello"))
	}
	l.wantSent([]sent{
		{"UDP", good, l.a, l.uplink, txUplink},
		{"UDP, uplink gone", good, l.a, 0, txUplinkGone},
		{"UDP to multicast", datagram([]byte{1, 0, 0x5e, 0, 0, 0xfb}, l.mac, at(shared, 7000), at(netip.MustParseAddr("224.0.0.251"), 5353), 8), l.a, l.uplink, txUplink},
		{"UDP of another endpoint", good, l.b, l.uplink, txForgedTag},
		{"UDP of a queue's endpoint", out(at(shared, 7001), at(peer, 1)), l.a, l.uplink, txForgedTag},
		{"UDP of the kernel", out(at(shared, 53), at(peer, 1)), l.a, l.uplink, txForgedAddr},
		{"UDP from another host's address", out(at(peer, 7000), at(peer, 1)), l.a, l.uplink, txForgedAddr},
		{"UDP from no address", out(at(netip.IPv4Unspecified(), 68), at(peer, 67)), l.b, l.uplink, txForgedAddr},
		{"UDP from broadcast", out(at(netip.MustParseAddr("255.255.255.255"), 7000), at(peer, 1)), l.a, l.uplink, txForgedAddr},
		{"UDP from the owned address", fromOwned, l.b, l.uplink, txUplink},
		{"UDP from another's owned address", fromOwned, l.a, l.uplink, txForgedAddr},
		{"UDP from another's tag on the owned address", out(at(owned, 9), at(peer, 1)), l.b, l.uplink, txForgedTag},
		{"that tag's owner", out(at(owned, 9), at(peer, 1)), l.a, l.uplink, txUplink},
		{"source route from a UDP tag", routed(at(shared, 7000)), l.a, l.uplink, txForgedAddr},
		{"source route from the owned address", routed(at(owned, 5)), l.b, l.uplink, txUplink},
		{"source route from another's tag on it", routed(at(owned, 9)), l.b, l.uplink, txForgedTag},
		{"ping from a UDP tag's address", ping(shared), l.a, l.uplink, txForgedAddr},
		{"ping from the owned address", ping(owned), l.b, l.uplink, txUplink},
		{"UDP-Lite from a UDP tag's address", edit(good, atProtocol, 136), l.a, l.uplink, txForgedAddr},

		{"first fragment of a UDP tag", fragment4(good, 0, 32, true), l.a, l.uplink, txForgedAddr},
		{"later fragment of a UDP tag", fragment4(good, 32, 100, false), l.a, l.uplink, txForgedAddr},
		{"a UDP tag's packet that promises more", edit(good, atFragment, 0x20), l.a, l.uplink, txForgedAddr},
		{"first fragment of the owned address", fragment4(fromOwned, 0, 32, true), l.b, l.uplink, txUplink},
		{"later fragment of the owned address", fragment4(fromOwned, 32, 100, false), l.b, l.uplink, txUplink},
		{"first fragment from another's tag on it", fragment4(out(at(owned, 9), at(peer, 1)), 0, 32, true), l.b, l.uplink, txForgedTag},
		{"a first fragment of 8 bytes from that tag", fragment4(out(at(owned, 9), at(peer, 1)), 0, 8, true), l.b, l.uplink, txForgedTag},
		{"a first fragment without payload", fragment4(fromOwned, 0, 0, true), l.b, l.uplink, txTruncated},
		{"a first fragment that ends in the header", padded(fragment4(fromOwned, 0, 7, true), 9), l.b, l.uplink, txBadLength},

		{"IP version 6 in an IPv4 frame", edit(good, atVersionIHL, 0x65), l.a, l.uplink, txBadHeader},
		{"IHL of 4 words", edit(good, atVersionIHL, 0x44), l.a, l.uplink, txBadHeader},
		{"IHL of 15 words, beyond the total length", edit(edit(good, atVersionIHL, 0x4f), atTotalLength+1, 59), l.a, l.uplink, txBadLength},
		{"total length beyond the frame", edit(good, atTotalLength, 1), l.a, l.uplink, txBadLength},
		{"UDP length beyond the packet", edit(good, atUDPLength, 1), l.a, l.uplink, txBadLength},
		{"UDP length less than its header's", edit(good, atUDPLength+1, 7), l.a, l.uplink, txBadLength},
		{"UDP length beyond the packet, owned address", edit(fromOwned, atUDPLength, 1), l.b, l.uplink, txBadLength},
		{"UDP header behind the packet's end", edit(good, atTotalLength+1, 27), l.a, l.uplink, txBadLength},
		{"UDP header cut off", edit(good[:41], atTotalLength+1, 27), l.a, l.uplink, txTruncated},
		{"IP header cut off", good[:33], l.a, l.uplink, txTruncated},
		{"padded", padded(good, 3), l.a, l.uplink, txUplink},
	})
}

func testPortTCP(l *lab) {
	at := netip.AddrPortFrom
	out := func(src netip.AddrPort) []byte { return segment(peerMAC, l.mac, src, at(peer, 1), 64) }
	good, fromOwned := out(at(shared, 32769)), out(at(owned, 9))
	l.wantSent([]sent{
		{"TCP from a block", good, l.a, l.uplink, txUplink},
		{"TCP from its first port", out(at(shared, 32768)), l.a, l.uplink, txUplink},
		{"TCP from its last port", out(at(shared, 32831)), l.a, l.uplink, txUplink},
		{"TCP from the port behind", out(at(shared, 32832)), l.a, l.uplink, txForgedAddr},
		{"TCP from another's block", good, l.b, l.uplink, txForgedTag},
		{"TCP from another's port inside the block", out(at(shared, 32770)), l.a, l.uplink, txForgedTag},
		{"that port's owner", out(at(shared, 32770)), l.b, l.uplink, txUplink},
		{"TCP from a UDP tag", out(at(shared, 7000)), l.a, l.uplink, txForgedAddr},
		{"UDP from a TCP block", datagram(peerMAC, l.mac, at(shared, 32769), at(peer, 1), 64), l.a, l.uplink, txForgedAddr},
		{"TCP from the owned address, another's UDP port", fromOwned, l.b, l.uplink, txUplink},
		{"TCP from another's owned address", fromOwned, l.a, l.uplink, txForgedAddr},
		{"data offset of 4 words", edit(good, atTCPOffset, 0x40), l.a, l.uplink, txBadLength},
		{"data offset of 4 words, owned address", edit(fromOwned, atTCPOffset, 0x40), l.b, l.uplink, txBadLength},
		{"data offset beyond the packet", edit(edit16(good, atTotalLength, 60), atTCPOffset, 0xb0), l.a, l.uplink, txBadLength},
		{"data offset up to the packet's end", edit(edit16(good, atTotalLength, 60), atTCPOffset, 0xa0), l.a, l.uplink, txUplink},
		{"header behind the packet's end", edit16(good, atTotalLength, 39), l.a, l.uplink, txBadLength},
		{"header cut off", edit16(good[:53], atTotalLength, 39), l.a, l.uplink, txTruncated},
		{"first fragment of the owned address", fragment4(fromOwned, 0, 32, true), l.b, l.uplink, txUplink},
		{"first fragment that ends in the header", fragment4(fromOwned, 0, 16, true), l.b, l.uplink, txTruncated},
		{"first fragment that ends in the options", fragment4(fromOwned, 0, 20, true), l.b, l.uplink, txBadLength},
		{"first fragment of a block", fragment4(good, 0, 32, true), l.a, l.uplink, txForgedAddr},
	})
}

func testPortEthernet(l *lab) {
	at := netip.AddrPortFrom
	good := datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), 64)
	typed := func(t layers.EthernetType) []byte {
		return frametest.Build(eth(peerMAC, l.mac, t), gopacket.Payload(make([]byte, 46)))
	}
	inside := func(outer layers.EthernetType, tags ...gopacket.SerializableLayer) []byte {
		ls := append([]gopacket.SerializableLayer{eth(peerMAC, l.mac, outer)}, tags...)
		return frametest.Build(append(ls, ip4(shared, peer, layers.IPProtocolUDP), udp(7000, 7000), gopacket.Payload("hello"))...)
	}
	const q, ad, ip = layers.EthernetTypeDot1Q, layers.EthernetTypeQinQ, layers.EthernetTypeIPv4
	l.wantSent([]sent{
		{"source MAC address of another host", edit(good, 11, 0x99), l.a, l.uplink, txForgedLink},
		{"source MAC address of broadcast", edit(good, 6, 0xff), l.a, l.uplink, txForgedLink},
		{"as long as the uplink carries", datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), testMTU-28), l.a, l.uplink, txUplink},
		{"a byte more", datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), testMTU-27), l.a, l.uplink, txOversize},
		{"as long, behind a short packet", padded(good, testMTU), l.a, l.uplink, txOversize},
		{"802.1Q", inside(q, vlan(100, ip)), l.a, l.uplink, txBadType},
		{"802.1Q of priority only", inside(q, vlan(0, ip)), l.a, l.uplink, txBadType},
		{"802.1ad", inside(ad, vlan(100, ip)), l.a, l.uplink, txBadType},
		{"802.1Q in 802.1ad", inside(ad, vlan(100, q), vlan(200, ip)), l.a, l.uplink, txBadType},
		{"802.1Q in 802.1Q", inside(q, vlan(100, q), vlan(200, ip)), l.a, l.uplink, txBadType},
		{"PAUSE", typed(0x8808), l.a, l.uplink, txBadType},
		{"LACP", typed(0x8809), l.a, l.uplink, txBadType},
		{"LLDP", typed(0x88cc), l.a, l.uplink, txBadType},
		{"PPPoE", typed(0x8863), l.a, l.uplink, txBadType},
		{"MPLS", typed(0x8847), l.a, l.uplink, txBadType},
		{"802.3 with LLC, as of a bridge", frametest.Build(&layers.Ethernet{DstMAC: []byte{1, 0x80, 0xc2, 0, 0, 0}, SrcMAC: l.mac, EthernetType: layers.EthernetTypeLLC, Length: 38}, gopacket.Payload(make([]byte, 46))), l.a, l.uplink, txBadType},
		{"only an Ethernet header", good[:14], l.a, l.uplink, txTruncated},
		{"only an Ethernet header, of an unknown type", typed(0x8808)[:14], l.a, l.uplink, txBadType},
	})
}

func testPortARP(l *lab) {
	unspecified := netip.IPv4Unspecified()
	l.wantSent([]sent{
		{"ARP request of the owned address", arp(bcast, l.mac, l.mac, owned, peer, 1), l.b, l.uplink, txUplink},
		{"ARP reply of the owned address", arp(peerMAC, l.mac, l.mac, owned, peer, 2), l.b, l.uplink, txUplink},
		{"its announcement", arp(bcast, l.mac, l.mac, owned, owned, 1), l.b, l.uplink, txUplink},
		{"a probe for it", arp(bcast, l.mac, l.mac, unspecified, owned, 1), l.b, l.uplink, txUplink},
		{"a probe for another's owned address", arp(bcast, l.mac, l.mac, unspecified, owned, 1), l.a, l.uplink, txForgedARP},
		{"a probe for a foreign address", arp(bcast, l.mac, l.mac, unspecified, peer, 1), l.b, l.uplink, txForgedARP},
		{"a probe that names another MAC address", arp(bcast, l.mac, peerMAC, unspecified, owned, 1), l.b, l.uplink, txForgedARP},
		{"a reply without a sender", arp(peerMAC, l.mac, l.mac, unspecified, owned, 2), l.b, l.uplink, txForgedARP},
		{"ARP for another's owned address", arp(bcast, l.mac, l.mac, owned, peer, 1), l.a, l.uplink, txForgedARP},
		{"ARP for the shared address", arp(bcast, l.mac, l.mac, shared, peer, 1), l.a, l.uplink, txForgedARP},
		{"ARP for a foreign address", arp(bcast, l.mac, l.mac, peer, peer, 1), l.b, l.uplink, txForgedARP},
		{"ARP that names another MAC address", arp(bcast, l.mac, peerMAC, owned, peer, 1), l.b, l.uplink, txForgedARP},
		{"ARP that is not for IPv4", edit(arp(bcast, l.mac, l.mac, owned, peer, 1), 18, 8), l.b, l.uplink, txBadHeader},
		{"ARP cut off", arp(bcast, l.mac, l.mac, owned, peer, 1)[:41], l.b, l.uplink, txTruncated},
	})
}

func testPortMessages(l *lab) {
	l.wantSent([]sent{
		{"message", message(peerMAC, l.mac, 1, 7, 64, 64), l.a, l.uplink, txUplink},
		{"message under another's tag", message(peerMAC, l.mac, 1, 7, 64, 64), l.b, l.uplink, txForgedTag},
		{"message under a tag without an owner", message(peerMAC, l.mac, 1, 9, 64, 64), l.a, l.uplink, txForgedTag},
		{"message of another version", edit(message(peerMAC, l.mac, 1, 7, 64, 64), 14, 2), l.a, l.uplink, txBadHeader},
		{"message length beyond the frame", message(peerMAC, l.mac, 1, 7, 65, 64), l.a, l.uplink, txBadLength},
		{"message cut off", message(peerMAC, l.mac, 1, 7, 0, 0)[:25], l.a, l.uplink, txTruncated},
	})
}

// Frames in several buffers, of which only the first is read.
func testPortBuffers(l *lab) {
	l.reach(l.uplink)
	at := netip.AddrPortFrom
	good := datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), 64)
	long := datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), 1000)
	if _, err := run(l.objs.UnetPort, long, l.a, 100); err != nil {
		l.t.Logf("this kernel's test runs cannot choose the first buffer: %v", err)
		return
	}
	l.want("several buffers", l.objs.UnetPort, long, l.a, 100, txUplink)
	l.want("headers in the second buffer", l.objs.UnetPort, long, l.a, 30, txTruncated)
	l.want("oversize in the second buffer", l.objs.UnetPort, padded(good, 2000), l.a, len(good), txOversize)
	long6 := datagram(peerMAC, l.mac, at(shared6, 7000), at(peer6, 1), 1000)
	l.want("IPv6, several buffers", l.objs.UnetPort, long6, l.a, 100, txUplink)
	l.want("IPv6, headers in the second buffer", l.objs.UnetPort, long6, l.a, 60, txTruncated)
}
