//go:build linux

package bpf

import (
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
)

// ICMP messages of endpoints: a host may send errors about packets that were sent to it. The rows run with the claims
// of claimForPorts.
func testPortErrors(l *lab) {
	at := netip.AddrPortFrom
	sentTo := func(dst netip.Addr) []byte { return datagram(l.mac, peerMAC, at(peer, 1), at(dst, 5), 64)[atIP:] }
	icmp := func(t uint8, quoted []byte) []byte { return quote(peerMAC, l.mac, owned, peer, t, quoted) }
	toOwned := sentTo(owned)
	options := ip4(peer, owned, layers.IPProtocolUDP)
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	withOptions := frametest.Build(options, udp(1, 5), gopacket.Payload("hello"))
	l.wantSent([]sent{
		{"echo request", icmp(8, nil), l.b, l.uplink, txUplink},
		{"echo reply", icmp(0, nil), l.b, l.uplink, txUplink},
		{"echo request that could be a quotation of others", icmp(8, sentTo(peer)), l.b, l.uplink, txUplink},
		{"timestamp", icmp(13, make([]byte, 12)), l.b, l.uplink, txInfrastructure},
		{"echo request in a fragment", fragment4(icmp(8, toOwned), 0, 8, true), l.b, l.uplink, txUplink},
		{"header cut off", edit16(icmp(8, nil)[:41], atTotalLength, 27), l.b, l.uplink, txTruncated},
		{"header behind the packet's end", edit16(icmp(8, nil), atTotalLength, 27), l.b, l.uplink, txBadLength},
		{"error from a port's address", quote(peerMAC, l.mac, shared, peer, 3, sentTo(shared)), l.a, l.uplink, txForgedAddr},
		{"error from another's owned address", icmp(3, toOwned), l.a, l.uplink, txForgedAddr},
		{"router advertisement of a port's owner", quote(peerMAC, l.mac, shared, peer, 9, nil), l.a, l.uplink, txForgedQuote},
	})
	for _, t := range []uint8{3, 11, 12} {
		name := func(s string) string { return fmt.Sprintf("ICMP error %d, %s", t, s) }
		err := icmp(t, toOwned)
		l.wantSent([]sent{
			{name("what was sent to it"), err, l.b, l.uplink, txUplink},
			{name("the same with options"), icmp(t, withOptions), l.b, l.uplink, txUplink},
			{name("only the header of it"), icmp(t, toOwned[:20]), l.b, l.uplink, txUplink},
			{name("a later fragment of it"), icmp(t, fragment4(append(make([]byte, atIP), toOwned...), 32, 8, false)[atIP:]), l.b, l.uplink, txUplink},
			{name("padded"), padded(err, 3), l.b, l.uplink, txUplink},
			{name("what was sent to another host"), icmp(t, sentTo(peer)), l.b, l.uplink, txForgedQuote},
			{name("what was sent to the shared address"), icmp(t, sentTo(shared)), l.b, l.uplink, txForgedQuote},
			{name("what it sent itself"), icmp(t, datagram(peerMAC, l.mac, at(owned, 5), at(peer, 1), 64)[atIP:]), l.b, l.uplink, txForgedQuote},
			{name("what was sent to broadcast"), icmp(t, sentTo(netip.MustParseAddr("255.255.255.255"))), l.b, l.uplink, txForgedQuote},
			{name("what a neighbour sent elsewhere"), quote(l.mac, l.mac, owned, shared, t, datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), 64)[atIP:]), l.b, l.a, txForgedQuote},
			{name("what a neighbour sent to it"), quote(l.mac, l.mac, owned, shared, t, datagram(l.mac, l.mac, at(shared, 7000), at(owned, 1), 64)[atIP:]), l.b, l.a, txLocal},
			{name("a byte less than a header"), icmp(t, toOwned[:19]), l.b, l.uplink, txForgedQuote},
			{name("nothing"), icmp(t, nil), l.b, l.uplink, txForgedQuote},
			{name("a quotation behind the packet's end"), edit16(err, atTotalLength, 47), l.b, l.uplink, txForgedQuote},
			{name("a quotation of IPv6"), icmp(t, edit(toOwned, 0, 0x65)), l.b, l.uplink, txForgedQuote},
			{name("a quotation with an IHL of 4 words"), icmp(t, edit(toOwned, 0, 0x44)), l.b, l.uplink, txForgedQuote},
			{name("in a first fragment"), fragment4(err, 0, 64, true), l.b, l.uplink, txForgedQuote},
			{name("in a first fragment of 8 bytes"), fragment4(err, 0, 8, true), l.b, l.uplink, txForgedQuote},
		})
	}
	for _, t := range []uint8{4, 5, 9, 10} {
		l.wantSent([]sent{
			{fmt.Sprintf("ICMP %d, which only routers send", t), icmp(t, toOwned), l.b, l.uplink, txForgedQuote},
			{fmt.Sprintf("ICMP %d to this host", t), quote(l.mac, l.mac, owned, shared, t, toOwned), l.b, l.a, txForgedQuote},
			{fmt.Sprintf("ICMP %d in a fragment", t), fragment4(icmp(t, toOwned), 0, 8, true), l.b, l.uplink, txForgedQuote},
		})
	}
}

// testPortErrors6 is testPortErrors for ICMPv6.
func testPortErrors6(l *lab) {
	at := netip.AddrPortFrom
	sentTo := func(dst netip.Addr) []byte { return datagram(l.mac, peerMAC, at(peer6, 1), at(dst, 5), 64)[atIP:] }
	icmp := func(t uint8, quoted []byte) []byte { return quote(peerMAC, l.mac, owned6, peer6, t, quoted) }
	toOwned := sentTo(owned6)
	l.wantSent([]sent{
		{"echo request", icmp(128, nil), l.b, l.uplink, txUplink},
		{"echo request that could be a quotation of others", icmp(128, sentTo(peer6)), l.b, l.uplink, txUplink},
		{"error from a port's address", quote(peerMAC, l.mac, shared6, peer6, 1, sentTo(shared6)), l.a, l.uplink, txForgedAddr},
		{"error from another's owned address", icmp(1, toOwned), l.a, l.uplink, txForgedAddr},
	})
	for _, t := range []uint8{0, 1, 2, 3, 4, 100, 127} {
		name := func(s string) string { return fmt.Sprintf("ICMPv6 error %d, %s", t, s) }
		err := icmp(t, toOwned)
		l.wantSent([]sent{
			{name("what was sent to it"), err, l.b, l.uplink, txUplink},
			{name("only the header of it"), icmp(t, toOwned[:40]), l.b, l.uplink, txUplink},
			{name("padded"), padded(err, 3), l.b, l.uplink, txUplink},
			{name("what was sent to another host"), icmp(t, sentTo(peer6)), l.b, l.uplink, txForgedQuote},
			{name("what was sent to an address that differs in its first byte"), icmp(t, edit(toOwned, 24, 0xfc)), l.b, l.uplink, txForgedQuote},
			{name("what was sent to all nodes"), icmp(t, sentTo(nodes6)), l.b, l.uplink, txForgedQuote},
			{name("what it sent itself"), icmp(t, datagram(peerMAC, l.mac, at(owned6, 5), at(peer6, 1), 64)[atIP:]), l.b, l.uplink, txForgedQuote},
			{name("what a neighbour sent elsewhere"), quote(l.mac, l.mac, owned6, shared6, t, datagram(peerMAC, l.mac, at(shared6, 7000), at(peer6, 1), 64)[atIP:]), l.b, l.a, txForgedQuote},
			{name("a byte less than a header"), icmp(t, toOwned[:39]), l.b, l.uplink, txForgedQuote},
			{name("nothing"), icmp(t, nil), l.b, l.uplink, txForgedQuote},
			{name("a quotation behind the packet's end"), edit16(err, atPayloadLength, 47), l.b, l.uplink, txForgedQuote},
			{name("a quotation of IPv4"), icmp(t, edit(toOwned, 0, 0x45)), l.b, l.uplink, txForgedQuote},
			{name("in a first fragment"), fragment6(err, 0, 64, true), l.b, l.uplink, txForgedQuote},
			{name("in an atomic fragment"), fragment6(err, 0, 200, false), l.b, l.uplink, txForgedQuote},
		})
	}
	err := icmp(2, toOwned)
	if _, e := run(l.objs.UnetPort, err, l.b, 80); e == nil {
		l.reach(l.uplink)
		l.want("quotation in the second buffer", l.objs.UnetPort, err, l.b, 80, txTruncated)
		l.want("quotation in the second buffer, IPv4", l.objs.UnetPort, quote(peerMAC, l.mac, owned, peer, 3, datagram(l.mac, peerMAC, at(peer, 1), at(owned, 5), 64)[atIP:]), l.b, 60, txTruncated)
	}
}
