package filter

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/net/bpf"
)

// expected is a filter as libpcap compiles it.
type expected struct {
	text string
	vm   *bpf.VM
}

// libpcap reads filters that libpcap has compiled, so that the tests need no libpcap.
func libpcap(t testing.TB) (list []expected) {
	f, err := os.Open("testdata/libpcap.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var text string
	var code []bpf.RawInstruction
	finish := func() {
		if text == "" {
			return
		}
		program, ok := bpf.Disassemble(code)
		vm, err := bpf.NewVM(program)
		if !ok || err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		list = append(list, expected{text, vm})
		text, code = "", nil
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "":
			finish()
		case text == "":
			text = line
		default:
			var i bpf.RawInstruction
			if _, err := fmt.Sscan(line, &i.Op, &i.Jt, &i.Jf, &i.K); err != nil {
				t.Fatalf("%s: %q: %v", text, line, err)
			}
			code = append(code, i)
		}
	}
	finish()
	return list
}

// samples are frames of all kinds that filters distinguish, and so many copies of them with random changes, some
// cut at the end.
func samples(t testing.TB, r *rand.Rand, changes int) (list [][]byte) {
	mac := func(n byte) []byte { return []byte{2, 0, 0, 0, 0, n} }
	build := func(list ...gopacket.SerializableLayer) []byte {
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, list...); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	eth := func(typ layers.EthernetType, dst ...byte) *layers.Ethernet {
		if dst == nil {
			dst = mac(2)
		}
		return &layers.Ethernet{SrcMAC: mac(1), DstMAC: dst, EthernetType: typ}
	}
	addrs := [][]byte{{10, 0, 0, 1}, {10, 0, 0, 2}, {192, 168, 1, 1}, {224, 0, 0, 5}, {10, 0, 0, 255}}
	addrs6 := [][]byte{append([]byte{0xfd, 14: 0}, 1), append([]byte{0xfd, 14: 0}, 2), append([]byte{0xff, 2, 14: 0}, 1)}
	ports := []uint16{53, 80, 443, 1023, 1024, 7000, 7005}
	pick := func(list [][]byte) []byte { return list[r.IntN(len(list))] }
	port := func() uint16 { return ports[r.IntN(len(ports))] }
	payload := func() gopacket.Payload { return make([]byte, r.IntN(100)) }
	for range 40 {
		transports := func() []struct {
			p layers.IPProtocol
			l []gopacket.SerializableLayer
		} {
			return []struct {
				p layers.IPProtocol
				l []gopacket.SerializableLayer
			}{
				{layers.IPProtocolUDP, []gopacket.SerializableLayer{&layers.UDP{SrcPort: layers.UDPPort(port()), DstPort: layers.UDPPort(port())}, payload()}},
				{layers.IPProtocolTCP, []gopacket.SerializableLayer{&layers.TCP{SrcPort: layers.TCPPort(port()), DstPort: layers.TCPPort(port()),
					SYN: r.IntN(2) == 0, ACK: r.IntN(2) == 0, FIN: r.IntN(4) == 0}, payload()}},
				{layers.IPProtocolICMPv4, []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(uint8(r.IntN(2)*8), 0)}, payload()}},
				{layers.IPProtocolICMPv6, []gopacket.SerializableLayer{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(uint8(128+r.IntN(8)), 0)}, payload()}},
				{layers.IPProtocolSCTP, []gopacket.SerializableLayer{gopacket.Payload{0, 80, 0, 53, 1, 2, 3, 4, 5, 6, 7, 8}}},
			}
		}
		for _, transport := range transports() {
			ip := &layers.IPv4{Version: 4, IHL: 5, TTL: uint8(r.IntN(128)), Protocol: transport.p, SrcIP: pick(addrs), DstIP: pick(addrs)}
			switch r.IntN(6) {
			case 0:
				ip.FragOffset = uint16(r.IntN(3))
			case 1:
				ip.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 1}}
			}
			plain := build(append([]gopacket.SerializableLayer{eth(layers.EthernetTypeIPv4), ip}, transport.l...)...)
			tagged := build(append([]gopacket.SerializableLayer{eth(layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: uint16(100 + r.IntN(2)), Type: layers.EthernetTypeIPv4}, ip}, transport.l...)...)
			ip6 := &layers.IPv6{Version: 6, NextHeader: transport.p, HopLimit: 64, SrcIP: pick(addrs6), DstIP: pick(addrs6)}
			six := build(append([]gopacket.SerializableLayer{eth(layers.EthernetTypeIPv6), ip6}, transport.l...)...)
			fragment := gopacket.Payload(append([]byte{byte(transport.p), 0, 0, 1, 0, 0, 0, 7}, make([]byte, 20)...))
			six44 := build(eth(layers.EthernetTypeIPv6), &layers.IPv6{Version: 6, NextHeader: 44, HopLimit: 64, SrcIP: pick(addrs6), DstIP: pick(addrs6)}, fragment)
			list = append(list, plain, tagged, six, six44)
		}
		arp := &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: uint16(1 + r.IntN(2)),
			SourceHwAddress: mac(1), SourceProtAddress: pick(addrs), DstHwAddress: make([]byte, 6), DstProtAddress: pick(addrs)}
		broadcast := []byte{255, 255, 255, 255, 255, 255}
		list = append(list,
			build(eth(layers.EthernetTypeARP, broadcast...), arp),
			build(eth(typeRARP, broadcast...), arp),
			build(eth(0x88b5), gopacket.Payload{1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9}),
			build(eth(layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 100, Type: layers.EthernetTypeQinQ}, &layers.Dot1Q{VLANIdentifier: 7, Type: 0x88b5}))
	}
	whole := len(list)
	for range changes {
		b := append([]byte(nil), list[r.IntN(whole)]...)
		for range r.IntN(4) {
			b[r.IntN(len(b))] = byte(r.Uint32())
		}
		if r.IntN(2) == 0 {
			b = b[:1+r.IntN(len(b))]
		}
		list = append(list, b)
	}
	return list
}

// A filter matches the frames that libpcap's filter matches, also frames that are cut or have wrong fields.
func TestAgainstLibpcap(t *testing.T) {
	frames := samples(t, rand.New(rand.NewPCG(1, 0)), 3000)
	list := libpcap(t)
	if len(list) < 100 {
		t.Fatalf("%d filters", len(list))
	}
	for _, e := range list {
		f, err := Compile(e.text)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, b := range frames {
			n, err := e.vm.Run(b)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Match(b, len(b), true); got != (n > 0) {
				t.Errorf("%s: %v, libpcap has %v: % x", e.text, got, n > 0, b)
				break
			}
		}
	}
}
