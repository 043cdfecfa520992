//go:build linux

package bpf

import (
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Frames that an endpoint sends in IPv6. The rows run with the claims of claimForPorts.
func testPort6(l *lab) {
	at := netip.AddrPortFrom
	out := func(src netip.AddrPort) []byte { return datagram(peerMAC, l.mac, src, at(peer6, 1), 64) }
	outTCP := func(src netip.AddrPort) []byte { return segment(peerMAC, l.mac, src, at(peer6, 1), 64) }
	ping := func(src netip.Addr) []byte { return quote(peerMAC, l.mac, src, peer6, 128, nil) }
	good, fromOwned := out(at(shared6, 7000)), out(at(owned6, 5))
	goodTCP, ownedTCP := outTCP(at(shared6, 32769)), outTCP(at(owned6, 9))
	l.wantSent([]sent{
		{"UDP", good, l.a, l.uplink, txUplink},
		{"UDP, uplink gone", good, l.a, 0, txUplinkGone},
		{"UDP to multicast", datagram([]byte{0x33, 0x33, 0, 0, 0, 0xfb}, l.mac, at(shared6, 7000), netip.MustParseAddrPort("[ff02::fb]:5353"), 8), l.a, l.uplink, txUplink},
		{"UDP of another endpoint", good, l.b, l.uplink, txForgedTag},
		{"UDP of a queue's endpoint", out(at(shared6, 7001)), l.a, l.uplink, txForgedTag},
		{"UDP of the kernel", out(at(shared6, 53)), l.a, l.uplink, txForgedAddr},
		{"UDP from another host's address", out(at(peer6, 7000)), l.a, l.uplink, txForgedAddr},
		{"UDP from an address that differs in its first byte", edit(good, 22, 0xfc), l.a, l.uplink, txForgedAddr},
		{"UDP from no address", out(at(nobody6, 546)), l.b, l.uplink, txForgedAddr},
		{"UDP from a multicast address", out(at(nodes6, 7000)), l.a, l.uplink, txForgedAddr},
		{"UDP from the owned address", fromOwned, l.b, l.uplink, txUplink},
		{"UDP from another's owned address", fromOwned, l.a, l.uplink, txForgedAddr},
		{"UDP from another's tag on the owned address", out(at(owned6, 9)), l.b, l.uplink, txForgedTag},
		{"that tag's owner", out(at(owned6, 9)), l.a, l.uplink, txUplink},
		{"TCP from a block", goodTCP, l.a, l.uplink, txUplink},
		{"TCP from the port behind", outTCP(at(shared6, 32832)), l.a, l.uplink, txForgedAddr},
		{"TCP from another's block", goodTCP, l.b, l.uplink, txForgedTag},
		{"TCP from another's port inside the block", outTCP(at(shared6, 32770)), l.a, l.uplink, txForgedTag},
		{"TCP from a UDP tag", outTCP(at(shared6, 7000)), l.a, l.uplink, txForgedAddr},
		{"TCP from the owned address, another's UDP port", ownedTCP, l.b, l.uplink, txUplink},
		{"ping from a UDP tag's address", ping(shared6), l.a, l.uplink, txForgedAddr},
		{"ping from the owned address", ping(owned6), l.b, l.uplink, txUplink},
		{"no next header, from the owned address", edit(fromOwned, atNextHeader, 59), l.b, l.uplink, txInfrastructure},
		{"no next header, from a UDP tag's address", edit(good, atNextHeader, 59), l.a, l.uplink, txForgedAddr},

		{"IP version 4 in an IPv6 frame", edit(good, 14, 0x45), l.a, l.uplink, txBadHeader},
		{"payload length beyond the frame", edit16(good, atPayloadLength, 73), l.a, l.uplink, txBadLength},
		{"jumbogram", edit16(good, atPayloadLength, 0), l.a, l.uplink, txBadLength},
		{"nothing behind the header", edit16(edit(fromOwned, atNextHeader, 59), atPayloadLength, 0), l.b, l.uplink, txBadLength},
		{"jumbogram from the owned address", edit16(fromOwned, atPayloadLength, 0), l.b, l.uplink, txBadLength},
		{"UDP length beyond the packet", edit16(padded(good, 9), atUDPLength6, 73), l.a, l.uplink, txBadLength},
		{"UDP length less than its header's", edit16(good, atUDPLength6, 7), l.a, l.uplink, txBadLength},
		{"UDP header behind the packet's end", edit16(good, atPayloadLength, 7), l.a, l.uplink, txBadLength},
		{"TCP data offset of 4 words", edit(goodTCP, atTCPOffset6, 0x40), l.a, l.uplink, txBadLength},
		{"TCP data offset beyond the packet", edit(edit16(goodTCP, atPayloadLength, 40), atTCPOffset6, 0xb0), l.a, l.uplink, txBadLength},
		{"TCP data offset of 4 words, owned address", edit(ownedTCP, atTCPOffset6, 0x40), l.b, l.uplink, txBadLength},
		{"IPv6 header cut off", good[:53], l.a, l.uplink, txTruncated},
		{"UDP header cut off", edit16(good[:61], atPayloadLength, 7), l.a, l.uplink, txTruncated},
		{"TCP header cut off", edit16(goodTCP[:73], atPayloadLength, 19), l.a, l.uplink, txTruncated},
		{"ICMPv6 header cut off", edit16(ping(owned6)[:61], atPayloadLength, 7), l.b, l.uplink, txTruncated},
		{"ICMPv6 header behind the packet's end", edit16(ping(owned6), atPayloadLength, 7), l.b, l.uplink, txBadLength},
		{"padded", padded(good, 3), l.a, l.uplink, txUplink},
	})

	fromOthersTag := out(at(owned6, 9)) // another's tag on b's address
	l.wantSent([]sent{
		{"first fragment of a UDP tag", fragment6(good, 0, 32, true), l.a, l.uplink, txForgedAddr},
		{"later fragment of a UDP tag", fragment6(good, 32, 100, false), l.a, l.uplink, txForgedAddr},
		{"an atomic fragment of a UDP tag", fragment6(good, 0, 100, false), l.a, l.uplink, txForgedAddr},
		{"first fragment of the owned address", fragment6(fromOwned, 0, 32, true), l.b, l.uplink, txUplink},
		{"later fragment of the owned address", fragment6(fromOwned, 32, 100, false), l.b, l.uplink, txUplink},
		{"first fragment from another's tag on it", fragment6(fromOthersTag, 0, 32, true), l.b, l.uplink, txForgedTag},
		{"first fragment of 8 bytes from that tag", fragment6(fromOthersTag, 0, 8, true), l.b, l.uplink, txForgedTag},
		{"first fragment without payload", fragment6(fromOwned, 0, 0, true), l.b, l.uplink, txTruncated},
		{"first fragment that ends in the header", padded(fragment6(fromOwned, 0, 7, true), 9), l.b, l.uplink, txBadLength},
		{"first fragment of TCP that ends in the options", fragment6(ownedTCP, 0, 20, true), l.b, l.uplink, txBadLength},
		{"first fragment of a ping", fragment6(ping(owned6), 0, 8, true), l.b, l.uplink, txUplink},
		{"fragment header behind the packet's end", edit16(fragment6(fromOwned, 0, 32, true), atPayloadLength, 7), l.b, l.uplink, txBadLength},
		{"fragment header cut off", edit16(fragment6(fromOwned, 0, 32, true)[:61], atPayloadLength, 7), l.b, l.uplink, txTruncated},
		{"a fragment in a fragment", fragment6(fragment6(fromOwned, 0, 100, false), 0, 100, false), l.b, l.uplink, txBadHeader},
		{"a redirect in a fragment", fragment6(nd(peerMAC, l.mac, owned6, peer6, 137, &layers.ICMPv6Redirect{TargetAddress: peer6.AsSlice(), DestinationAddress: peer6.AsSlice()}), 0, 24, true), l.b, l.uplink, txForgedND},
		{"a solicitation in a fragment", fragment6(nd(peerMAC, l.mac, owned6, peer6, 135, solicits(peer6, nil)), 0, 100, false), l.b, l.uplink, txForgedND},
	})
	for _, kind := range []byte{0, 43, 51, 60, 135, 139, 140, 253, 254} {
		l.wantSent([]sent{
			{fmt.Sprintf("extension header %d from a UDP tag", kind), extended6(good, kind), l.a, l.uplink, txBadHeader},
			{fmt.Sprintf("extension header %d from the owned address", kind), extended6(fromOwned, kind), l.b, l.uplink, txBadHeader},
			{fmt.Sprintf("extension header %d in a first fragment", kind), fragment6(extended6(fromOwned, kind), 0, 32, true), l.b, l.uplink, txBadHeader},
		})
	}
}

// Neighbour discovery messages of endpoints: only those of an owned address are allowed.
func testPortND(l *lab) {
	group, groupMAC := solicitedNode(owned6)
	peerGroup, peerGroupMAC := solicitedNode(peer6)
	source, target := linkOption(layers.ICMPv6OptSourceAddress, l.mac), linkOption(layers.ICMPv6OptTargetAddress, l.mac)
	solicitation := nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, source))
	probe := nd(groupMAC, l.mac, nobody6, group, 135, solicits(owned6, nil))
	advertisement := nd(peerMAC, l.mac, owned6, peer6, 136, advertises(owned6, 0x60, target))
	all := func(t uint8, body gopacket.SerializableLayer) []byte {
		return nd([]byte{0x33, 0x33, 0, 0, 0, 1}, l.mac, owned6, nodes6, t, body)
	}
	two := append(linkOption(layers.ICMPv6OptSourceAddress, l.mac), source...)
	nonce := layers.ICMPv6Options{{Type: 14, Data: []byte{1, 2, 3, 4, 5, 6}}} // RFC 3971
	l.wantSent([]sent{
		{"solicitation", solicitation, l.b, l.uplink, txUplink},
		{"solicitation without a MAC address", nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, nil)), l.b, l.uplink, txUplink},
		{"solicitation by unicast", nd(peerMAC, l.mac, owned6, peer6, 135, solicits(peer6, source)), l.b, l.uplink, txUplink},
		{"solicitation of a port's owner", solicitation, l.a, l.uplink, txForgedND},
		{"solicitation from the shared address", nd(peerGroupMAC, l.mac, shared6, peerGroup, 135, solicits(peer6, source)), l.a, l.uplink, txForgedND},
		{"solicitation from a foreign address", nd(peerGroupMAC, l.mac, peer6, peerGroup, 135, solicits(peer6, source)), l.b, l.uplink, txForgedND},
		{"solicitation that names another MAC address", nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, linkOption(layers.ICMPv6OptSourceAddress, peerMAC))), l.b, l.uplink, txForgedND},
		{"solicitation with a target MAC address", nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, target)), l.b, l.uplink, txForgedND},
		{"solicitation with two options", nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, two)), l.b, l.uplink, txForgedND},
		{"solicitation with a nonce", nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, nonce)), l.b, l.uplink, txForgedND},
		{"solicitation with an option of length 0", edit(solicitation, 79, 0), l.b, l.uplink, txForgedND},
		{"solicitation with an option of length 2", edit(solicitation, 79, 2), l.b, l.uplink, txForgedND},
		{"solicitation with half an option", edit16(solicitation, atPayloadLength, 28), l.b, l.uplink, txForgedND},
		{"solicitation that ends in the target", edit16(solicitation, atPayloadLength, 23), l.b, l.uplink, txForgedND},
		{"solicitation that came through a router", edit(solicitation, atHopLimit, 254), l.b, l.uplink, txForgedND},
		{"solicitation with padding", padded(solicitation, 3), l.b, l.uplink, txUplink},

		{"probe", probe, l.b, l.uplink, txUplink},
		{"probe for another's owned address", probe, l.a, l.uplink, txForgedND},
		{"probe for the shared address", nd(groupMAC, l.mac, nobody6, group, 135, solicits(shared6, nil)), l.a, l.uplink, txForgedND},
		{"probe for a foreign address", nd(peerGroupMAC, l.mac, nobody6, peerGroup, 135, solicits(peer6, nil)), l.b, l.uplink, txForgedND},
		{"probe with a MAC address", nd(groupMAC, l.mac, nobody6, group, 135, solicits(owned6, source)), l.b, l.uplink, txForgedND},
		{"probe to another group", nd(peerGroupMAC, l.mac, nobody6, peerGroup, 135, solicits(owned6, nil)), l.b, l.uplink, txForgedND},
		{"probe by unicast", nd(peerMAC, l.mac, nobody6, peer6, 135, solicits(owned6, nil)), l.b, l.uplink, txForgedND},

		{"advertisement", advertisement, l.b, l.uplink, txUplink},
		{"advertisement without a MAC address", nd(peerMAC, l.mac, owned6, peer6, 136, advertises(owned6, 0x60, nil)), l.b, l.uplink, txUplink},
		{"advertisement to all nodes", all(136, advertises(owned6, 0x20, target)), l.b, l.uplink, txUplink},
		{"advertisement of a router", nd(peerMAC, l.mac, owned6, peer6, 136, advertises(owned6, 0xe0, target)), l.b, l.uplink, txForgedND},
		{"advertisement of another's owned address", advertisement, l.a, l.uplink, txForgedND},
		{"advertisement of the shared address", nd(peerMAC, l.mac, shared6, peer6, 136, advertises(shared6, 0x60, target)), l.a, l.uplink, txForgedND},
		{"advertisement of the shared address from the own", nd(peerMAC, l.mac, owned6, peer6, 136, advertises(shared6, 0x60, target)), l.b, l.uplink, txForgedND},
		{"advertisement of the own from the shared address", nd(peerMAC, l.mac, shared6, peer6, 136, advertises(owned6, 0x60, target)), l.b, l.uplink, txForgedND},
		{"advertisement of a foreign address", nd(peerMAC, l.mac, peer6, peer6, 136, advertises(peer6, 0x60, target)), l.b, l.uplink, txForgedND},
		{"advertisement from no address", nd(peerMAC, l.mac, nobody6, peer6, 136, advertises(owned6, 0x60, target)), l.b, l.uplink, txForgedND},
		{"advertisement that names another MAC address", nd(peerMAC, l.mac, owned6, peer6, 136, advertises(owned6, 0x60, linkOption(layers.ICMPv6OptTargetAddress, peerMAC))), l.b, l.uplink, txForgedND},
		{"advertisement with a source MAC address", nd(peerMAC, l.mac, owned6, peer6, 136, advertises(owned6, 0x60, source)), l.b, l.uplink, txForgedND},
		{"advertisement that came through a router", edit(advertisement, atHopLimit, 64), l.b, l.uplink, txForgedND},

		{"router solicitation", all(133, &layers.ICMPv6RouterSolicitation{}), l.b, l.uplink, txForgedND},
		{"router advertisement", all(134, &layers.ICMPv6RouterAdvertisement{HopLimit: 64, RouterLifetime: 1800}), l.b, l.uplink, txForgedND},
		{"router advertisement of a port's owner", nd(peerMAC, l.mac, shared6, peer6, 134, &layers.ICMPv6RouterAdvertisement{}), l.a, l.uplink, txForgedND},
		{"redirect", nd(peerMAC, l.mac, owned6, peer6, 137, &layers.ICMPv6Redirect{TargetAddress: peer6.AsSlice(), DestinationAddress: peer6.AsSlice()}), l.b, l.uplink, txForgedND},
		{"redirect to this host", nd(l.mac, l.mac, owned6, shared6, 137, &layers.ICMPv6Redirect{TargetAddress: peer6.AsSlice(), DestinationAddress: peer6.AsSlice()}), l.b, l.b, txForgedND},
		{"target cut off", edit16(solicitation[:77], atPayloadLength, 23), l.b, l.uplink, txForgedND},
		{"option cut off", solicitation[:85], l.b, l.uplink, txBadLength},
	})
	if _, err := run(l.objs.UnetPort, solicitation, l.b, 80); err == nil {
		l.reach(l.uplink)
		l.want("target in the second buffer", l.objs.UnetPort, solicitation, l.b, 70, txTruncated)
		l.want("option in the second buffer", l.objs.UnetPort, solicitation, l.b, 80, txTruncated)
	}
}
