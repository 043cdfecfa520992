//go:build linux

package capture

import (
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
)

// The line of a frame, which gopacket has written, and of the frame cut at each byte.
func TestDescribe(t *testing.T) {
	eth := func(kind layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: kind}
	}
	ip := func(protocol layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
	}
	ip6 := func(next layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: next, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}
	}
	fragment := ip(layers.IPProtocolUDP)
	fragment.FragOffset = 185
	first := ip(layers.IPProtocolTCP)
	first.Flags = layers.IPv4MoreFragments
	options := ip(layers.IPProtocolTCP)
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	udp := &layers.UDP{SrcPort: 7000, DstPort: 53}
	syn := &layers.TCP{SrcPort: 1, DstPort: 65535, Seq: 4294967295, SYN: true, ECE: true, CWR: true, Window: 500, Options: []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 180}}}}
	ack := &layers.TCP{SrcPort: 80, DstPort: 2, Seq: 1, Ack: 2, ACK: true, PSH: true, FIN: true, RST: true, URG: true, Window: 3}
	icmp := func(typ, code uint8) *layers.ICMPv4 {
		return &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code)}
	}
	icmp6 := func(typ, code uint8) *layers.ICMPv6 {
		return &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, code)}
	}
	arp := func(operation uint16) *layers.ARP {
		return &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: operation,
			SourceHwAddress: []byte{2, 0, 0, 0, 0, 1}, SourceProtAddress: []byte{10, 0, 0, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 0, 0, 2}}
	}
	payload := gopacket.Payload("four")
	type list = []gopacket.SerializableLayer
	for _, c := range []struct {
		layers list
		want   string
	}{
		{list{eth(0x800), ip(17), udp, payload}, "IP 10.0.0.1.7000 > 10.0.0.2.53: UDP, length 4"},
		{list{eth(0x800), ip(6), syn}, "IP 10.0.0.1.1 > 10.0.0.2.65535: Flags [SEW], seq 4294967295, win 500, length 0"},
		{list{eth(0x800), options, ack, payload}, "IP 10.0.0.1.80 > 10.0.0.2.2: Flags [FRP.U], seq 1, ack 2, win 3, length 4"},
		{list{eth(0x800), ip(6), &layers.TCP{}}, "IP 10.0.0.1.0 > 10.0.0.2.0: Flags [none], seq 0, win 0, length 0"},
		{list{eth(0x800), fragment, udp, payload}, "IP 10.0.0.1 > 10.0.0.2: fragment of UDP, length 60"},
		{list{eth(0x800), first, syn}, "IP 10.0.0.1 > 10.0.0.2: fragment of TCP, length 60"},
		{list{eth(0x800), ip(1), icmp(8, 0)}, "IP 10.0.0.1 > 10.0.0.2: ICMP type 8 code 0, length 60"},
		{list{eth(0x800), ip(1), icmp(3, 3)}, "IP 10.0.0.1 > 10.0.0.2: ICMP type 3 code 3, length 60"},
		{list{eth(0x800), ip(132), payload}, "IP 10.0.0.1 > 10.0.0.2: protocol 132, length 60"},
		{list{eth(0x800), ip(253), payload}, "IP 10.0.0.1 > 10.0.0.2: protocol 253, length 60"},
		{list{eth(0x86dd), ip6(17), udp, payload}, "IP6 fd00::1.7000 > fd00::2.53: UDP, length 4"},
		{list{eth(0x86dd), ip6(6), ack, payload}, "IP6 fd00::1.80 > fd00::2.2: Flags [FRP.U], seq 1, ack 2, win 3, length 4"},
		{list{eth(0x86dd), ip6(58), icmp6(135, 0), payload}, "IP6 fd00::1 > fd00::2: ICMP6 type 135 code 0, length 62"},
		{list{eth(0x86dd), ip6(60), gopacket.Payload{6, 0, 1, 4, 0, 0, 0, 0}, ack, payload}, "IP6 fd00::1.80 > fd00::2.2: Flags [FRP.U], seq 1, ack 2, win 3, length 4"},
		{list{eth(0x86dd), ip6(44), gopacket.Payload{43, 0, 0, 0xb9, 0, 0, 0, 9}, udp, payload}, "IP6 fd00::1 > fd00::2: fragment of protocol 43, length 74"},
		{list{eth(0x86dd), ip6(44), gopacket.Payload{17, 0, 0, 1, 0, 0, 0, 9}, udp, payload}, "IP6 fd00::1 > fd00::2: fragment of UDP, length 74"},
		{list{eth(0x86dd), ip6(44), gopacket.Payload{17, 0, 0, 0, 0, 0, 0, 9}, udp, payload}, "IP6 fd00::1.7000 > fd00::2.53: UDP, length 4"},
		{list{eth(0x8100), &layers.Dot1Q{VLANIdentifier: 100, Priority: 7, Type: 0x800}, ip(17), udp, payload}, "vlan 100, IP 10.0.0.1.7000 > 10.0.0.2.53: UDP, length 4"},
		{list{eth(0x88a8), &layers.Dot1Q{VLANIdentifier: 1, Type: 0x8100}, &layers.Dot1Q{VLANIdentifier: 4095, Type: 0x806}, arp(1)}, "vlan 1, vlan 4095, ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 60"},
		{list{eth(0x806), arp(2)}, "ARP, Reply 10.0.0.1 is-at 02:00:00:00:00:01, length 60"},
		{list{eth(0x88b5), gopacket.Payload{1, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 7}}, "U-Net 02:00:00:00:00:01 > 02:00:00:00:00:02: message tag 7 > 8, length 60"},
		{list{eth(0x9000), payload}, "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype 0x9000, length 60"},
		{list{eth(0x800), payload}, "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype 0x0800, length 60"},
	} {
		frame := frametest.Build(c.layers...)
		if got := describe(frame, len(frame)); got != c.want {
			t.Errorf("%x:\n got %s\nwant %s", frame, got, c.want)
		}
		for n := range frame { // no panic, and a line in any case
			if got := describe(frame[:n:n], len(frame)); got == "" || n < 14 && got != "truncated frame, length 60" && len(frame) == 60 {
				t.Errorf("%x: %q", frame[:n], got)
			}
		}
	}
}
