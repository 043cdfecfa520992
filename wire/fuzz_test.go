package wire

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"
)

// Each target gives any bytes to a parser. If they are accepted, no accessor may panic, and a header that is
// written with the values of the accessors must have the bytes that were read.

func FuzzParseEthernet(f *testing.F) {
	f.Add(unhex(f, "02000000000a 02000000000b 0800 4500"))
	f.Add(unhex(f, "02000000000a 02000000000b 8100 6064 0806 aabb"))
	f.Add(unhex(f, "02000000000a 02000000000b 8100 0001 8100 0002 0800"))
	f.Add(unhex(f, "02000000000a 02000000000b 88a8 0001"))
	f.Add(unhex(f, "02000000000a 02000000000b 8100 00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEthernet(b)
		if err != nil {
			return
		}
		again := make([]byte, EthernetHeaderLen)
		PutEthernet(again, e.Dst, e.Src, e.Type)
		if e.Tagged {
			again = append(again[:12], 0x81, 0, byte(e.TCI>>8), byte(e.TCI))
			again = binary.BigEndian.AppendUint16(again, uint16(e.Type))
		}
		if again = append(again, e.Payload...); !bytes.Equal(again, b) {
			t.Errorf("read %x, wrote %x", b, again)
		}
	})
}

func FuzzParseARP(f *testing.F) {
	f.Add(unhex(f, "0001 0800 06 04 0001 02000000000a 0a000001 000000000000 0a000002"))
	f.Add(unhex(f, "0001 86dd 06 10 0001 02000000000a 0a000001 000000000000 0a000002"))
	f.Add(unhex(f, "0001 0800 06 04 0002"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseARP(b)
		if err != nil {
			return
		}
		again := make([]byte, ARPLen)
		PutARP(again, ARPFields{a.Op(), a.SenderLink(), a.SenderAddr(), a.TargetLink(), a.TargetAddr()})
		if !bytes.Equal(again, b[:ARPLen]) {
			t.Errorf("read %x, wrote %x", b, again)
		}
	})
}

func FuzzParseIPv4(f *testing.F) {
	f.Add(unhex(f, ipv4Example))
	short := unhex(f, "4500 0017 1234 2001 4011 0000 0a000001 0a000002 aabbcc 0000")
	sealIPv4(short)
	f.Add(short)
	options := unhex(f, "4600 0018 0000 0000 4011 0000 0a000001 0a000002 94040000")
	sealIPv4(options)
	f.Add(options)
	f.Add(unhex(f, "4f00 003c 0000 0000 4011 0000 0a000001 0a000002"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= IPv4HeaderLen && int(b[0]&15)*4 <= len(b) && b[0]&15 >= 5 && len(b)%2 == 0 {
			b = bytes.Clone(b)
			sealIPv4(b) // otherwise nearly all inputs fail on the checksum
		}
		p, err := parseIPv4(b)
		if err != nil {
			return
		}
		header := len(p.Packet) - len(p.Payload)
		if len(p.Packet) != p.TotalLen() || header != int(b[0]&15)*4 {
			t.Errorf("%x: lengths %d, %d, %d", b, len(p.Packet), p.TotalLen(), header)
		}
		q, err := quoting(b).Quoted()
		if err != nil {
			t.Fatalf("%x: as a quote: %v", b, err)
		}
		if q.Packet, q.Payload = q.Packet[:len(p.Packet)], q.Payload[:len(p.Payload)]; !reflect.DeepEqual(q, p) {
			t.Errorf("%x: as a quote: %+v", b, q)
		}
		if header != IPv4HeaderLen || b[6]&0x80 != 0 || p.Fragment != 0 { // Put writes neither options, the reserved flag nor fragments
			return
		}
		again := make([]byte, IPv4HeaderLen)
		PutIPv4(again, IPv4Fields{TOS: p.TOS, TTL: b[8], Protocol: p.Protocol, DontFragment: b[6]&0x40 != 0,
			TotalLen: uint16(p.TotalLen()), ID: binary.BigEndian.Uint16(b[4:]), Src: p.Src, Dst: p.Dst})
		if !bytes.Equal(again, b[:IPv4HeaderLen]) {
			t.Errorf("read %x, wrote %x", b[:IPv4HeaderLen], again)
		}
	})
}

func FuzzQuoted(f *testing.F) {
	f.Add(unhex(f, ipv4Example+"12340007"))
	f.Add(unhex(f, ipv4Example+"1234"))
	f.Add(unhex(f, "4f00 0000 0000 0000 0011 0000 0a000001 0a000002"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := quoting(b).Report()
		if err != nil {
			return
		}
		if src, dst, ok := e.Ports(); ok {
			if got := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst); !bytes.Equal(got, e.Transport[:4]) {
				t.Errorf("%x: ports %x", b, got)
			}
		}
	})
}

func FuzzParseICMPv4(f *testing.F) {
	f.Add(unhex(f, "0800 0000 1234 0001 70696e67"))
	f.Add(unhex(f, "0303 0000 00000000"+ipv4Example+"0123456789abcdef"))
	f.Add(unhex(f, "0304 0000 00000578 45"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 {
			b = bytes.Clone(b)
			b[2], b[3] = 0, 0
			binary.BigEndian.PutUint16(b[2:], ^naiveSum(b, 0))
		}
		m, err := ParseICMPv4(b)
		if err != nil {
			if len(b) >= ICMPv4HeaderLen {
				t.Errorf("%x: %v", b, err)
			}
			return
		}
		again := make([]byte, len(b))
		switch {
		case m.Type() <= ICMPEchoRequest && m.Code() == 0 && !m.IsError():
			PutEcho(again, EchoFields{m.Type(), m.ID(), m.Seq()}, m.Payload())
		case m.Type() == ICMPUnreachable && m.ID() == 0 && len(m) <= MaxICMPv4ErrorLen:
			q, err := m.Quoted()
			if err != nil {
				return
			}
			PutICMPv4Error(again, ICMPUnreachable, m.Code(), uint32(m.NextHopMTU()), q.Packet)
		default:
			m.Quoted()
			return
		}
		if !bytes.Equal(again, b) {
			t.Errorf("read %x, wrote %x", b, again)
		}
	})
}

func FuzzParseUDP(f *testing.F) {
	f.Add(unhex(f, "1234 0007 000a 7133 6869"))
	f.Add(unhex(f, "1234 0007 0008 0000 00000000"))
	f.Add(unhex(f, "1234 0007 0007 0000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := ParseUDP(b, AddrFrom4(addrA), AddrFrom4(addrB), false)
		if err != nil && err != ErrChecksum {
			return
		}
		field := binary.BigEndian.Uint16(b[6:])
		_, partial := ParseUDP(b, AddrFrom4(addrA), AddrFrom4(addrB), true)
		if half := Fold(PseudoHeader(AddrFrom4(addrA), AddrFrom4(addrB), ProtocolUDP, uint16(UDPHeaderLen+len(u.Payload)))); (err == nil || field == half) != (partial == nil) {
			t.Errorf("%x: %v, on a link with partial checksums %v", b, err, partial)
		}
		again := make([]byte, UDPHeaderLen+len(u.Payload))
		PutUDPCopy(again, &UDPFlow{AddrFrom4(addrA), AddrFrom4(addrB), u.SrcPort, u.DstPort}, u.Payload)
		if _, err := ParseUDP(again, AddrFrom4(addrA), AddrFrom4(addrB), false); err != nil {
			t.Errorf("%x: written checksum is not good", again)
		}
		if err == nil && field != 0 && !bytes.Equal(again, b[:len(again)]) {
			t.Errorf("read %x, wrote %x", b[:len(again)], again)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	f.Add(unhex(f, "01 00 0005 01020304 a1a2a3a4 68656c6c6f 0000"))
	f.Add(unhex(f, "01 00 0000 00000001 00000002"))
	f.Add(unhex(f, "01 01 0000 00000001 00000002"))
	f.Add(unhex(f, "02 00 0000 00000001 00000002"))
	f.Add(unhex(f, "01 00 ffff 00000001 00000002 00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMessage(b)
		if err != nil {
			return
		}
		again := make([]byte, MessageHeaderLen)
		PutMessage(again, m.Dst(), m.Src(), len(m.Payload()))
		if again = append(again, m.Payload()...); !bytes.Equal(again, b[:len(again)]) {
			t.Errorf("read %x, wrote %x", b, again)
		}
	})
}

// FuzzChecksum compares the fast sums with the naive one.
func FuzzChecksum(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0xff}, 71), uint8(3))
	f.Add([]byte{0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7}, uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		want := naiveSum(b, 0)
		if got := Fold(Sum(b, 0)); got != want {
			t.Errorf("%x: Sum %#04x, want %#04x", b, got, want)
		}
		dst := make([]byte, len(b))
		if got := Fold(SumCopy(dst, b, 0)); got != want || !bytes.Equal(dst, b) {
			t.Errorf("%x: SumCopy %#04x, want %#04x; copy %x", b, got, want, dst)
		}
		k := min(int(cut), len(b))
		sum, rest := Sum(b[:k], 0), Sum(b[k:], 0)
		if k%2 == 0 {
			sum = Sum(b[k:], sum)
		} else {
			sum = SumOdd(sum, rest)
		}
		if got := Fold(sum); got != want {
			t.Errorf("%x cut at %d: %#04x, want %#04x", b, k, got, want)
		}
	})
}
