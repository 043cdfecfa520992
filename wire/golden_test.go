package wire

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// unhex reads hexadecimal digits with any white space between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantBytes compares bytes with hexadecimal digits.
func wantBytes(t *testing.T, got []byte, want string) {
	t.Helper()
	if w := unhex(t, want); !bytes.Equal(got, w) {
		t.Errorf("got  %x\nwant %x", got, w)
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var (
	linkA = LinkAddr{0x02, 0, 0, 0, 0, 0x0a}
	linkB = LinkAddr{0x02, 0, 0, 0, 0, 0x0b}
	addrA = [4]byte{10, 0, 0, 1}
	addrB = [4]byte{10, 0, 0, 2}
)

func parseEthernet(b []byte) (e Ethernet, err error) { err = e.Parse(b); return e, err }
func parseIPv4(b []byte) (p IPv4, err error)         { err = p.Parse(b); return p, err }

func TestEthernetGolden(t *testing.T) {
	b := make([]byte, EthernetHeaderLen)
	PutEthernet(b, linkA, linkB, EtherTypeUNet)
	wantBytes(t, b, "02000000000a 02000000000b 88b5")

	e, err := parseEthernet(append(b, 1, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "dst", e.Dst, linkA)
	equal(t, "src", e.Src, linkB)
	equal(t, "type", e.Type, EtherTypeUNet)
	equal(t, "payload", string(e.Payload), "\x01\x02\x03")
	equal(t, "tagged", e.Tagged, false)
}

func TestEthernetVLAN(t *testing.T) {
	e, err := parseEthernet(unhex(t, "ffffffffffff 02000000000b 8100 6064 0806 aabb"))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "tagged", e.Tagged, true)
	equal(t, "tci", e.TCI, 0x6064)
	equal(t, "type", e.Type, EtherTypeARP)
	equal(t, "dst", e.Dst, Broadcast)
	wantBytes(t, e.Payload, "aabb")
}

func TestEthernetErrors(t *testing.T) {
	const addrs = "02000000000a 02000000000b "
	for _, c := range []struct {
		frame string
		want  error
	}{
		{"", ErrTruncated},
		{addrs + "08", ErrTruncated},
		{addrs + "8100 0001 08", ErrTruncated},
		{addrs + "8100 0001 8100 0002 0800", ErrNestedVLAN},
		{addrs + "8100 0001 88a8 0002 0800", ErrNestedVLAN},
		{addrs + "88a8 0001 8100 0002 0800", ErrNestedVLAN},
		{addrs + "88a8", ErrNestedVLAN},
		{addrs + "0800", nil},
		{addrs + "8100 0001 0800", nil},
		{addrs + "0026", nil}, // an 802.3 length: unknown to the caller, but well formed
	} {
		if _, err := parseEthernet(unhex(t, c.frame)); err != c.want {
			t.Errorf("%s: %v, want %v", c.frame, err, c.want)
		}
	}
}

func TestARPGolden(t *testing.T) {
	f := ARPFields{Op: ARPReply, SenderLink: linkA, SenderAddr: addrA, TargetLink: linkB, TargetAddr: addrB}
	b := make([]byte, ARPLen)
	PutARP(b, f)
	wantBytes(t, b, "0001 0800 06 04 0002 02000000000a 0a000001 02000000000b 0a000002")

	a, err := ParseARP(append(b, make([]byte, 18)...)) // padded to the Ethernet minimum
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "length", len(a), ARPLen)
	equal(t, "fields", ARPFields{a.Op(), a.SenderLink(), a.SenderAddr(), a.TargetLink(), a.TargetAddr()}, f)
}

func TestARPErrors(t *testing.T) {
	good := unhex(t, "0001 0800 06 04 0001 02000000000a 0a000001 000000000000 0a000002")
	if _, err := ParseARP(good[:27]); err != ErrTruncated {
		t.Errorf("27 bytes: %v", err)
	}
	for i := range 6 { // hardware, protocol and both lengths
		b := bytes.Clone(good)
		b[i] ^= 1
		if _, err := ParseARP(b); err != ErrAddressFamily {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	good[7] = 9 // an unknown operation is not an error here
	if _, err := ParseARP(good); err != nil {
		t.Error(err)
	}
}

// A header that many texts use as an example; its checksum is b861.
const ipv4Example = "4500 0073 0000 4000 4011 b861 c0a80001 c0a800c7"

func TestIPv4Golden(t *testing.T) {
	b := make([]byte, IPv4HeaderLen)
	PutIPv4(b, IPv4Fields{TotalLen: 0x73, DontFragment: true, TTL: 64, Protocol: ProtocolUDP,
		Src: [4]byte{192, 168, 0, 1}, Dst: [4]byte{192, 168, 0, 199}})
	wantBytes(t, b, ipv4Example)

	p, err := parseIPv4(append(b, make([]byte, 0x73-20+7)...))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "length", len(p.Packet), 0x73) // seven bytes of padding are gone
	equal(t, "capacity", cap(p.Packet), 0x73)
	equal(t, "total", p.TotalLen(), 0x73)
	equal(t, "payload", len(p.Payload), 0x73-20)
	equal(t, "capacity of the payload", cap(p.Payload), 0x73-20)
	equal(t, "src", netip.AddrFrom4(p.Src), netip.MustParseAddr("192.168.0.1"))
	equal(t, "dst", netip.AddrFrom4(p.Dst), netip.MustParseAddr("192.168.0.199"))
	equal(t, "protocol", p.Protocol, ProtocolUDP)
	equal(t, "fragment", p.Fragment, 0)
}

func TestIPv4Fragment(t *testing.T) {
	b := make([]byte, IPv4HeaderLen)
	for _, c := range []struct {
		more       bool
		offset     uint16
		isFragment bool
	}{{false, 0, false}, {true, 0, true}, {true, 1480, true}, {false, 1480, true}, {false, 65528, true}} {
		PutIPv4(b, IPv4Fields{TotalLen: 20, ID: 0xbeef, TOS: 0xb9})
		binary.BigEndian.PutUint16(b[6:], c.offset/8)
		if c.more {
			b[6] |= ipv4MoreFragments >> 8
		}
		sealIPv4(b)
		p, err := parseIPv4(b)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "more", p.Fragment&ipv4MoreFragments != 0, c.more)
		equal(t, "offset", p.FragmentOffset(), int(c.offset))
		equal(t, "is a fragment", p.Fragment != 0, c.isFragment)
		equal(t, "DF", b[6]&0x40, 0)
		equal(t, "ID", uint16(b[4])<<8|uint16(b[5]), 0xbeef)
		equal(t, "TOS", p.TOS, 0xb9)
	}
}

// sealIPv4 writes the right header checksum.
func sealIPv4(b []byte) {
	n := int(b[0]&15) * 4
	b[10], b[11] = 0, 0
	c := ^naiveSum(b[:n], 0)
	b[10], b[11] = byte(c>>8), byte(c)
}

func TestIPv4Options(t *testing.T) {
	b := unhex(t, "4700 001f 0000 0000 4011 0000 0a000001 0a000002 9404 0000 01010100 aabbcc")
	sealIPv4(b)
	p, err := parseIPv4(b)
	if err != nil {
		t.Fatal(err)
	}
	wantBytes(t, p.Payload, "aabbcc")
	b[24] ^= 1 // the checksum covers the options
	if _, err := parseIPv4(b); err != ErrChecksum {
		t.Errorf("changed option: %v", err)
	}
}

func TestIPv4Errors(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		want   error
	}{
		{"19 bytes", func(b []byte) []byte { return b[:19] }, ErrTruncated},
		{"version 6", func(b []byte) []byte { b[0] = 0x65; sealIPv4(b); return b }, ErrVersion},
		{"IHL 4", func(b []byte) []byte { b[0] = 0x44; sealIPv4(b); return b }, ErrLength},
		{"IHL 0", func(b []byte) []byte { b[0] = 0x40; return b }, ErrLength},
		{"total < header", func(b []byte) []byte { b[3] = 19; sealIPv4(b); return b }, ErrLength},
		{"total 0", func(b []byte) []byte { b[3] = 0; sealIPv4(b); return b }, ErrLength},
		{"total > bytes", func(b []byte) []byte { b[3] = 25; sealIPv4(b); return b }, ErrTruncated},
		{"header > bytes", func(b []byte) []byte { b[0], b[3] = 0x4f, 60; return b }, ErrTruncated},
		{"checksum", func(b []byte) []byte { b[10] ^= 0x80; return b }, ErrChecksum},
		{"TTL without checksum", func(b []byte) []byte { b[8]--; return b }, ErrChecksum},
		{"good", func(b []byte) []byte { return b }, nil},
	} {
		b := make([]byte, 24)
		PutIPv4(b, IPv4Fields{TotalLen: 24, TTL: 64, Protocol: 17, Src: addrA, Dst: addrB})
		if _, err := parseIPv4(c.change(b)); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// A change of any single bit of a header is an error.
func TestIPv4EveryBit(t *testing.T) {
	b := unhex(t, ipv4Example)
	b[3] = 20
	sealIPv4(b)
	for i := range len(b) * 8 {
		b[i/8] ^= 1 << (i % 8)
		if _, err := parseIPv4(b); err == nil {
			t.Errorf("bit %d was changed: no error", i)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

func TestICMPEchoGolden(t *testing.T) {
	b := make([]byte, 12)
	equal(t, "length", PutEcho(b, EchoFields{Type: ICMPEchoRequest, ID: 0x1234, Seq: 1}, []byte("ping")), 12)
	// ~(0800 + 1234 + 0001 + 7069 + 6e67)
	wantBytes(t, b, "0800 06fa 1234 0001 70696e67")
	m, err := ParseICMPv4(b)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "ID", m.ID(), 0x1234)
	equal(t, "seq", m.Seq(), 1)
	equal(t, "error", m.IsError(), false)

	reply := EchoFields{Type: ICMPEchoReply, ID: m.ID(), Seq: m.Seq()}
	equal(t, "length", PutEcho(b, reply, m.Payload()), 12) // in the request's own memory
	wantBytes(t, b, "0000 0efa 1234 0001 70696e67")
	b[9] ^= 1
	if _, err := ParseICMPv4(b); err != ErrChecksum {
		t.Errorf("changed payload: %v", err)
	}
	if _, err := ParseICMPv4(b[:7]); err != ErrTruncated {
		t.Errorf("7 bytes: %v", err)
	}
}

func TestICMPUnreachable(t *testing.T) {
	for _, payload := range []int{0, 5, 8, 100, 527, 528, 529, 1472} {
		packet := make([]byte, IPv4HeaderLen+payload)
		fills["random"](packet)
		PutIPv4(packet, IPv4Fields{TotalLen: uint16(len(packet)), TTL: 1, Protocol: ProtocolUDP, Src: addrA, Dst: addrB})
		b := make([]byte, MaxICMPv4ErrorLen)
		n := PutICMPv4Error(b, ICMPUnreachable, ICMPFragmentationNeeded, 1400, packet)
		equal(t, "length", n, ICMPv4ErrorLen(packet))
		if IPv4HeaderLen+n > 576 {
			t.Errorf("%d bytes of payload: a datagram of %d bytes, more than 576", payload, IPv4HeaderLen+n)
		}
		m, err := ParseICMPv4(b[:n])
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "type", m.Type(), ICMPUnreachable)
		equal(t, "code", m.Code(), ICMPFragmentationNeeded)
		equal(t, "MTU", m.NextHopMTU(), 1400)
		equal(t, "error", m.IsError(), true)
		q, err := m.Quoted()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(q.Packet, packet[:min(len(packet), 548)]) {
			t.Errorf("%d bytes of payload: quoted %d bytes wrongly", payload, len(q.Packet))
		}
		e, err := m.Report()
		if err != nil || !e.Unreachable || !e.TooBig || e.MTU != 1400 || e.Src != AddrFrom4(q.Src) || e.Dst != AddrFrom4(q.Dst) || e.Size != len(packet) {
			t.Errorf("report %+v: %v", e, err)
		}
		src, dst, ok := e.Ports()
		equal(t, "ports quoted", ok, payload >= 4)
		if ok {
			equal(t, "src", src, uint16(packet[20])<<8|uint16(packet[21]))
			equal(t, "dst", dst, uint16(packet[22])<<8|uint16(packet[23]))
		}
	}
}

// quoting is an ICMP error that quotes packet.
func quoting(packet []byte) ICMPv4 { return append(make(ICMPv4, ICMPv4HeaderLen), packet...) }

func TestIPv4QuoteErrors(t *testing.T) {
	for _, c := range []struct {
		b    string
		want error
	}{
		{"4500", ErrTruncated},
		{"6500 0073 0000 4000 4011 b861 c0a80001 c0a800c7", ErrVersion},
		{"4400 0073 0000 4000 4011 b861 c0a80001 c0a800c7", ErrLength},
		{"4600 0073 0000 4000 4011 b861 c0a80001 c0a800c7", ErrTruncated},
		{"4500 0000 0000 4000 0011 0000 c0a80001 c0a800c7 1234", nil}, // lengths and checksums as routers leave them
	} {
		if _, err := quoting(unhex(t, c.b)).Quoted(); err != c.want {
			t.Errorf("%s: %v, want %v", c.b, err, c.want)
		}
	}
	second, err := quoting(unhex(t, "4500 0073 0000 0001 4011 0000 c0a80001 c0a800c7 12345678")).Report()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok := second.Ports(); ok {
		t.Error("ports of a fragment that is not the first")
	}
}

func TestMessageGolden(t *testing.T) {
	b := make([]byte, MessageHeaderLen, 64)
	PutMessage(b, 0x01020304, 0xa1a2a3a4, 5)
	wantBytes(t, b, "01 00 0005 01020304 a1a2a3a4")
	b = append(b, "hello"...)
	b = append(b, make([]byte, 29)...) // padded to 46 bytes of Ethernet payload
	m, err := ParseMessage(b)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "dst", m.Dst(), 0x01020304)
	equal(t, "src", m.Src(), 0xa1a2a3a4)
	equal(t, "payload", string(m.Payload()), "hello")
	equal(t, "capacity", cap(m), 17)
}

func TestMessageErrors(t *testing.T) {
	for _, c := range []struct {
		b    string
		want error
	}{
		{"", ErrTruncated},
		{"01 00 0000 00000001 000000", ErrTruncated},
		{"01 00 0001 00000001 00000002", ErrTruncated},
		{"01 00 ffff 00000001 00000002 00", ErrTruncated},
		{"00 00 0000 00000001 00000002", ErrVersion},
		{"02 00 0000 00000001 00000002", ErrVersion},
		{"01 01 0000 00000001 00000002", ErrReserved},
		{"01 80 0000 00000001 00000002", ErrReserved},
		{"01 00 0000 00000001 00000002", nil},
	} {
		if _, err := ParseMessage(unhex(t, c.b)); err != c.want {
			t.Errorf("%s: %v, want %v", c.b, err, c.want)
		}
	}
}

func TestPutMessageTooLongPanics(t *testing.T) {
	for _, n := range []int{-1, MaxMessagePayload + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("length %d: no panic", n)
				}
			}()
			PutMessage(make([]byte, MessageHeaderLen), 1, 2, n)
		}()
	}
}

func TestLinkAddrText(t *testing.T) {
	text, err := linkA.MarshalText()
	if err != nil || string(text) != "02:00:00:00:00:0a" {
		t.Fatalf("%s, %v", text, err)
	}
	var back LinkAddr
	if err := back.UnmarshalText(text); err != nil || back != linkA {
		t.Errorf("%v, %v", back, err)
	}
	for _, s := range []string{"", "nonsense", "02:00:00:00:00", "02:00:00:00:00:00:00:0a"} {
		if err := new(LinkAddr).UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%q accepted", s)
		}
	}
	equal(t, "group", linkA.IsGroup(), false)
	equal(t, "broadcast", Broadcast.IsGroup(), true)
}

// The example in docs/message-format.md is the frame that this package writes and reads.
func TestMessageDocumentExample(t *testing.T) {
	doc, err := os.ReadFile("../docs/message-format.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok := strings.Cut(string(doc), "## Example")
	parts := strings.Split(example, "```")
	if !ok || len(parts) != 3 {
		t.Fatal("the document has no example")
	}
	frame := make([]byte, 60)
	PutEthernet(frame, linkB, linkA, EtherTypeUNet)
	PutMessage(frame[EthernetHeaderLen:], 7, 9, copy(frame[EthernetHeaderLen+MessageHeaderLen:], "hello"))
	wantBytes(t, frame, parts[1])

	e, err := parseEthernet(unhex(t, parts[1]))
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseMessage(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "payload", string(m.Payload()), "hello")
}

func TestAddrPort(t *testing.T) {
	host := AddrFrom4([4]byte{10, 0, 0, 1})
	global := AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: 1})
	for _, c := range []struct {
		in   string
		want AddrPort
		out  string // empty: as in
	}{
		{"10.0.0.1:7", AddrPort{host, 7}, ""},
		{"[::ffff:10.0.0.1]:7", AddrPort{host, 7}, "10.0.0.1:7"},
		{"0.0.0.0:7", AddrPort{Any4, 7}, ""},
		{"[::]:7", AddrPort{Port: 7}, ""},
		{"[2001:db8::1]:7", AddrPort{global, 7}, ""},
		{"[2001:db8::1%eth0]:7", AddrPort{global, 7}, "[2001:db8::1]:7"},
	} {
		got := AddrPortFrom(netip.MustParseAddrPort(c.in))
		if got != c.want || got.String() != cmp.Or(c.out, c.in) || got.Addr.Is4() != got.Netip().Addr().Is4() {
			t.Errorf("%v: %v", c.in, got)
		}
		if AddrFrom16(got.Addr.As16()) != got.Addr || got.Addr.Is4() && AddrFrom4(got.Addr.As4()) != got.Addr {
			t.Errorf("%v: as bytes", got)
		}
	}
	if got := AddrPortFrom(netip.AddrPortFrom(netip.Addr{}, 7)); got != (AddrPort{Port: 7}) || got.IsZero() || !(AddrPort{}).IsZero() {
		t.Errorf("without an address: %v", got)
	}
}

// The kinds of addresses, and which addresses wildcards take.
func TestAddrKinds(t *testing.T) {
	for _, c := range []struct {
		in                              string
		host, loop, linkLocal, is4, any bool
	}{
		{"10.0.0.1", true, false, false, true, false},
		{"0.0.0.0", false, false, false, true, true},
		{"0.1.2.3", false, false, false, true, false},
		{"127.1.2.3", true, true, false, true, false},
		{"223.255.255.255", true, false, false, true, false},
		{"224.0.0.1", false, false, false, true, false},
		{"255.255.255.255", false, false, false, true, false},
		{"::", false, false, false, false, true},
		{"::1", true, true, false, false, false},
		{"::2", true, false, false, false, false},
		{"::fffe:1.2.3.4", true, false, false, false, false},
		{"2001:db8::1", true, false, false, false, false},
		{"fe80::1", true, false, true, false, false},
		{"febf::1", true, false, true, false, false},
		{"fec0::1", true, false, false, false, false},
		{"ff02::1", false, false, false, false, false},
	} {
		a := AddrFrom(netip.MustParseAddr(c.in))
		if a.IsHost() != c.host || a.IsLoopback() != c.loop || a.IsLinkLocal() != c.linkLocal || a.Is4() != c.is4 || a.IsWildcard() != c.any {
			t.Errorf("%v: host %v, loopback %v, link-local %v, IPv4 %v, wildcard %v", a, a.IsHost(), a.IsLoopback(), a.IsLinkLocal(), a.Is4(), a.IsWildcard())
		}
	}
	v4, other4 := AddrFrom4([4]byte{10, 0, 0, 1}), AddrFrom4([4]byte{10, 0, 0, 2})
	v6, other6 := AddrFrom16([16]byte{0xfd, 15: 1}), AddrFrom16([16]byte{0xfd, 15: 2})
	for _, c := range []struct {
		a       Addr
		takes   [4]bool // v4, other4, v6, other6
		overlap [3]bool // zero, Any4, Any6
	}{
		{Addr{}, [4]bool{true, true, true, true}, [3]bool{true, true, true}},
		{Any4, [4]bool{true, true, false, false}, [3]bool{true, true, false}},
		{Any6, [4]bool{false, false, true, true}, [3]bool{true, false, true}},
		{v4, [4]bool{true, false, false, false}, [3]bool{true, true, false}},
		{v6, [4]bool{false, false, true, false}, [3]bool{true, false, true}},
	} {
		if got := [4]bool{c.a.Takes(v4), c.a.Takes(other4), c.a.Takes(v6), c.a.Takes(other6)}; got != c.takes {
			t.Errorf("%v takes %v", c.a, got)
		}
		for i, w := range []Addr{{}, Any4, Any6} {
			if c.a.Overlaps(w) != c.overlap[i] || w.Overlaps(c.a) != c.overlap[i] {
				t.Errorf("%v and wildcard %d: %v, %v", c.a, i, c.a.Overlaps(w), w.Overlaps(c.a))
			}
		}
	}
}
