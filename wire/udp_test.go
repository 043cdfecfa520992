package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

var flowAB = UDPFlow{Src: AddrFrom4(addrA), Dst: AddrFrom4(addrB), SrcPort: 0x1234, DstPort: 7}

// naiveUDP is the right checksum field of b from the definition in RFC 768.
func naiveUDP(b []byte, src, dst [4]byte) uint16 {
	all := append(append(append([]byte{}, src[:]...), dst[:]...), 0, 17, byte(len(b)>>8), byte(len(b)))
	all = append(all, b...)
	all[12+6], all[12+7] = 0, 0
	c := ^naiveSum(all, 0)
	if c == 0 {
		c = 0xffff
	}
	return c
}

func TestUDPGolden(t *testing.T) {
	b := make([]byte, 10)
	equal(t, "length", PutUDPCopy(b, &flowAB, []byte("hi")), 10)
	// ~(0a00+0001+0a00+0002+0011+000a + 1234+0007+000a + 6869)
	wantBytes(t, b, "1234 0007 000a 7133 6869")
}

func TestUDPWritersAgainstNaive(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7, 8, 9, 31, 32, 33, 64, 1471, 1472, MaxUDPPayload} {
		for name, fill := range fills {
			payload := make([]byte, n)
			fill(payload)
			b := make([]byte, UDPHeaderLen+n)
			PutUDPCopy(b, &flowAB, payload)
			if got, want := binary.BigEndian.Uint16(b[6:]), naiveUDP(b, addrA, addrB); got != want {
				t.Errorf("%d bytes %s: checksum %#04x, want %#04x", n, name, got, want)
			}
			if !bytes.Equal(b[UDPHeaderLen:], payload) {
				t.Errorf("%d bytes %s: payload differs", n, name)
			}
			inPlace := make([]byte, len(b))
			copy(inPlace[UDPHeaderLen:], payload)
			PutUDPInPlace(inPlace, &flowAB)
			if !bytes.Equal(inPlace, b) {
				t.Errorf("%d bytes %s: in place %x, copied %x", n, name, inPlace[:8], b[:8])
			}
			u, err := ParseUDP(append(b, 0xee), AddrFrom4(addrA), AddrFrom4(addrB), false) // and a byte of padding
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(u.Payload, payload) {
				t.Errorf("%d bytes %s: read %d bytes, or other ones", n, name, len(u.Payload))
			}
			equal(t, "capacity", cap(u.Payload), n)
		}
	}
}

// payloadFor returns two bytes of payload for which the checksum field of the datagram of flowAB is want.
func payloadFor(t *testing.T, want uint16) []byte {
	t.Helper()
	b := make([]byte, 10)
	for v := range 1 << 16 {
		binary.BigEndian.PutUint16(b[8:], uint16(v))
		PutUDPInPlace(b, &flowAB)
		if binary.BigEndian.Uint16(b[6:]) == want {
			return b[8:]
		}
	}
	t.Fatalf("no payload has the checksum %#04x", want)
	return nil
}

// A checksum that computes to 0 is sent as 0xffff (RFC 768), and is good.
func TestUDPChecksumZero(t *testing.T) {
	b := make([]byte, 10)
	PutUDPCopy(b, &flowAB, payloadFor(t, 0xffff))
	equal(t, "field", binary.BigEndian.Uint16(b[6:]), 0xffff)
	wantChecksum(t, b, true, true)
	for v := range 1 << 16 { // and no datagram at all has a field of 0
		binary.BigEndian.PutUint16(b[8:], uint16(v))
		PutUDPInPlace(b, &flowAB)
		if b[6] == 0 && b[7] == 0 {
			t.Fatalf("payload %#04x: field 0", v)
		}
	}
}

// wantChecksum reads a datagram from addrA to addrB on a link without partial checksums and
// on one with.
func wantChecksum(t *testing.T, b []byte, complete, partial bool) {
	t.Helper()
	for i, want := range []bool{complete, partial} {
		if _, err := ParseUDP(b, AddrFrom4(addrA), AddrFrom4(addrB), i == 1); (err == nil) != want || err != nil && err != ErrChecksum {
			t.Errorf("partial %t: %v", i == 1, err)
		}
	}
}

func TestUDPChecksumStates(t *testing.T) {
	b := make([]byte, 12)
	PutUDPCopy(b, &flowAB, []byte("data"))
	wantChecksum(t, b, true, true)
	if u, err := ParseUDP(b, AddrFrom4(addrA), AddrFrom4([4]byte{10, 0, 0, 3}), true); err != ErrChecksum || string(u.Payload) != "data" {
		t.Errorf("to the wrong host: %v, payload %q", err, u.Payload)
	}
	b[8] ^= 0x10
	wantChecksum(t, b, false, false)

	binary.BigEndian.PutUint16(b[6:], 0) // the sender has computed none
	wantChecksum(t, b, true, true)

	// Linux: uh->check = ~csum_tcpudp_magic(saddr, daddr, len, IPPROTO_UDP, 0)
	partial := naiveSum([]byte{10, 0, 0, 1, 10, 0, 0, 2, 0, 17, 0, 12}, 0)
	binary.BigEndian.PutUint16(b[6:], partial)
	wantChecksum(t, b, false, true)
	binary.BigEndian.PutUint16(b[6:], ^partial)
	wantChecksum(t, b, false, false)
}

// A checksum field of 0 is wrong over IPv6, also if the sum would come to 0.
func TestUDPNoChecksumOverIPv6(t *testing.T) {
	src, dst := AddrFrom16(addr6A), AddrFrom16(addr6B)
	b := make([]byte, 10)
	PutUDPCopy(b, &UDPFlow{Src: src, Dst: dst, SrcPort: 1, DstPort: 2}, []byte{0, 0})
	copy(b[8:], b[6:8]) // the sum of all but the checksum is now 0xffff
	PutUDPCopy(b, &UDPFlow{Src: src, Dst: dst, SrcPort: 1, DstPort: 2}, b[8:])
	if check := binary.BigEndian.Uint16(b[6:]); check != 0xffff {
		t.Fatalf("checksum %04x", check)
	}
	for _, partial := range []bool{false, true} {
		if _, err := ParseUDP(b, src, dst, partial); err != nil {
			t.Errorf("partial %t: %v", partial, err)
		}
	}
	b[6], b[7] = 0, 0
	for _, partial := range []bool{false, true} {
		if _, err := ParseUDP(b, src, dst, partial); err != ErrChecksum {
			t.Errorf("no checksum, partial %t: %v", partial, err)
		}
	}
}

// A datagram whose right checksum is equal to the sum of the pseudo-header is good. If one bit of it is changed, the
// same field is a partial checksum.
func TestUDPGoodChecksumEqualToPartial(t *testing.T) {
	partial := naiveSum([]byte{10, 0, 0, 1, 10, 0, 0, 2, 0, 17, 0, 10}, 0)
	b := make([]byte, 10)
	PutUDPCopy(b, &flowAB, payloadFor(t, partial))
	wantChecksum(t, b, true, true)
	b[8] ^= 1
	wantChecksum(t, b, false, true)
}

func TestUDPErrors(t *testing.T) {
	for _, c := range []struct {
		b    string
		want error
	}{
		{"1234 0007 0008 00", ErrTruncated},
		{"1234 0007 0000 0000", ErrLength},
		{"1234 0007 0007 0000", ErrLength},
		{"1234 0007 0009 0000", ErrTruncated},
		{"1234 0007 0008 0000", nil},
		{"1234 0007 0008 0000 00000000", nil},
	} {
		u, err := ParseUDP(unhex(t, c.b), AddrFrom4(addrA), AddrFrom4(addrB), false)
		if err != c.want {
			t.Errorf("%s: %v, want %v", c.b, err, c.want)
		}
		if err == nil {
			equal(t, "payload", len(u.Payload), 0)
			equal(t, "src", u.SrcPort, 0x1234)
			equal(t, "dst", u.DstPort, 7)
		}
	}
}

func TestPutUDPTooLongPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	PutUDPInPlace(make([]byte, 0x10000), &flowAB)
}

func TestChecksumStateString(t *testing.T) {
	for s, want := range map[ChecksumState]string{ChecksumBad: "bad", ChecksumGood: "good", ChecksumPartial: "partial"} {
		equal(t, "name", s.String(), want)
	}
}
