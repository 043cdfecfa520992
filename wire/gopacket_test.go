package wire

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// gopacket is an independent decoder and encoder: it must read what this package writes, and this package must read
// what it writes.

func mustLayer[T gopacket.Layer](t *testing.T, p gopacket.Packet, typ gopacket.LayerType) T {
	t.Helper()
	if e := p.ErrorLayer(); e != nil {
		t.Fatal(e.Error())
	}
	l, ok := p.Layer(typ).(T)
	if !ok {
		t.Fatalf("no layer %v in %v", typ, p)
	}
	return l
}

func TestGopacketReadsWrittenUDP(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, n := range []int{0, 1, 17, 64, 1472} {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(r.Uint32())
		}
		b := make([]byte, EthernetHeaderLen+IPv4HeaderLen+UDPHeaderLen+n)
		PutEthernet(b, linkB, linkA, EtherTypeIPv4)
		PutIPv4(b[14:], IPv4Fields{TOS: 0x28, TotalLen: uint16(len(b) - 14), ID: 77, DontFragment: true, TTL: 64,
			Protocol: ProtocolUDP, Src: addrA, Dst: addrB})
		PutUDPCopy(b[34:], &flowAB, payload)

		p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		eth := mustLayer[*layers.Ethernet](t, p, layers.LayerTypeEthernet)
		ip := mustLayer[*layers.IPv4](t, p, layers.LayerTypeIPv4)
		udp := mustLayer[*layers.UDP](t, p, layers.LayerTypeUDP)
		equal(t, "dst", LinkAddr(eth.DstMAC), linkB)
		equal(t, "src", LinkAddr(eth.SrcMAC), linkA)
		equal(t, "TOS", ip.TOS, 0x28)
		equal(t, "ID", ip.Id, 77)
		equal(t, "flags", ip.Flags, layers.IPv4DontFragment)
		equal(t, "TTL", ip.TTL, 64)
		equal(t, "length", int(ip.Length), len(b)-14)
		equal(t, "src", ip.SrcIP.String(), "10.0.0.1")
		equal(t, "dst", ip.DstIP.String(), "10.0.0.2")
		equal(t, "src port", udp.SrcPort, 0x1234)
		equal(t, "dst port", udp.DstPort, 7)
		if !bytes.Equal(udp.Payload, payload) {
			t.Errorf("%d bytes: payload differs", n)
		}

		// gopacket encodes the same packet, with its checksums, as the same bytes.
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		out := gopacket.NewSerializeBuffer()
		opts := gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}
		if err := gopacket.SerializeLayers(out, opts, eth, ip, udp, gopacket.Payload(payload)); err != nil {
			t.Fatal(err)
		}
		// gopacket does not send a zero checksum as 0xffff; these payloads have none.
		if got := out.Bytes(); !bytes.Equal(got[:len(b)], b) {
			t.Errorf("%d bytes:\nours     %x\ngopacket %x", n, b, got)
		}
	}
}

func TestParseGopacketsUDPWithVLANAndOptions(t *testing.T) {
	eth := &layers.Ethernet{DstMAC: linkB[:], SrcMAC: linkA[:], EthernetType: layers.EthernetTypeDot1Q}
	tag := &layers.Dot1Q{Priority: 5, VLANIdentifier: 100, Type: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 9, Id: 0xabcd, Protocol: layers.IPProtocolUDP, Flags: layers.IPv4DontFragment,
		SrcIP: net.IP(addrA[:]), DstIP: net.IP(addrB[:]),
		Options: []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}}
	udp := &layers.UDP{SrcPort: 5353, DstPort: 53}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	out := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}
	if err := gopacket.SerializeLayers(out, opts, eth, tag, ip, udp, gopacket.Payload("question")); err != nil {
		t.Fatal(err)
	}

	e, err := parseEthernet(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "tagged", e.Tagged, true)
	equal(t, "tci", e.TCI, 5<<13|100)
	equal(t, "type", e.Type, EtherTypeIPv4)
	p, err := parseIPv4(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "header", len(p.Packet)-len(p.Payload), 24)
	equal(t, "src", p.Src, addrA)
	equal(t, "dst", p.Dst, addrB)
	u, err := ParseUDP(p.Payload, AddrFrom4(p.Src), AddrFrom4(p.Dst), false)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "src port", u.SrcPort, 5353)
	equal(t, "dst port", u.DstPort, 53)
	equal(t, "payload", string(u.Payload), "question")
}

func TestGopacketAndARP(t *testing.T) {
	f := ARPFields{Op: ARPRequest, SenderLink: linkA, SenderAddr: addrA, TargetAddr: addrB}
	b := make([]byte, EthernetHeaderLen+ARPLen)
	PutEthernet(b, Broadcast, linkA, EtherTypeARP)
	PutARP(b[14:], f)
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	arp := mustLayer[*layers.ARP](t, p, layers.LayerTypeARP)
	equal(t, "op", arp.Operation, layers.ARPRequest)
	equal(t, "sender", LinkAddr(arp.SourceHwAddress), linkA)
	equal(t, "sender", [4]byte(arp.SourceProtAddress), addrA)
	equal(t, "target", [4]byte(arp.DstProtAddress), addrB)

	out := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{}, arp); err != nil {
		t.Fatal(err)
	}
	a, err := ParseARP(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "fields", ARPFields{a.Op(), a.SenderLink(), a.SenderAddr(), a.TargetLink(), a.TargetAddr()}, f)
}

func TestGopacketAndICMP(t *testing.T) {
	out := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}
	req := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 99, Seq: 3}
	if err := gopacket.SerializeLayers(out, opts, req, gopacket.Payload("abcdefg")); err != nil {
		t.Fatal(err)
	}
	m, err := ParseICMPv4(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "type", m.Type(), ICMPEchoRequest)
	equal(t, "ID", m.ID(), 99)
	equal(t, "seq", m.Seq(), 3)

	b := make([]byte, 64)
	n := PutEcho(b, EchoFields{Type: ICMPEchoReply, ID: m.ID(), Seq: m.Seq()}, m.Payload())
	p := gopacket.NewPacket(b[:n], layers.LayerTypeICMPv4, gopacket.Default)
	rep := mustLayer[*layers.ICMPv4](t, p, layers.LayerTypeICMPv4)
	equal(t, "type", rep.TypeCode.Type(), layers.ICMPv4TypeEchoReply)
	equal(t, "ID", rep.Id, 99)
	equal(t, "seq", rep.Seq, 3)
	equal(t, "payload", string(rep.Payload), "abcdefg")
	equal(t, "checksum", naiveSum(b[:n], 0), 0xffff)

	quoted := unhex(t, ipv4Example+"0123456789abcdef")
	n = PutICMPv4Error(b, ICMPUnreachable, ICMPPortUnreachable, 0, quoted)
	p = gopacket.NewPacket(b[:n], layers.LayerTypeICMPv4, gopacket.Default)
	un := mustLayer[*layers.ICMPv4](t, p, layers.LayerTypeICMPv4)
	equal(t, "type", un.TypeCode, layers.CreateICMPv4TypeCode(3, 3))
	equal(t, "checksum", naiveSum(b[:n], 0), 0xffff)
	if !bytes.Equal(un.Payload, quoted) {
		t.Errorf("quoted %x", un.Payload)
	}
}
