package wire

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

var tcpSyn = TCPFields{SrcPort: 0x1234, DstPort: 80, Seq: 0x01020304, Ack: 0, Flags: TCPSyn, Window: 0xfaf0}

// naiveTCP is the right checksum field of b from the definition in RFC 9293.
func naiveTCP(b []byte, src, dst [4]byte) uint16 {
	all := append(append(append([]byte{}, src[:]...), dst[:]...), 0, 6, byte(len(b)>>8), byte(len(b)))
	all = append(all, b...)
	all[12+16], all[12+17] = 0, 0
	return ^naiveSum(all, 0)
}

func TestTCPGolden(t *testing.T) {
	b := make([]byte, 60)
	o := TCPOptions{MSS: 1460, SACKPermitted: true, HasTimestamps: true, TSVal: 0xa1a2a3a4, HasWindowScale: true, WindowScale: 7}
	n, sum := PutTCPOptions(b[20:], &o)
	equal(t, "options", n, 20)
	equal(t, "sum", Fold(sum), Fold(Sum(b[20:40], 0)))
	f := tcpSyn
	PutTCP(b, &f, 20+n, Sum(b[20:40], PseudoHeader(AddrFrom4(addrA), AddrFrom4(addrB), ProtocolTCP, uint16(20+n))))
	want := "1234 0050 01020304 00000000 a002 faf0 %s 0000 020405b4 0402 080a a1a2a3a4 00000000 01 030307"
	check := naiveTCP(b[:40], addrA, addrB)
	wantBytes(t, b[:40], bytesf(want, check))

	var s TCP
	if err := s.Parse(b[:40]); err != nil {
		t.Fatal(err)
	}
	equal(t, "src", s.SrcPort, 0x1234)
	equal(t, "dst", s.DstPort, 80)
	equal(t, "seq", s.Seq, 0x01020304)
	equal(t, "flags", s.Flags, TCPSyn)
	equal(t, "window", s.Window, 0xfaf0)
	equal(t, "header", TCPHeaderLen+len(s.Options), 40)
	equal(t, "payload", len(s.Payload), 0)
	equal(t, "checksum", s.Checksum(AddrFrom4(addrA), AddrFrom4(addrB)), ChecksumGood)
	var got TCPOptions
	equal(t, "well formed", s.ReadOptions(&got), true)
	equal(t, "options", got, o)
	if s.Timestamps {
		t.Error("timestamps alone")
	}

	// A segment of a connection: ACK, timestamps and data.
	f = TCPFields{SrcPort: 80, DstPort: 0x1234, Seq: 5, Ack: 0xfffffffe, Flags: TCPAck | TCPPsh, Window: 1, Urgent: 0xbeef}
	sum = PutTCPTimestamps(b[20:], 0x11121314, 0x21222324)
	equal(t, "sum", Fold(sum), Fold(Sum(b[20:32], 0)))
	sum = SumCopy(b[32:], []byte("odd"), Sum(b[20:32], PseudoHeader(AddrFrom4(addrB), AddrFrom4(addrA), ProtocolTCP, 35)))
	PutTCP(b, &f, 32, sum)
	check = naiveTCP(b[:35], addrB, addrA)
	wantBytes(t, b[:35], bytesf("0050 1234 00000005 fffffffe 8018 0001 %s beef 0101080a 11121314 21222324 6f6464", check))
	if err := s.Parse(b[:35]); err != nil {
		t.Fatal(err)
	}
	equal(t, "ack", s.Ack, 0xfffffffe)
	equal(t, "urgent", s.Urgent, 0xbeef)
	equal(t, "payload", string(s.Payload), "odd")
	if !s.Timestamps || s.TSVal != 0x11121314 || s.TSEcr != 0x21222324 {
		t.Errorf("timestamps %x, %x, %v", s.TSVal, s.TSEcr, s.Timestamps)
	}
	equal(t, "checksum", s.Checksum(AddrFrom4(addrB), AddrFrom4(addrA)), ChecksumGood)
}

// bytesf puts a checksum in the place of %s into hexadecimal digits.
func bytesf(digits string, check uint16) string {
	const hex = "0123456789abcdef"
	c := string([]byte{hex[check>>12], hex[check>>8&15], hex[check>>4&15], hex[check&15]})
	before, after, _ := bytes.Cut([]byte(digits), []byte("%s"))
	return string(before) + c + string(after)
}

func TestTCPErrors(t *testing.T) {
	for _, c := range []struct {
		b    string
		want error
	}{
		{"", ErrTruncated},
		{"1234 0050 01020304 00000000 5002 faf0 0000 00", ErrTruncated},
		{"1234 0050 01020304 00000000 4002 faf0 0000 0000", ErrLength},
		{"1234 0050 01020304 00000000 0002 faf0 0000 0000", ErrLength},
		{"1234 0050 01020304 00000000 6002 faf0 0000 0000", ErrTruncated},
		{"1234 0050 01020304 00000000 f002 faf0 0000 0000 00000000", ErrTruncated},
		{"1234 0050 01020304 00000000 5002 faf0 0000 0000", nil},
		{"1234 0050 01020304 00000000 5f02 faf0 0000 0000", nil}, // reserved bits are ignored
		{"1234 0050 01020304 00000000 6002 faf0 0000 0000 00000000", nil},
	} {
		if err := new(TCP).Parse(unhex(t, c.b)); err != c.want {
			t.Errorf("%s: %v, want %v", c.b, err, c.want)
		}
	}
	for _, n := range []int{16, 19, 21, 64} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a header of %d bytes: no panic", n)
				}
			}()
			PutTCP(make([]byte, 70), &tcpSyn, n, 0)
		}()
	}
}

func TestTCPChecksumStates(t *testing.T) {
	b := make([]byte, 24)
	PutTCP(b, &tcpSyn, 20, Sum(b[20:], PseudoHeader(AddrFrom4(addrA), AddrFrom4(addrB), ProtocolTCP, 24)))
	var s TCP
	if err := s.Parse(b); err != nil {
		t.Fatal(err)
	}
	equal(t, "state", s.Checksum(AddrFrom4(addrA), AddrFrom4(addrB)), ChecksumGood)
	equal(t, "accept", s.AcceptPartial(AddrFrom4(addrA), AddrFrom4(addrB)), false)
	for i := range len(b) * 8 { // a change of any bit is detected
		b[i/8] ^= 1 << (i % 8)
		if s.Checksum(AddrFrom4(addrA), AddrFrom4(addrB)) == ChecksumGood {
			t.Errorf("bit %d was changed: the checksum is good", i)
		}
		b[i/8] ^= 1 << (i % 8)
	}
	// Linux: th->check = ~tcp_v4_check(len, saddr, daddr, 0)
	binary.BigEndian.PutUint16(b[16:], naiveSum([]byte{10, 0, 0, 1, 10, 0, 0, 2, 0, 6, 0, 24}, 0))
	equal(t, "state", s.Checksum(AddrFrom4(addrA), AddrFrom4(addrB)), ChecksumPartial)
	equal(t, "accept", s.AcceptPartial(AddrFrom4(addrA), AddrFrom4(addrB)), true)
	equal(t, "the wrong host's state", s.Checksum(AddrFrom4(addrA), AddrFrom4([4]byte{10, 0, 0, 3})), ChecksumBad)
	equal(t, "the wrong host's", s.AcceptPartial(AddrFrom4(addrA), AddrFrom4([4]byte{10, 0, 0, 3})), false)
}

// The checksum of PutTCP is that of the definition, for contents that carry and for several lengths.
func TestTCPWriterAgainstNaive(t *testing.T) {
	for name, fill := range fills {
		for _, n := range []int{0, 1, 2, 3, 7, 8, 63, 1448} {
			for _, opt := range []int{0, 4, 12, 40} {
				b := make([]byte, 20+opt+n)
				fill(b)
				f := TCPFields{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]),
					binary.BigEndian.Uint32(b[8:]), TCPFlags(b[13]), binary.BigEndian.Uint16(b[14:]), binary.BigEndian.Uint16(b[18:]), uint16(len(b))}
				PutTCP(b, &f, 20+opt, Sum(b[20:], PseudoHeader(AddrFrom4(addrA), AddrFrom4(addrB), ProtocolTCP, 0)))
				if got, want := binary.BigEndian.Uint16(b[16:]), naiveTCP(b, addrA, addrB); got != want && got^want != 0xffff {
					t.Errorf("%s, %d+%d bytes: checksum %#04x, want %#04x", name, opt, n, got, want)
				}
			}
		}
	}
}

func TestTCPFlagsString(t *testing.T) {
	for f, want := range map[TCPFlags]string{0: "-", TCPSyn | TCPAck: "SA", TCPFin | TCPAck | TCPPsh: "FPA", 0xff: "FSRPAUEC"} {
		equal(t, "name", f.String(), want)
	}
}

// optionsOf parses a segment with these options.
func optionsOf(t testing.TB, digits string) TCP {
	b := make([]byte, 20, 60)
	b = append(b, unhex(t, digits)...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	b[12] = byte(len(b)/4) << 4
	var s TCP
	if err := s.Parse(b); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTCPOptions(t *testing.T) {
	for _, c := range []struct {
		options string
		want    TCPOptions
		ok      bool
	}{
		{"", TCPOptions{}, true},
		{"00", TCPOptions{}, true},
		{"01010101", TCPOptions{}, true},
		{"020405b4", TCPOptions{MSS: 1460}, true},
		{"01 020405b4 00 030303", TCPOptions{MSS: 1460}, true}, // nothing follows the end
		{"0402 0303 0e", TCPOptions{SACKPermitted: true, HasWindowScale: true, WindowScale: 14}, true},
		{"030320", TCPOptions{HasWindowScale: true, WindowScale: 32}, true},
		{"080a 00000001 00000002", TCPOptions{HasTimestamps: true, TSVal: 1, TSEcr: 2}, true},
		{"0101 050a 00000001 00000002", TCPOptions{SACKBlocks: 1, SACK: [4]SACKBlock{{1, 2}}}, true},
		{"fd04 1234 020405b4", TCPOptions{MSS: 1460}, true}, // an unknown one is skipped
		{"fd02", TCPOptions{}, true},
		// Impossible lengths.
		{"0200", TCPOptions{}, false},
		{"0201 020405b4", TCPOptions{}, false},
		{"0404 0000 020405b4", TCPOptions{MSS: 1460}, false},
		{"0203 05 030307", TCPOptions{HasWindowScale: true, WindowScale: 7}, false},
		{"0809 000000010000 00 020405b4", TCPOptions{MSS: 1460}, false},
		{"0502", TCPOptions{}, false},
		{"0506 00000001", TCPOptions{}, false},
		{"020405b4 0205", TCPOptions{MSS: 1460}, false},
		{"020405b4 010102", TCPOptions{MSS: 1460}, false},
		{"0228", TCPOptions{}, false},
		{"02040001 02040002", TCPOptions{MSS: 2}, true},
	} {
		var o TCPOptions
		s := optionsOf(t, c.options)
		if ok := s.ReadOptions(&o); ok != c.ok || o != c.want {
			t.Errorf("%s: %+v, %v", c.options, o, ok)
		}
	}
}

// Only SACK blocks that do not fit are left out.
func TestPutTCPOptionsRoom(t *testing.T) {
	for _, c := range []struct {
		o      TCPOptions
		blocks uint8
		length int
	}{
		{TCPOptions{SACKBlocks: 4}, 4, 36},
		{TCPOptions{HasTimestamps: true, SACKBlocks: 4}, 3, 40},
		{TCPOptions{MSS: 9, HasTimestamps: true, SACKPermitted: true, HasWindowScale: true, SACKBlocks: 4}, 2, 40},
	} {
		for i := range c.o.SACK {
			c.o.SACK[i] = SACKBlock{uint32(i), uint32(i + 1)}
		}
		b := make([]byte, 60)
		n, sum := PutTCPOptions(b[20:], &c.o)
		equal(t, "length", n, c.length)
		equal(t, "sum", Fold(sum), Fold(Sum(b[20:20+n], 0)))
		b[12] = byte((20+n)/4) << 4
		var s TCP
		equal(t, "error", s.Parse(b), nil)
		var got TCPOptions
		equal(t, "well formed", s.ReadOptions(&got), true)
		equal(t, "blocks", got.SACKBlocks, c.blocks)
		equal(t, "MSS", got.MSS, c.o.MSS)
		equal(t, "timestamps", got.HasTimestamps, c.o.HasTimestamps)
	}
}

// gopacket reads segments that PutTCP has written, and writes the same bytes.
func TestGopacketReadsWrittenTCP(t *testing.T) {
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
		PutTCP(b, &f, 20+n, Sum(b[20:], PseudoHeader(AddrFrom4(addrA), AddrFrom4(addrB), ProtocolTCP, uint16(len(b)))))

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

// TCP.Parse reads a segment that gopacket has written.
func TestParseGopacketsTCP(t *testing.T) {
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
	var s TCP
	if err := s.Parse(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	equal(t, "checksum", s.Checksum(AddrFrom4(addrA), AddrFrom4(addrB)), ChecksumGood)
	equal(t, "flags", s.Flags, TCPSyn|TCPAck|TCPCwr|TCPEce)
	equal(t, "payload", string(s.Payload), "text")
	var o TCPOptions
	equal(t, "well formed", s.ReadOptions(&o), true)
	equal(t, "options", o, TCPOptions{MSS: 0x2300, HasWindowScale: true, WindowScale: 9, HasTimestamps: true, TSVal: 5, TSEcr: 6, SACKPermitted: true})
}

// FuzzParseTCP gives any bytes to the parser of segments. A segment that is written with what was read must be read as
// the same.
func FuzzParseTCP(f *testing.F) {
	f.Add(unhex(f, "1234 0050 01020304 00000000 5002 faf0 0000 0000"))
	f.Add(unhex(f, "0050 1234 00000005 fffffffe 8018 0001 0000 beef 0101080a 11121314 21222324 6f6464"))
	f.Add(unhex(f, "1234 0050 01020304 00000000 a002 faf0 0000 0000 020405b4 0402 080a a1a2a3a4 00000000 01 030307"))
	f.Add(unhex(f, "1234 0050 01020304 00000000 f010 0000 0000 0000 0101 0522 0000000100000002 0000000300000004 0000000500000006 0000000700000008 0200 0101"))
	f.Add(unhex(f, "1234 0050 01020304 00000000 6002 faf0 0000 0000 0100 0205"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s TCP
		if s.Parse(b) != nil {
			return
		}
		if TCPHeaderLen+len(s.Options)+len(s.Payload) != len(b) || TCPHeaderLen+len(s.Options) != int(b[12]>>4)*4 {
			t.Errorf("%x: lengths", b)
		}
		var o TCPOptions
		s.ReadOptions(&o)
		if s.Timestamps && (!o.HasTimestamps || o.TSVal != s.TSVal || o.TSEcr != s.TSEcr) {
			t.Errorf("%x: aligned timestamps %d, %d; options %+v", b, s.TSVal, s.TSEcr, o)
		}
		// Written again, they read the same.
		again := make([]byte, MaxTCPHeaderLen)
		n, sum := PutTCPOptions(again[TCPHeaderLen:], &o)
		again = append(again[:TCPHeaderLen+n], s.Payload...)
		field := TCPFields{s.SrcPort, s.DstPort, s.Seq, s.Ack, s.Flags, s.Window, s.Urgent, 0}
		if len(again) > 0xffff {
			return
		}
		PutTCP(again, &field, TCPHeaderLen+n, Sum(again[TCPHeaderLen:], PseudoHeader(AddrFrom4(addrA), AddrFrom4(addrB), ProtocolTCP, uint16(len(again)))))
		if Fold(sum) != Fold(Sum(again[TCPHeaderLen:TCPHeaderLen+n], 0)) {
			t.Errorf("%x: sum of the options", b)
		}
		var r TCP
		if err := r.Parse(again); err != nil || r.Checksum(AddrFrom4(addrA), AddrFrom4(addrB)) != ChecksumGood {
			t.Fatalf("%x, written as %x: %v", b, again, err)
		}
		var p TCPOptions
		if !r.ReadOptions(&p) {
			t.Errorf("%x, written as %x: malformed", b, again)
		}
		if p.SACKBlocks < o.SACKBlocks { // blocks that did not fit
			for i := p.SACKBlocks; i < o.SACKBlocks; i++ {
				o.SACK[i] = SACKBlock{}
			}
			o.SACKBlocks = p.SACKBlocks
		}
		if p != o || !bytes.Equal(r.Payload, s.Payload) || r.Seq != s.Seq || r.Flags != s.Flags {
			t.Errorf("read %+v, again %+v", o, p)
		}
	})
}
