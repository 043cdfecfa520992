package wire

import (
	"bytes"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// gopacket must understand what we write, and write what we understand.

func TestGopacketReadsOurTCP(t *testing.T) {
	for _, o := range []TCPOptions{
		{},
		{MSS: 1460, SACKPermitted: true, HasTimestamps: true, TSVal: 7, TSEcr: 8, HasWindowScale: true, WindowScale: 5},
		{MSS: 536, SACKPermitted: true},
		{HasTimestamps: true, TSVal: 9, TSEcr: 10, SACKBlocks: 2, SACK: [4]SACKBlock{{1, 2}, {3, 4}}},
	} {
		b := make([]byte, 60)
		n, _ := PutTCPOptions(b[20:], &o)
		b = append(b[:20+n], "hello, gopacket"...)
		f := TCPFields{SrcPort: 1, DstPort: 65535, Seq: 0xfffffff0, Ack: 17, Flags: TCPAck | TCPPsh | TCPUrg, Window: 501, Urgent: 3}
		PutTCP(b, &f, 20+n, Sum(b[20:], PseudoHeader4(addrA, addrB, ProtocolTCP, uint16(len(b)))))

		p := gopacket.NewPacket(b, layers.LayerTypeTCP, gopacket.Default)
		tcp := mustLayer[*layers.TCP](t, p, layers.LayerTypeTCP)
		equal(t, "src", tcp.SrcPort, 1)
		equal(t, "dst", tcp.DstPort, 65535)
		equal(t, "seq", tcp.Seq, 0xfffffff0)
		equal(t, "ack", tcp.Ack, 17)
		equal(t, "window", tcp.Window, 501)
		equal(t, "urgent", tcp.Urgent, 3)
		if !tcp.ACK || !tcp.PSH || !tcp.URG || tcp.SYN || tcp.FIN || tcp.RST {
			t.Errorf("flags of %+v", tcp)
		}
		equal(t, "payload", string(tcp.Payload), "hello, gopacket")

		// Encoded again by gopacket, checksum included, it is the same bytes.
		ip := &layers.IPv4{Protocol: layers.IPProtocolTCP, SrcIP: net.IP(addrA[:]), DstIP: net.IP(addrB[:])}
		if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		out := gopacket.NewSerializeBuffer()
		opts := gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}
		if err := gopacket.SerializeLayers(out, opts, tcp, gopacket.Payload(tcp.Payload)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), b) {
			t.Errorf("%+v:\nours     %x\ngopacket %x", o, b, out.Bytes())
		}
	}
}

func TestWeReadGopacketsTCP(t *testing.T) {
	opt := func(kind layers.TCPOptionKind, data ...byte) layers.TCPOption {
		return layers.TCPOption{OptionType: kind, OptionLength: uint8(2 + len(data)), OptionData: data}
	}
	in := &layers.TCP{SrcPort: 443, DstPort: 50000, Seq: 1, Ack: 2, ACK: true, SYN: true, CWR: true, ECE: true, Window: 3,
		Options: []layers.TCPOption{
			opt(layers.TCPOptionKindMSS, 0x23, 0x00),
			opt(layers.TCPOptionKindWindowScale, 9),
			{OptionType: layers.TCPOptionKindNop, OptionLength: 1},
			opt(layers.TCPOptionKindTimestamps, 0, 0, 0, 5, 0, 0, 0, 6),
			opt(layers.TCPOptionKindSACKPermitted),
		}}
	ip := &layers.IPv4{Protocol: layers.IPProtocolTCP, SrcIP: net.IP(addrA[:]), DstIP: net.IP(addrB[:])}
	if err := in.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	out := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}
	if err := gopacket.SerializeLayers(out, opts, in, gopacket.Payload("text")); err != nil {
		t.Fatal(err)
	}
	s, err := ParseTCP(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "checksum", s.Checksum(addrA, addrB), ChecksumGood)
	equal(t, "flags", s.Flags(), TCPSyn|TCPAck|TCPCwr|TCPEce)
	equal(t, "payload", string(s.Payload()), "text")
	var o TCPOptions
	equal(t, "well formed", s.ReadOptions(&o), true)
	equal(t, "options", o, TCPOptions{MSS: 0x2300, HasWindowScale: true, WindowScale: 9, HasTimestamps: true, TSVal: 5, TSEcr: 6, SACKPermitted: true})
}

// FuzzParseTCP feeds any bytes to the parser of segments, and writes what it
// reads again.
func FuzzParseTCP(f *testing.F) {
	f.Add(unhex(f, "1234 0050 01020304 00000000 5002 faf0 0000 0000"))
	f.Add(unhex(f, "0050 1234 00000005 fffffffe 8018 0001 0000 beef 0101080a 11121314 21222324 6f6464"))
	f.Add(unhex(f, "1234 0050 01020304 00000000 a002 faf0 0000 0000 020405b4 0402 080a a1a2a3a4 00000000 01 030307"))
	f.Add(unhex(f, "1234 0050 01020304 00000000 f010 0000 0000 0000 0101 0522 0000000100000002 0000000300000004 0000000500000006 0000000700000008 0200 0101"))
	f.Add(unhex(f, "1234 0050 01020304 00000000 6002 faf0 0000 0000 0100 0205"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseTCP(b)
		if err != nil {
			return
		}
		if s.HeaderLen()+len(s.Payload()) != len(b) || len(s.Options()) != s.HeaderLen()-TCPHeaderLen {
			t.Errorf("%x: lengths", b)
		}
		var o TCPOptions
		well := s.ReadOptions(&o)
		// The iterator takes every option in turn and comes to an end.
		rest, seen := s.Options(), 0
		for {
			kind, data, next, ok := NextTCPOption(rest)
			if kind == TCPOptionEnd {
				if well && !ok {
					t.Errorf("%x: well formed, and not", b)
				}
				break
			}
			if seen += 2 + len(data); seen > len(s.Options()) || len(next) >= len(rest) {
				t.Fatalf("%x: the iterator does not advance", b)
			}
			rest = next
		}
		if val, ecr, ok := s.AlignedTimestamps(); ok && (!o.HasTimestamps || o.TSVal != val || o.TSEcr != ecr) {
			t.Errorf("%x: aligned timestamps %d, %d; options %+v", b, val, ecr, o)
		}
		// Written again, they read the same.
		again := make([]byte, MaxTCPHeaderLen)
		n, sum := PutTCPOptions(again[TCPHeaderLen:], &o)
		again = append(again[:TCPHeaderLen+n], s.Payload()...)
		field := TCPFields{s.SrcPort(), s.DstPort(), s.Seq(), s.Ack(), s.Flags(), s.Window(), s.Urgent()}
		if len(again) > 0xffff {
			return
		}
		PutTCP(again, &field, TCPHeaderLen+n, Sum(again[TCPHeaderLen:], PseudoHeader4(addrA, addrB, ProtocolTCP, uint16(len(again)))))
		if Fold(sum) != Fold(Sum(again[TCPHeaderLen:TCPHeaderLen+n], 0)) {
			t.Errorf("%x: sum of the options", b)
		}
		r, err := ParseTCP(again)
		if err != nil || r.Checksum(addrA, addrB) != ChecksumGood {
			t.Fatalf("%x, written as %x: %v", b, again, err)
		}
		var p TCPOptions
		if !r.ReadOptions(&p) {
			t.Errorf("%x, written as %x: malformed", b, again)
		}
		if p.SACKBlocks < o.SACKBlocks { // what did not fit
			for i := p.SACKBlocks; i < o.SACKBlocks; i++ {
				o.SACK[i] = SACKBlock{}
			}
			o.SACKBlocks = p.SACKBlocks
		}
		if p != o || !bytes.Equal(r.Payload(), s.Payload()) || r.Seq() != s.Seq() || r.Flags() != s.Flags() {
			t.Errorf("read %+v, again %+v", o, p)
		}
	})
}
