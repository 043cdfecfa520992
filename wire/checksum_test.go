package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// naiveSum is the sum of RFC 1071, section 4.1: it adds one big-endian word at a time, and its carry.
func naiveSum(b []byte, sum uint16) uint16 {
	add := func(w uint16) {
		s := uint32(sum) + uint32(w)
		sum = uint16(s) + uint16(s>>16)
	}
	for ; len(b) >= 2; b = b[2:] {
		add(uint16(b[0])<<8 | uint16(b[1]))
	}
	if len(b) == 1 {
		add(uint16(b[0]) << 8)
	}
	return sum
}

// fills write contents of which the sums carry in different ways.
var fills = map[string]func(b []byte){
	"zero": func(b []byte) { clear(b) },
	"ones": func(b []byte) {
		for i := range b {
			b[i] = 0xff
		}
	},
	"one at the end": func(b []byte) {
		clear(b)
		if len(b) > 0 {
			b[len(b)-1] = 1
		}
	},
	"ones, then one": func(b []byte) { // a carry that ripples through every bit
		for i := range b {
			b[i] = 0xff
		}
		if len(b) >= 8 {
			copy(b[len(b)-8:], []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	},
	"random": func(b []byte) {
		r := rand.New(rand.NewPCG(1, uint64(len(b))))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	},
}

// Sum and SumCopy at each length up to 200 and each alignment, for contents with and without carries and for initial
// sums, some of which overflow.
func TestSumAgainstNaive(t *testing.T) {
	const maxLen = 200
	buf, dst := make([]byte, maxLen+8), make([]byte, maxLen+16)
	initials := [][]byte{nil, {0x12, 0x34}, bytes.Repeat([]byte{0xff}, 64)}
	for name, fill := range fills {
		for align := range 8 {
			for n := range maxLen + 1 {
				b := buf[align : align+n]
				fill(b)
				for _, in := range initials {
					want := naiveSum(b, naiveSum(in, 0))
					init := Sum(in, 0)
					if got := Fold(Sum(b, init)); got != want {
						t.Fatalf("%s, align %d, len %d, initial %x: Sum %#04x, want %#04x", name, align, n, in, got, want)
					}
					clear(dst)
					d := dst[7-align : 7-align+n+1]
					d[n] = 0xa5
					if got := Fold(SumCopy(d, b, init)); got != want {
						t.Fatalf("%s, align %d, len %d, initial %x: SumCopy %#04x, want %#04x", name, align, n, in, got, want)
					}
					if !bytes.Equal(d[:n], b) || d[n] != 0xa5 {
						t.Fatalf("%s, align %d, len %d: SumCopy has not copied the bytes, or one byte more", name, align, n)
					}
				}
			}
		}
	}
}

// The sums of large packets.
func TestSumLarge(t *testing.T) {
	for _, n := range []int{1400, 1472, 9000, 65507, 65535} {
		for name, fill := range fills {
			b := make([]byte, n)
			fill(b)
			want := naiveSum(b, 0)
			if got := Fold(Sum(b, 0)); got != want {
				t.Errorf("%d bytes %s: %#04x, want %#04x", n, name, got, want)
			}
		}
	}
}

// With the largest initial sum the first addition carries, and the addition of the carries at the end carries again.
func TestSumCarryOfCarry(t *testing.T) {
	ones := bytes.Repeat([]byte{0xff}, 8)
	for _, init := range []uint64{^uint64(0), ^uint64(0) - 1, 1, 0} {
		for n := range 5 {
			b := bytes.Repeat(ones, n)
			want := naiveSum(b, Fold(init))
			if got := Fold(Sum(b, init)); got != want {
				t.Errorf("initial %#x, %d words of ones: %#04x, want %#04x", init, n, got, want)
			}
		}
	}
}

func TestSumCopySameMemory(t *testing.T) {
	b := make([]byte, 77)
	fills["random"](b)
	want := bytes.Clone(b)
	if got := SumCopy(b, b, 0); Fold(got) != naiveSum(want, 0) || !bytes.Equal(b, want) {
		t.Error("SumCopy onto itself changed bytes or sum")
	}
}

func TestSumCopyShortDestinationPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	SumCopy(make([]byte, 3), make([]byte, 4), 0)
}

// The sum of a packet in two parts, cut at each offset, even or odd.
func TestSumOddParts(t *testing.T) {
	b := make([]byte, 99)
	for name, fill := range fills {
		fill(b)
		want := naiveSum(b, 0)
		for cut := range len(b) + 1 {
			sum := Sum(b[:cut], 0)
			if cut%2 == 0 {
				sum = Sum(b[cut:], sum)
			} else {
				sum = SumOdd(sum, Sum(b[cut:], 0))
			}
			if got := Fold(sum); got != want {
				t.Fatalf("%s, cut at %d: %#04x, want %#04x", name, cut, got, want)
			}
		}
	}
}

// The example of RFC 1071, section 3.
func TestSumRFC1071(t *testing.T) {
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}
	if got := Fold(Sum(b, 0)); got != 0xddf2 {
		t.Errorf("sum %#04x, want 0xddf2", got)
	}
}

func TestFold(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	in := []uint64{0, 1, 0xffff, 0x10000, 0xffffffff, 1 << 32, 0xffff0000ffff0000, 1 << 63, ^uint64(0), ^uint64(0) - 1,
		0x00000001ffffffff, 0xffffffff00000001, 0x0000fffe00000001}
	for range 10000 {
		in = append(in, r.Uint64(), r.Uint64()&r.Uint64()&r.Uint64(), r.Uint64()|r.Uint64()|r.Uint64())
	}
	for _, v := range in {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		if got, want := Fold(v), naiveSum(b[:], 0); got != want {
			t.Fatalf("Fold(%#x) = %#04x, want %#04x", v, got, want)
		}
	}
}

func TestPseudoHeader4(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 1000 {
		var src, dst [4]byte
		binary.BigEndian.PutUint32(src[:], r.Uint32())
		binary.BigEndian.PutUint32(dst[:], r.Uint32())
		proto, length := uint8(r.Uint32()), uint16(r.Uint32())
		ph := append(append(append([]byte{}, src[:]...), dst[:]...), 0, proto, byte(length>>8), byte(length))
		if got, want := Fold(PseudoHeader(AddrFrom4(src), AddrFrom4(dst), proto, length)), naiveSum(ph, 0); got != want {
			t.Fatalf("%x: %#04x, want %#04x", ph, got, want)
		}
	}
}
