//go:build linux

package bpf

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/testutil"
)

// Counters of the uplink program.
const (
	rxPass        = MuxUnetCounterUNET_RX_PASS
	rxTruncated   = MuxUnetCounterUNET_RX_PASS_TRUNCATED
	rxVLAN        = MuxUnetCounterUNET_RX_PASS_VLAN
	rxPortGone    = MuxUnetCounterUNET_RX_PASS_PORT_GONE
	rxOtherQueue  = MuxUnetCounterUNET_RX_PASS_OTHER_QUEUE
	rxPort        = MuxUnetCounterUNET_RX_PORT
	rxQueue       = MuxUnetCounterUNET_RX_QUEUE
	rxTaggedTwice = MuxUnetCounterUNET_RX_TAGGED_TWICE
	rxHost        = MuxUnetCounterUNET_RX_HOST
	rxFragment    = MuxUnetCounterUNET_RX_FRAGMENT
	rxExtension   = MuxUnetCounterUNET_RX_EXTENSION
	rxBadLength   = MuxUnetCounterUNET_RX_BAD_LENGTH
	rxQueueGone   = MuxUnetCounterUNET_RX_QUEUE_GONE
)

// Frames from the wire: which owner gets them, and the counters of those that pass or are dropped.
func TestUplink(t *testing.T) {
	for _, generic := range []bool{true, false} {
		inLab(t, generic, testUplink)
	}
}

// The programs look a port or an owned address up only if its tag count is not 0.
func TestTagCounts(t *testing.T) {
	inLab(t, true, func(l *lab) {
		port, addr := Key(TagUDP, shared.As4(), 7000), Key(TagAddr, owned.As4(), 0)
		to := func(a netip.Addr) []byte {
			return datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 5000), netip.AddrPortFrom(a, 7000), 64)
		}
		l.reach(l.a)
		l.claim(port, l.port(l.a))
		l.want("counted port", l.objs.UnetUplink, to(shared), l.uplink, 0, rxPort)
		testutil.Must(t, l.objs.TagCounts.Put(CountOf(TagUDP, 7000), uint32(0)))
		l.want("port without a count", l.objs.UnetUplink, to(shared), l.uplink, 0, rxPass)
		l.claim(addr, l.port(l.a))
		l.want("counted address", l.objs.UnetUplink, to(owned), l.uplink, 0, rxPort)
		testutil.Must(t, l.objs.TagCounts.Put(CountOf(TagAddr, 0), uint32(0)))
		l.want("address without a count", l.objs.UnetUplink, to(owned), l.uplink, 0, rxPass)
	})
}

func testUplink(l *lab) {
	l.claim(Key(TagUDP, shared.As4(), 7000), l.port(l.a))
	l.claim(Key(TagTCP, shared.As4(), 7000), l.port(l.b)) // another protocol, another owner
	l.claim(Key(TagUDPBlock, shared.As4(), 7040), l.port(l.b))
	l.claim(Key(TagTCPBlock, shared.As4(), 32768), l.port(l.a))
	l.claim(Key(TagAddr, owned.As4(), 0), l.port(l.b))
	l.claim(Key(TagUDP, owned.As4(), 9), l.port(l.a)) // more specific than the address
	l.claim(Key(TagTCPBlock, owned.As4(), 128), l.port(l.a))
	l.claim(Key(TagTCP, owned.As4(), 130), l.port(l.b)) // more specific than the block
	l.claim(MessageKey(7), l.port(l.a))
	l.claim(Key(TagUDP, shared.As4(), 7001), Owner{Queue: 0})
	l.claim(Key(TagUDP, shared.As4(), 7002), Owner{Queue: 5})

	from := func(p uint16) netip.AddrPort { return netip.AddrPortFrom(peer, p) }
	to := func(a netip.Addr, p uint16) []byte {
		return datagram(l.mac, peerMAC, from(5000), netip.AddrPortFrom(a, p), 64)
	}
	tcpTo := func(a netip.Addr, p uint16) []byte {
		return segment(l.mac, peerMAC, from(5000), netip.AddrPortFrom(a, p), 64)
	}
	hit, tcpHit := to(shared, 7000), tcpTo(shared, 7000)
	opts := ip4(peer, shared, layers.IPProtocolUDP)
	opts.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	optioned := frametest.Build(eth(l.mac, peerMAC, layers.EthernetTypeIPv4), opts, udp(1, 7000), gopacket.Payload("hello"))
	l.wantReceived([]received{
		{"UDP hit", hit, l.a, rxPort},
		{"UDP hit behind IP options", optioned, l.a, rxPort},
		{"UDP hit with Ethernet padding", padded(hit, 3), l.a, rxPort},
		{"UDP to a port without an owner", to(shared, 53), l.a, rxPass},
		{"UDP to another address", to(peer, 7000), l.a, rxPass},
		{"UDP hit from the host itself", datagram(l.mac, peerMAC, netip.AddrPortFrom(shared, 1), netip.AddrPortFrom(shared, 7000), 64), l.a, rxMartian},
		{"UDP hit, port gone", hit, 0, rxPortGone},
		{"UDP hit for another MAC address", datagram(peerMAC, peerMAC, from(1), netip.AddrPortFrom(shared, 7000), 64), l.a, rxPass},
		{"UDP hit by Ethernet broadcast", datagram(bcast, peerMAC, from(1), netip.AddrPortFrom(shared, 7000), 64), l.a, rxPass},
		{"TCP hit, the port of another's UDP tag", tcpHit, l.b, rxPort},
		{"TCP hit with Ethernet padding", padded(tcpHit, 3), l.b, rxPort},
		{"TCP to a port that is held in UDP only", tcpTo(shared, 7001), l.b, rxPass},
		{"UDP block, first port", to(shared, 7040), l.b, rxPort},
		{"UDP block, last port", to(shared, 7103), l.b, rxPort},
		{"port before a UDP block", to(shared, 7039), l.b, rxPass},
		{"port behind a UDP block", to(shared, 7104), l.b, rxPass},
		{"TCP to a port of a UDP block", tcpTo(shared, 7040), l.b, rxPass},
		{"TCP block, first port", tcpTo(shared, 32768), l.a, rxPort},
		{"TCP block, last port", tcpTo(shared, 32831), l.a, rxPort},
		{"port behind a TCP block", tcpTo(shared, 32832), l.a, rxPass},
		{"owned address, UDP", to(owned, 1234), l.b, rxPort},
		{"owned address, TCP", tcpTo(owned, 1), l.b, rxPort},
		{"the exact tag before the owned address", to(owned, 9), l.a, rxPort},
		{"the block before the owned address", tcpTo(owned, 129), l.a, rxPort},
		{"the exact tag before the block", tcpTo(owned, 130), l.b, rxPort},
		{"owned address, ping", quote(l.mac, peerMAC, peer, owned, 8, nil), l.b, rxPort},
		{"owned address, a protocol without ports", edit(to(owned, 9), atProtocol, 47), l.b, rxPort},
		{"ping of the shared address", quote(l.mac, peerMAC, peer, shared, 8, nil), l.a, rxPass},
		{"first fragment, UDP hit", edit(hit, atFragment, 0x20), l.a, rxFragment},
		{"later fragment, UDP hit", edit(hit, atFragment+1, 1), l.a, rxPass},
		{"first fragment, TCP hit", edit(tcpHit, atFragment, 0x20), l.b, rxFragment},
		{"first fragment of 8 bytes, TCP hit", fragment4(tcpHit, 0, 8, true), l.b, rxFragment},
		{"first fragment of 7 bytes, TCP hit", fragment4(tcpHit, 0, 7, true), l.b, rxPass},
		{"first fragment, port of a block", fragment4(to(shared, 7099), 0, 16, true), l.b, rxFragment},
		{"first fragment behind IP options, UDP hit", edit(optioned, atFragment, 0x20), l.a, rxFragment},
		{"first fragment to a port without an owner", fragment4(to(shared, 53), 0, 16, true), l.a, rxPass},
		{"first fragment of another protocol", edit(fragment4(hit, 0, 16, true), atProtocol, 132), l.a, rxPass},
		{"don't fragment is no fragment", edit(hit, atFragment, 0x40), l.a, rxPort},
		{"first fragment, owned address", edit(to(owned, 9), atFragment, 0x20), l.b, rxPort},
		{"later fragment, owned address", edit(to(owned, 9), atFragment+1, 1), l.b, rxPort},
		{"IP version 6 in an IPv4 frame", edit(hit, atVersionIHL, 0x65), l.a, rxPass},
		{"IHL of 4 words", edit(hit, atVersionIHL, 0x44), l.a, rxPass},
		{"IHL beyond the frame", edit(hit[:46], atVersionIHL, 0x4f), l.a, rxTruncated},
		{"total length beyond the frame", edit(hit, atTotalLength, 1), l.a, rxBadLength},
		{"total length less than the header's", edit(to(owned, 1), atTotalLength+1, 19), l.b, rxBadLength},
		{"UDP length beyond the packet", edit(hit, atUDPLength, 1), l.a, rxBadLength},
		{"UDP length less than the header's", edit(hit, atUDPLength+1, 7), l.a, rxBadLength},
		{"the same, no owner", edit(to(shared, 53), atUDPLength+1, 7), l.a, rxPass},
		{"the same, owned address: its owner checks", edit(to(owned, 1), atUDPLength+1, 7), l.b, rxPort},
		{"UDP header behind the packet's end", edit(hit, atTotalLength+1, 27), l.a, rxBadLength},
		{"UDP header cut off", hit[:41], l.a, rxTruncated},
		{"UDP header cut off, owned address", edit16(to(owned, 1)[:41], atTotalLength, 27), l.b, rxPort},
		{"TCP data offset of 4 words", edit(tcpHit, atTCPOffset, 0x40), l.b, rxBadLength},
		{"TCP data offset beyond the packet", edit(edit16(tcpHit, atTotalLength, 60), atTCPOffset, 0xb0), l.b, rxBadLength},
		{"TCP data offset up to the packet's end", edit(edit16(tcpHit, atTotalLength, 60), atTCPOffset, 0xa0), l.b, rxPort},
		{"TCP data offset of 4 words, no owner", edit(tcpTo(shared, 53), atTCPOffset, 0x40), l.b, rxPass},
		{"TCP data offset of 4 words, owned address: its owner checks", edit(tcpTo(owned, 1), atTCPOffset, 0x40), l.b, rxPort},
		{"TCP header cut off", tcpHit[:53], l.b, rxTruncated},
		{"IP header cut off", hit[:33], l.a, rxTruncated},
		{"only an Ethernet header", hit[:14], l.a, rxTruncated},
		{"owner on another queue", to(shared, 7002), l.a, rxOtherQueue},
		{"owner on this queue, socket gone", to(shared, 7001), l.a, rxQueueGone},
	})
	testUplinkICMP(l)
	testUplinkARP(l)
	testUplinkMessages(l)
	testUplinkVLAN(l)
	l.claim6(Key6(TagUDP, shared6.As16(), 7000), l.port(l.a))
	l.wantReceived([]received{{"behind IPv6 extension headers",
		extended6(datagram(l.mac, peerMAC, netip.AddrPortFrom(peer6, 1), netip.AddrPortFrom(shared6, 7000), 8), 60), l.a, rxExtension}})

	sock := openSocket(l.t, l.uplink)
	testutil.Must(l.t, l.objs.Sockets.Put(uint32(0), uint32(sock.Fd())))
	for _, p := range []*ebpf.Program{l.objs.UnetUplink, l.objs.UnetQueue} {
		l.want("owner on this queue", p, to(shared, 7001), l.uplink, 0, rxQueue)
	}
	testLo(l)
	testKernelForges(l)
	testKernelForges6(l)
	testGroup(l)
	l.wantAll(rxPass, rxQueueGone)

	l.claim(Key(TagUDP, shared.As4(), 7003), Owner{Port: uint32(l.a), Room: testMTU + 14})
	longer := datagram(l.mac, peerMAC, from(1), netip.AddrPortFrom(shared, 7003), testMTU-28+1)
	l.wantReceived([]received{
		{"to a port that takes no super-frame", to(shared, 7003), l.a, rxPort},
		{"the longest frame of the network", longer[:len(longer)-1], l.a, rxBadLength},
		{"the same with correct lengths", datagram(l.mac, peerMAC, from(1), netip.AddrPortFrom(shared, 7003), testMTU-28), l.a, rxPort},
		{"a longer one, which is no super-frame", longer, l.a, rxPort},
	})

	l.reach(l.a)
	long := datagram(l.mac, peerMAC, from(1), netip.AddrPortFrom(shared, 7000), 9000)
	if _, err := run(l.objs.UnetUplink, long, l.uplink, 100); err != nil {
		l.t.Logf("this kernel's test runs cannot choose the first buffer: %v", err)
		return
	}
	l.want("several buffers", l.objs.UnetUplink, long, l.uplink, 100, rxPort)
	l.want("several buffers, still too short", l.objs.UnetUplink, edit16(long, atTotalLength, 0xffff), l.uplink, 100, rxBadLength)
}

func testUplinkICMP(l *lab) {
	at := netip.AddrPortFrom
	sent := func(src netip.Addr, port uint16) []byte { // a packet of this host, as an ICMP error quotes it
		return datagram(peerMAC, l.mac, at(src, port), at(peer, 1), 64)[atIP:]
	}
	sentTCP := func(src netip.Addr, port uint16) []byte {
		return segment(peerMAC, l.mac, at(src, port), at(peer, 1), 64)[atIP:]
	}
	unreachable := func(to netip.Addr, packet []byte) []byte { return quote(l.mac, peerMAC, peer, to, 3, packet) }
	portUnreachable := unreachable(shared, sent(shared, 7000))
	l.wantReceived([]received{
		{"port unreachable for our datagram", portUnreachable, l.a, rxPort},
		{"the same, only 8 bytes quoted", unreachable(shared, sent(shared, 7000)[:28]), l.a, rxPort},
		{"the same, less than 8 bytes quoted", unreachable(shared, sent(shared, 7000)[:27]), l.a, rxPass},
		{"the same, the quotation in the padding", edit16(portUnreachable, atTotalLength, 20+8+27), l.a, rxPass},
		{"the same, behind IP options", unreachable(shared, append([]byte{0x46}, append(sent(shared, 7000)[1:20], append([]byte{1, 1, 1, 0}, sent(shared, 7000)[20:]...)...)...)), l.a, rxPort},
		{"the same, with a quoted header of 4 words", unreachable(shared, edit(sent(shared, 7000), 0, 0x44)), l.a, rxPass},
		{"total length beyond the frame", edit(portUnreachable, atTotalLength, 1), l.a, rxBadLength},
		{"time exceeded", quote(l.mac, peerMAC, peer, shared, 11, sent(shared, 7000)), l.a, rxPort},
		{"parameter problem", quote(l.mac, peerMAC, peer, shared, 12, sent(shared, 7000)), l.a, rxPort},
		{"source quench", quote(l.mac, peerMAC, peer, shared, 4, sent(shared, 7000)), l.a, rxPass},
		{"echo that carries our datagram", quote(l.mac, peerMAC, peer, shared, 8, sent(shared, 7000)), l.a, rxPass},
		{"a fragment of an error", edit(portUnreachable, atFragment, 0x20), l.a, rxPass},
		{"unreachable for the kernel's datagram", unreachable(shared, sent(shared, 53)), l.a, rxPass},
		{"unreachable that quotes a first fragment", unreachable(shared, edit(sent(shared, 7000), 6, 0x20)), l.a, rxPort},
		{"unreachable that quotes a later fragment", unreachable(shared, edit(sent(shared, 7000), 7, 1)), l.a, rxPass},
		{"unreachable that quotes TCP", unreachable(shared, sentTCP(shared, 7000)), l.b, rxPort},
		{"unreachable that quotes 8 bytes of TCP", unreachable(shared, sentTCP(shared, 7000)[:28]), l.b, rxPort},
		{"unreachable that quotes TCP of a UDP tag's port", unreachable(shared, sentTCP(shared, 7001)), l.b, rxPass},
		{"unreachable that quotes a port of a block", unreachable(shared, sentTCP(shared, 32800)), l.a, rxPort},
		{"unreachable that quotes another protocol", unreachable(shared, edit(sent(shared, 7000), 9, 132)), l.a, rxPass},
		{"unreachable that quotes another's address", unreachable(shared, sent(owned, 9)), l.a, rxPass},
		{"unreachable for the owned address", unreachable(owned, sent(owned, 5)), l.b, rxPort},
		{"unreachable for a more specific tag of it", unreachable(owned, sent(owned, 9)), l.a, rxPort},
		{"unreachable for a block of it", unreachable(owned, sentTCP(owned, 131)), l.a, rxPort},
	})
}

func testUplinkARP(l *lab) {
	l.wantReceived([]received{
		{"ARP request for the owned address", arp(bcast, peerMAC, peerMAC, peer, owned, 1), l.b, rxPort},
		{"ARP reply to the owned address", arp(l.mac, peerMAC, peerMAC, peer, owned, 2), l.b, rxPort},
		{"ARP request for the shared address", arp(bcast, peerMAC, peerMAC, peer, shared, 1), l.a, rxPass},
		{"ARP for the owned address to another host", arp(peerMAC, peerMAC, peerMAC, peer, owned, 2), l.b, rxPass},
		{"ARP that is not for IPv4", edit(arp(bcast, peerMAC, peerMAC, peer, owned, 1), 16, 1), l.b, rxPass},
		{"ARP cut off", arp(bcast, peerMAC, peerMAC, peer, owned, 1)[:41], l.b, rxTruncated},
	})
}

func testUplinkMessages(l *lab) {
	l.wantReceived([]received{
		{"message hit", message(l.mac, peerMAC, 7, 1, 64, 64), l.a, rxPort},
		{"message hit with padding", message(l.mac, peerMAC, 7, 1, 4, 64), l.a, rxPort},
		{"message for a tag without an owner", message(l.mac, peerMAC, 8, 1, 64, 64), l.a, rxPass},
		{"message by broadcast", message(bcast, peerMAC, 7, 1, 64, 64), l.a, rxPass},
		{"message of another version", edit(message(l.mac, peerMAC, 7, 1, 64, 64), 14, 2), l.a, rxPass},
		{"message length beyond the frame", message(l.mac, peerMAC, 7, 1, 65, 64), l.a, rxBadLength},
		{"message cut off", message(l.mac, peerMAC, 7, 1, 0, 0)[:25], l.a, rxTruncated},
	})
}

func testUplinkVLAN(l *lab) {
	inside := func(outer layers.EthernetType, tags ...gopacket.SerializableLayer) []byte {
		ls := append([]gopacket.SerializableLayer{eth(l.mac, peerMAC, outer)}, tags...)
		return frametest.Build(append(ls, ip4(peer, shared, layers.IPProtocolUDP), udp(1, 7000), gopacket.Payload("hello"))...)
	}
	const q, ad, ip = layers.EthernetTypeDot1Q, layers.EthernetTypeQinQ, layers.EthernetTypeIPv4
	l.wantReceived([]received{
		{"802.1Q", inside(q, vlan(100, ip)), l.a, rxVLAN},
		{"802.1Q of priority only", inside(q, vlan(0, ip)), l.a, rxPort},
		{"802.1ad of priority only", inside(ad, vlan(0, ip)), l.a, rxPort},
		{"priority 7", tagged(inside(ip), q, 0, 15), l.a, rxPort},
		{"priority only, ARP for the owned address", tagged(arp(bcast, peerMAC, peerMAC, peer, owned, 1), q, 0, 3), l.b, rxPort},
		{"priority only, no owner", tagged(datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 53), 9), q, 0, 3), l.a, rxPass},
		{"priority only, a first fragment", tagged(fragment4(inside(ip), 0, 8, true), q, 0, 3), l.a, rxFragment},
		{"priority only, another's MAC address", tagged(edit(inside(ip), 0, 0x0a), q, 0, 3), l.a, rxPass},
		{"priority only, a wrong length", tagged(edit(inside(ip), atUDPLength, 1), q, 0, 3), l.a, rxBadLength},
		{"priority only, cut off", inside(q, vlan(0, ip))[:17], l.a, rxTruncated},
		{"priority only, twice", inside(q, vlan(0, q), vlan(0, ip)), l.a, rxTaggedTwice},
		{"priority only, then a VLAN", inside(q, vlan(0, q), vlan(200, ip)), l.a, rxVLAN},
		{"a VLAN, then priority only", inside(q, vlan(200, q), vlan(0, ip)), l.a, rxVLAN},
		{"802.1ad", inside(ad, vlan(100, ip)), l.a, rxVLAN},
		{"802.1Q in 802.1ad", inside(ad, vlan(100, q), vlan(200, ip)), l.a, rxVLAN},
		{"802.1Q in 802.1Q", inside(q, vlan(100, q), vlan(200, ip)), l.a, rxVLAN},
		{"802.1Q, ARP for the owned address", frametest.Build(eth(bcast, peerMAC, q), vlan(100, layers.EthernetTypeARP),
			gopacket.Payload(arp(bcast, peerMAC, peerMAC, peer, owned, 1)[14:])), l.b, rxVLAN},
		{"802.1Q, nothing inside", inside(q, vlan(100, ip))[:14], l.a, rxTruncated},
		{"an unknown EtherType", frametest.Build(eth(l.mac, peerMAC, 0x9100), gopacket.Payload(make([]byte, 46))), l.a, rxPass},
	})
}
