package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

var (
	addr6A = netip.MustParseAddr("2001:db8::a").As16()
	addr6B = netip.MustParseAddr("fe80::ff:fe00:b").As16()
)

const sources6 = "20010db800000000000000000000000a fe80000000000000000000fffe00000b"

// packet6 is a packet from addr6A to addr6B with this next header before these bytes.
func packet6(t testing.TB, next byte, rest string) []byte {
	t.Helper()
	b := unhex(t, "60000000 0000 00 40"+sources6+rest)
	b[6] = next
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-IPv6HeaderLen))
	return b
}

func TestIPv6Golden(t *testing.T) {
	b := make([]byte, IPv6HeaderLen)
	PutIPv6(b, IPv6Fields{TrafficClass: 0xb9, FlowLabel: 0x12345, PayloadLen: 3, Protocol: ProtocolTCP, HopLimit: 64, Src: addr6A, Dst: addr6B})
	wantBytes(t, b, "6b912345 0003 06 40"+sources6)

	var p IPv6
	p.HasFragment, p.Fragment = true, 9 // of the packet that was read before
	if err := p.Parse(append(b, 1, 2, 3, 0, 0)); err != nil {
		t.Fatal(err)
	}
	equal(t, "source", p.Src, addr6A)
	equal(t, "destination", p.Dst, addr6B)
	equal(t, "traffic class", p.TrafficClass, 0xb9)
	equal(t, "hop limit", p.HopLimit, 64)
	equal(t, "protocol", p.Protocol, ProtocolTCP)
	equal(t, "fragment", p.HasFragment || p.Fragment != 0, false)
	equal(t, "payload without padding", string(p.Payload), "\x01\x02\x03")
	equal(t, "packet", len(p.Packet), 43)
}

func TestIPv6ExtensionHeaders(t *testing.T) {
	const udp = "0001 0002 0008 0000"
	// Each header names TCP, 06, or the next one of the chain.
	for _, c := range []struct {
		name     string
		next     byte
		rest     string
		err      error
		protocol byte
		payload  int // bytes at the end of rest
		problem  IPv6Problem
	}{
		{"none", 17, udp, nil, 17, 8, IPv6Problem{}},
		{"hop-by-hop options with padding", 0, "11 00 01 04 00000000" + udp, nil, 17, 8, IPv6Problem{}},
		{"destination options of 16 bytes", 60, "11 01 01 0c 000000000000000000000000" + udp, nil, 17, 8, IPv6Problem{}},
		{"option that may be skipped", 60, "11 00 05 02 0000 00 00" + udp, nil, 17, 8, IPv6Problem{}},
		{"option to discard", 60, "11 00 45 02 0000 00 00" + udp, ErrDiscarded, 0, 0, IPv6Problem{}},
		{"option to report always", 60, "11 00 00 85 01 00 0000" + udp, ErrParameterProblem, 0, 0, IPv6Problem{2, 43}},
		{"option to report", 0, "11 00 c5 02 0000 00 00" + udp, ErrParameterProblem, 0, 0, IPv6Problem{2, 42}},
		{"option beyond its header", 60, "11 00 01 05 00000000" + udp, ErrLength, 0, 0, IPv6Problem{}},
		{"option without a length", 60, "11 00 01 03 000000 05" + udp, ErrLength, 0, 0, IPv6Problem{}},
		{"eight options", 60, "11 02 0500 0500 0500 0500 0500 0500 0500 0500 010400000000" + udp, nil, 17, 8, IPv6Problem{}},
		{"nine options", 60, "11 02 0500 0500 0500 0500 0500 0500 0500 0500 0500 01020000" + udp, ErrDiscarded, 0, 0, IPv6Problem{}},
		{"routing header without segments left", 43, "11 00 00 00 00000000" + udp, nil, 17, 8, IPv6Problem{}},
		{"routing header of type 0 with segments left", 43, "11 00 00 01 00000000" + udp, ErrParameterProblem, 0, 0, IPv6Problem{0, 42}},
		{"hop-by-hop, destination, routing", 0, "3c00010400000000 2b00010400000000 1100000000000000" + udp, nil, 17, 8, IPv6Problem{}},
		{"hop-by-hop not first", 60, "0000010400000000 1100010400000000" + udp, ErrParameterProblem, 0, 0, IPv6Problem{1, 40}},
		{"hop-by-hop after an atomic fragment", 44, "0000000000000001 1100010400000000" + udp, ErrParameterProblem, 0, 0, IPv6Problem{1, 40}},
		{"header cut", 60, "11 00 01 04 0000", ErrTruncated, 0, 0, IPv6Problem{}},
		{"header longer than the packet", 60, "11 02 01 04 00000000" + udp, ErrTruncated, 0, 0, IPv6Problem{}},
		{"atomic fragment before options", 44, "3c 00 0000 00000001 1100010400000000" + udp, nil, 17, 8, IPv6Problem{}},
		{"first fragment", 44, "3c 00 0001 00000001 1100010400000000" + udp, nil, 60, 16, IPv6Problem{}},
		{"last fragment", 44, "11 00 0010 00000001 010203", nil, 17, 3, IPv6Problem{}},
		{"fragment of odd length that is not the last", 44, "11 00 0001 00000001 010203", ErrParameterProblem, 0, 0, IPv6Problem{0, 4}},
		{"fragment that ends beyond 65,535", 44, "11 00 fff8 00000001" + udp, ErrParameterProblem, 0, 0, IPv6Problem{0, 42}},
		{"two fragment headers", 44, "2c 00 0000 00000001 11 00 0000 00000001" + udp, ErrDiscarded, 0, 0, IPv6Problem{}},
		{"eight headers", 60, strings.Repeat("3c00010400000000", 7) + "1100010400000000" + udp, nil, 17, 8, IPv6Problem{}},
		{"nine headers", 60, strings.Repeat("3c00010400000000", 8) + "1100010400000000" + udp, ErrDiscarded, 0, 0, IPv6Problem{}},
		{"unknown header", 60, "87 00 01 04 00000000" + udp, nil, 135, 8, IPv6Problem{}},
	} {
		var p IPv6
		b := packet6(t, c.next, c.rest)
		err := p.Parse(b)
		if err != c.err {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
			continue
		}
		if err == nil && (p.Protocol != c.protocol || !bytes.Equal(p.Payload, b[len(b)-c.payload:]) || b[p.ProtocolAt] != c.protocol) {
			t.Errorf("%s: protocol %d at %d, payload %x", c.name, p.Protocol, p.ProtocolAt, p.Payload)
		}
		if err == ErrParameterProblem && p.Problem != c.problem {
			t.Errorf("%s: %+v, want %+v", c.name, p.Problem, c.problem)
		}
		// For a packet to a multicast address only options that are to be reported always are reported.
		if b[24] = 0xff; err == ErrParameterProblem {
			want := ErrDiscarded
			if c.name == "option to report always" {
				want = ErrParameterProblem
			}
			equal(t, c.name+", to a multicast address", p.Parse(b), want)
		}
	}
}

func TestIPv6Fragment(t *testing.T) {
	var p IPv6
	if err := p.Parse(packet6(t, 44, "11 ff 05ad 89abcdef 0001020304050607")); err != nil { // reserved bits are set
		t.Fatal(err)
	}
	equal(t, "offset and M", p.Fragment, 0x5a9)
	equal(t, "ID", p.FragmentID, 0x89abcdef)
	equal(t, "header", p.HasFragment, true)
}

func TestIPv6Errors(t *testing.T) {
	good := packet6(t, 17, "0001 0002 0008 0000")
	var p IPv6
	for n := range len(good) {
		if err := p.Parse(good[:n]); err != ErrTruncated {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	good[0] = 0x45
	equal(t, "version 4", p.Parse(good), ErrVersion)
}

func TestPseudoHeader6(t *testing.T) {
	b := bytes.Join([][]byte{addr6A[:], addr6B[:], {0, 0, 0xab, 0xcd, 0, 0, 0, 58}}, nil) // RFC 8200, section 8.1
	equal(t, "sum", Fold(PseudoHeader(AddrFrom16(addr6A), AddrFrom16(addr6B), ProtocolICMPv6, 0xabcd)), naiveSum(b, 0))
	// Random words, so that each addition carries in some of the sums.
	r := rand.New(rand.NewPCG(6, 7))
	for range 100 {
		var src, dst [16]byte
		for i := range src {
			src[i], dst[i] = byte(r.Uint32()), byte(r.Uint32())
		}
		proto, n := uint8(r.Uint32()), uint16(r.Uint32())
		b = bytes.Join([][]byte{src[:], dst[:], {0, 0, byte(n >> 8), byte(n), 0, 0, 0, proto}}, nil)
		equal(t, "sum of random words", Fold(PseudoHeader(AddrFrom16(src), AddrFrom16(dst), proto, n)), naiveSum(b, 0))
	}
}

func TestMulticastAddresses(t *testing.T) {
	group := SolicitedNode(netip.MustParseAddr("4037::1:800:200e:8c6c").As16()) // the example of RFC 4291
	equal(t, "solicited-node address", netip.AddrFrom16(group).String(), "ff02::1:ff0e:8c6c")
	equal(t, "its MAC address", MulticastLink(group), LinkAddr{0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c})
}

// serialize6 encodes an IPv6 packet by gopacket.
func serialize6(t *testing.T, ip *layers.IPv6, rest ...gopacket.SerializableLayer) []byte {
	t.Helper()
	ip.Version, ip.NextHeader, ip.SrcIP, ip.DstIP = 6, layers.IPProtocolICMPv6, addr6A[:], addr6B[:]
	out := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}
	if err := gopacket.SerializeLayers(out, opts, append([]gopacket.SerializableLayer{ip}, rest...)...); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// sent6 writes an IPv6 header from addr6A to addr6B before b, and decodes both by gopacket.
func sent6(t *testing.T, b []byte) gopacket.Packet {
	t.Helper()
	packet := make([]byte, IPv6HeaderLen)
	PutIPv6(packet, IPv6Fields{TrafficClass: 0x28, FlowLabel: 77, PayloadLen: uint16(len(b)), Protocol: ProtocolICMPv6, HopLimit: 255, Src: addr6A, Dst: addr6B})
	p := gopacket.NewPacket(append(packet, b...), layers.LayerTypeIPv6, gopacket.Default)
	ip := mustLayer[*layers.IPv6](t, p, layers.LayerTypeIPv6)
	equal(t, "source", ip.SrcIP.String(), "2001:db8::a")
	equal(t, "destination", ip.DstIP.String(), "fe80::ff:fe00:b")
	equal(t, "traffic class", ip.TrafficClass, 0x28)
	equal(t, "flow label", ip.FlowLabel, 77)
	equal(t, "hop limit", ip.HopLimit, 255)
	equal(t, "length", int(ip.Length), len(b))
	return p
}

func parse6(t *testing.T, b []byte) (p IPv6, m ICMPv6) {
	t.Helper()
	if err := p.Parse(b); err != nil {
		t.Fatal(err)
	}
	m, err := ParseICMPv6(p.Payload, p.Src, p.Dst)
	if err != nil {
		t.Fatal(err)
	}
	return p, m
}

func TestGopacketAndICMPv6Echo(t *testing.T) {
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	ip := &layers.IPv6{HopLimit: 64}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	_, m := parse6(t, serialize6(t, ip, icmp, &layers.ICMPv6Echo{Identifier: 99, SeqNumber: 3}, gopacket.Payload("abc")))
	equal(t, "type", m.Type(), ICMPv6EchoRequest)
	equal(t, "ID", m.ID(), 99)
	equal(t, "seq", m.Seq(), 3)
	equal(t, "payload", string(m.Payload()), "abc")
	equal(t, "error", m.IsError(), false)

	b := make([]byte, 64)
	n := PutEcho6(b, addr6A, addr6B, EchoFields{Type: ICMPv6EchoReply, ID: 99, Seq: 3}, m.Payload())
	p := sent6(t, b[:n])
	echo := mustLayer[*layers.ICMPv6Echo](t, p, layers.LayerTypeICMPv6Echo)
	equal(t, "type", mustLayer[*layers.ICMPv6](t, p, layers.LayerTypeICMPv6).TypeCode.Type(), 129)
	equal(t, "ID", echo.Identifier, 99)
	equal(t, "seq", echo.SeqNumber, 3)
	if _, err := ParseICMPv6(b[:n], addr6A, addr6B); err != nil {
		t.Error(err)
	}
	if _, err := ParseICMPv6(b[:n], addr6B, addr6B); err != ErrChecksum {
		t.Errorf("from another source: %v", err)
	}
	if _, err := ParseICMPv6(b[:7], addr6A, addr6B); err != ErrTruncated {
		t.Errorf("7 bytes: %v", err)
	}
}

func TestGopacketAndNeighbor(t *testing.T) {
	for _, n := range []Neighbor{
		{Target: addr6B, Link: linkA},
		{Target: addr6B},
		{Advertisement: true, Target: addr6A, Link: linkA, Solicited: true, Override: true},
		{Advertisement: true, Target: addr6A, Link: linkB, Router: true},
	} {
		b := make([]byte, MaxNeighborLen)
		b = b[:PutNeighbor(b, addr6A, addr6B, n)]
		sent := sent6(t, b)
		var target net.IP
		var options layers.ICMPv6Options
		option := layers.ICMPv6OptSourceAddress
		if n.Advertisement {
			l := mustLayer[*layers.ICMPv6NeighborAdvertisement](t, sent, layers.LayerTypeICMPv6NeighborAdvertisement)
			equal(t, "router", l.Router(), n.Router)
			equal(t, "solicited", l.Solicited(), n.Solicited)
			equal(t, "override", l.Override(), n.Override)
			target, options, option = l.TargetAddress, l.Options, layers.ICMPv6OptTargetAddress
		} else {
			l := mustLayer[*layers.ICMPv6NeighborSolicitation](t, sent, layers.LayerTypeICMPv6NeighborSolicitation)
			target, options = l.TargetAddress, l.Options
		}
		equal(t, "target", [16]byte(target), n.Target)
		if n.Link == (LinkAddr{}) {
			equal(t, "options", len(options), 0)
		} else {
			equal(t, "option", options[0].Type, option)
			equal(t, "MAC address", LinkAddr(options[0].Data), n.Link)
		}
		m, err := ParseICMPv6(b, addr6A, addr6B)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseNeighbor(&IPv6{Src: addr6A, Dst: addr6B, HopLimit: 255}, m)
		if err != nil || back != n {
			t.Errorf("read %+v, %v; wrote %+v", back, err, n)
		}
	}
}

// TestNeighborValidation has the validations of RFC 4861, sections 7.1.1 and 7.1.2, and of
// RFC 6980.
func TestNeighborValidation(t *testing.T) {
	const (
		target = "fe80000000000000000000fffe00000b"
		source = "0101 02000000000a"
	)
	group := SolicitedNode(addr6B)
	ns := "8700 0000 00000000" + target
	na := "8800 0000 60000000" + target
	hosts := IPv6{Src: addr6A, Dst: addr6B, HopLimit: 255}
	probe := IPv6{Dst: group, HopLimit: 255}
	for _, c := range []struct {
		name   string
		p      IPv6
		m      string
		refuse bool
	}{
		{"solicitation", hosts, ns + source, false},
		{"solicitation without options", hosts, ns, false},
		{"unknown option", hosts, ns + "0e02 000000000000 0000000000000000" + source, false},
		{"hop limit 254", IPv6{Src: addr6A, Dst: addr6B, HopLimit: 254}, ns + source, true},
		{"fragment header", IPv6{Src: addr6A, Dst: addr6B, HopLimit: 255, HasFragment: true}, ns + source, true},
		{"code 1", hosts, "8701" + ns[4:], true},
		{"23 bytes", hosts, ns[:len(ns)-2], true},
		{"multicast target", hosts, "8700 0000 00000000 ff020000000000000000000000000001", true},
		{"option of length 0", hosts, ns + "0100 02000000000a", true},
		{"unknown option of length 0", hosts, ns + "0e00 000000000000", true},
		{"option cut", hosts, ns + "0102 02000000000a", true},
		{"7 bytes of options", hosts, ns + "0101 0200000000", true},
		{"MAC address of 14 bytes", hosts, ns + "0102 02000000000a 0000000000000000", true},
		{"probe", probe, ns, false},
		{"probe with a MAC address", probe, ns + source, true},
		{"probe to the host", IPv6{Dst: addr6B, HopLimit: 255}, ns, true},
		{"advertisement", hosts, na + "0201 02000000000b", false},
		{"advertisement, not solicited, to a group", IPv6{Src: addr6A, Dst: group, HopLimit: 255}, "8800 0000 20000000" + target, false},
		{"advertisement, solicited, to a group", IPv6{Src: addr6A, Dst: group, HopLimit: 255}, na, true},
		{"advertisement from nowhere", IPv6{Dst: addr6B, HopLimit: 255}, na, true},
		{"router advertisement", hosts, "8600 0000 00000000" + target, true},
	} {
		want := error(nil)
		if c.refuse {
			want = ErrNeighbor
		}
		n, err := ParseNeighbor(&c.p, unhex(t, c.m))
		equal(t, c.name, err, want)
		if c.name == "unknown option" {
			equal(t, "MAC address after an unknown option", n.Link, linkA)
		}
	}
}

func TestICMPv6Errors(t *testing.T) {
	quoted := packet6(t, 17, "0001 0002 0008 0000")
	b := make([]byte, 2000)
	n := PutICMPv6Error(b, addr6A, addr6B, ICMPv6PacketTooBig, 0, 1400, quoted)
	p := sent6(t, b[:n])
	equal(t, "type", mustLayer[*layers.ICMPv6](t, p, layers.LayerTypeICMPv6).TypeCode.Type(), layers.ICMPv6TypePacketTooBig)
	m, err := ParseICMPv6(b[:n], addr6A, addr6B)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "MTU", m.MTU(), 1400)
	equal(t, "error", m.IsError(), true)
	q, err := m.Quoted()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "quoted source", q.Src, addr6A)
	equal(t, "quoted destination", q.Dst, addr6B)
	equal(t, "quoted protocol", q.Protocol, ProtocolUDP)
	wantBytes(t, q.Payload, "0001 0002 0008 0000")

	n = PutICMPv6Error(b, addr6A, addr6B, ICMPv6ParameterProblem, ICMPv6UnknownOption, 42, make([]byte, 5000))
	equal(t, "length of an error about a long packet", n+IPv6HeaderLen, MinIPv6MTU)
	if m, err = ParseICMPv6(b[:n], addr6A, addr6B); err != nil {
		t.Fatal(err)
	}
	equal(t, "pointer", m.Pointer(), 42)
	_, err = m.Quoted()
	equal(t, "quote that is no IPv6", err, ErrVersion)
	_, err = m[:ICMPv6HeaderLen+39].Quoted()
	equal(t, "short quote", err, ErrTruncated)

	for _, c := range []struct {
		kind, code uint8
		errno      syscall.Errno
		hard       bool
	}{
		{ICMPv6Unreachable, 0, syscall.ENETUNREACH, false},
		{ICMPv6Unreachable, 1, syscall.EACCES, true},
		{ICMPv6Unreachable, 3, syscall.EHOSTUNREACH, false},
		{ICMPv6Unreachable, ICMPv6PortUnreachable, syscall.ECONNREFUSED, true},
		{ICMPv6Unreachable, 200, 0, false},
		{ICMPv6PacketTooBig, 0, syscall.EMSGSIZE, false},
		{ICMPv6TimeExceeded, 0, syscall.EHOSTUNREACH, false},
		{ICMPv6ParameterProblem, 1, syscall.EPROTO, true},
		{ICMPv6EchoReply, 0, 0, false},
	} {
		errno, hard := ICMPv6{c.kind, c.code, 0, 0, 0, 0, 0, 0}.Errno()
		if errno != c.errno || hard != c.hard {
			t.Errorf("type %d, code %d: %v, %v", c.kind, c.code, errno, hard)
		}
	}
}

// FuzzParseIPv6 gives any packet to all parsers of IPv6. What they accept must be within its
// bounds, and a neighbour discovery message must be the same after it was written again.
func FuzzParseIPv6(f *testing.F) {
	f.Add(packet6(f, 17, "0001 0002 0008 0000"))
	f.Add(packet6(f, 0, "3c00010400000000 2b00010400000000 1100000000000000 0001 0002 0008 0000"))
	f.Add(packet6(f, 44, "3c 00 0001 00000001 1100010400000000"))
	f.Add(packet6(f, 60, "11 00 c5 02 0000 00 00"))
	b := make([]byte, MaxNeighborLen)
	PutNeighbor(b, addr6A, addr6B, Neighbor{Target: addr6B, Link: linkA})
	packet := append(packet6(f, 58, ""), b...)
	packet[5], packet[7] = byte(len(b)), 255
	f.Add(packet)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p IPv6
		switch err := p.Parse(b); {
		case err == ErrParameterProblem:
			if int(p.Problem.Pointer) >= len(p.Packet) {
				t.Errorf("pointer %d in a packet of %d bytes", p.Problem.Pointer, len(p.Packet))
			}
			return
		case err != nil:
			return
		}
		if n := IPv6HeaderLen + int(binary.BigEndian.Uint16(b[4:])); len(p.Packet) != n || p.Packet[p.ProtocolAt] != p.Protocol {
			t.Fatalf("packet of %d bytes, want %d; protocol %d at %d", len(p.Packet), n, p.Protocol, p.ProtocolAt)
		}
		if p.Protocol != ProtocolICMPv6 || p.Fragment != 0 {
			return
		}
		m, err := ParseICMPv6(p.Payload, p.Src, p.Dst)
		if err != nil {
			m = ICMPv6(p.Payload) // the checksum is rarely right: go on without it
			if len(m) < ICMPv6HeaderLen {
				return
			}
		}
		m.Errno()
		if q, err := m.Quoted(); err == nil && len(q.Packet) != len(q.Payload)+IPv6HeaderLen {
			t.Errorf("quoted packet of %d bytes, payload of %d", len(q.Packet), len(q.Payload))
		}
		n, err := ParseNeighbor(&p, m)
		if err != nil {
			return
		}
		again := make([]byte, MaxNeighborLen)
		again = again[:PutNeighbor(again, p.Src, p.Dst, n)]
		if back, err := ParseNeighbor(&p, again); err != nil || back != n {
			t.Errorf("read %+v, then %+v, %v", n, back, err)
		}
	})
}
