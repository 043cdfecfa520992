package wire

import (
	"encoding/binary"
	"math/bits"
)

// The Internet checksum (RFC 1071) is the ones-complement sum of 16-bit
// big-endian words. Three of its properties make it fast:
//
//   - Words may be added in any width, because 2^16 = 1 modulo 2^16-1: a 64-bit
//     word is four 16-bit words at once, and a carry out of the top is added
//     at the bottom (the end-around carry). The sum is folded to 16 bits at the end.
//     The carries, too, are added at the end: the loop counts them in a word of their
//     own, so that it needs one add with carry for each 8 bytes.
//   - The sum does not depend on byte order. Swapping the two bytes of every
//     word swaps the two bytes of the sum (RFC 1071, section 2(B)). So the bytes
//     are loaded as little-endian words, which costs nothing on the usual
//     machines and is right on all of them, and only [Fold] swaps, once.
//   - The sum of a concatenation is the sum of the sums, as long as each part
//     but the last is of even length (see [SumOdd] for the rest).
//
// Throughout this package an unfolded sum is a uint64 that only Sum, SumCopy,
// SumOdd and PseudoHeader make and only they and Fold understand. Zero is the
// sum of nothing.

// Sum adds b to an unfolded sum. An odd last byte counts as if a zero byte
// followed it.
func Sum(b []byte, initial uint64) uint64 {
	n := len(b)
	if n < 8 {
		sum, carry := bits.Add64(initial, short(b), 0)
		return sum + carry
	}
	sum, carries, i := initial, uint64(0), 0
	for ; i <= n-32; i += 32 {
		p := (*[32]byte)(b[i:])
		s, c := bits.Add64(sum, binary.LittleEndian.Uint64(p[0:]), 0)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[8:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[24:]), c)
		carries, _ = bits.Add64(carries, 0, c)
		sum = s
	}
	for ; i <= n-8; i += 8 {
		s, c := bits.Add64(sum, binary.LittleEndian.Uint64(b[i:]), 0)
		carries, _ = bits.Add64(carries, 0, c)
		sum = s
	}
	// What is left, 0 to 7 bytes, is the end of the last 8.
	rest := binary.LittleEndian.Uint64(b[n-8:]) >> uint(64-8*(n-i))
	sum, c := bits.Add64(sum, rest, 0)
	sum, c = bits.Add64(sum, carries, c)
	return sum + c // if it carried, sum is small: no carry out of this one
}

// short loads 0 to 7 bytes as one little-endian word.
func short(b []byte) uint64 {
	n := len(b)
	switch {
	case n >= 4: // two loads that may overlap
		lo := uint64(binary.LittleEndian.Uint32(b))
		hi := uint64(binary.LittleEndian.Uint32(b[n-4:]))
		return lo | hi<<uint(8*(n-4)&31)
	case n >= 2:
		lo := uint64(binary.LittleEndian.Uint16(b))
		hi := uint64(b[n-1])
		return lo | hi<<uint(8*(n-1)&31)
	case n == 1:
		return uint64(b[0])
	}
	return 0
}

// SumCopy copies src to dst, which must be at least as long, and adds the bytes
// to an unfolded sum in the same pass. dst and src may be the same memory but
// must not overlap otherwise.
func SumCopy(dst, src []byte, initial uint64) uint64 {
	if len(dst) < len(src) {
		panic("BUG: wire: SumCopy to a shorter slice")
	}
	n := len(src)
	dst = dst[:n]
	if n < 8 {
		sum, carry := bits.Add64(initial, short(src), 0)
		copy(dst, src)
		return sum + carry
	}
	sum, carries, i := initial, uint64(0), 0
	for ; i <= n-32; i += 32 {
		p, q := (*[32]byte)(src[i:]), (*[32]byte)(dst[i:])
		w0 := binary.LittleEndian.Uint64(p[0:])
		w1 := binary.LittleEndian.Uint64(p[8:])
		w2 := binary.LittleEndian.Uint64(p[16:])
		w3 := binary.LittleEndian.Uint64(p[24:])
		s, c := bits.Add64(sum, w0, 0)
		s, c = bits.Add64(s, w1, c)
		s, c = bits.Add64(s, w2, c)
		s, c = bits.Add64(s, w3, c)
		carries, _ = bits.Add64(carries, 0, c)
		sum = s
		binary.LittleEndian.PutUint64(q[0:], w0)
		binary.LittleEndian.PutUint64(q[8:], w1)
		binary.LittleEndian.PutUint64(q[16:], w2)
		binary.LittleEndian.PutUint64(q[24:], w3)
	}
	for ; i <= n-8; i += 8 {
		w := binary.LittleEndian.Uint64(src[i:])
		binary.LittleEndian.PutUint64(dst[i:], w)
		s, c := bits.Add64(sum, w, 0)
		carries, _ = bits.Add64(carries, 0, c)
		sum = s
	}
	last := binary.LittleEndian.Uint64(src[n-8:])
	binary.LittleEndian.PutUint64(dst[n-8:], last)
	sum, c := bits.Add64(sum, last>>uint(64-8*(n-i)), 0)
	sum, c = bits.Add64(sum, carries, c)
	return sum + c
}

// SumOdd adds to sum the sum of a part that begins at an odd offset of the whole. part
// is Sum(b, 0) of its bytes b. Each byte was summed in the wrong half of its word, so
// SumOdd swaps the bytes of part (RFC 1071, section 2(B)).
func SumOdd(sum, part uint64) uint64 {
	s, carry := bits.Add64(sum, bits.RotateLeft64(part, 8), 0)
	return s + carry
}

// Fold reduces an unfolded sum to the 16-bit ones-complement sum. Its
// complement is what a checksum field holds:
//
//	binary.BigEndian.PutUint16(field, ^Fold(sum))
//
// The fold of bytes that include their own correct checksum is 0xffff. It is 0
// only if all bytes were zero.
func Fold(sum uint64) uint16 {
	// A sum plus its own rotation has in its upper half the folded value:
	// a:b + b:a = (a+b+carry):..., the end-around carry included.
	s32 := uint32((sum + bits.RotateLeft64(sum, 32)) >> 32)
	s16 := uint16((s32 + bits.RotateLeft32(s32, 16)) >> 16)
	return bits.ReverseBytes16(s16)
}

// PseudoHeader is the unfolded sum of the pseudo-header that UDP and TCP, and over IPv6
// ICMPv6, include in their checksums (RFC 768; RFC 9293, section 3.1; RFC 8200, section 8.1).
// length is that of the transport header and its payload in bytes. An IPv4 address is summed
// as the mapped one, whose ffff is the zero of ones-complement sums.
func PseudoHeader(src, dst Addr, proto uint8, length uint16) uint64 {
	return sumAddrs(src, dst, uint64(proto)<<8+uint64(bits.ReverseBytes16(length)))
}

// sumAddrs is the unfolded sum of two addresses and of a small one.
func sumAddrs(src, dst Addr, small uint64) uint64 {
	sum, c := bits.Add64(src.unzoned(), src.lo, 0)
	sum, c = bits.Add64(sum, dst.unzoned(), c)
	sum, c = bits.Add64(sum, dst.lo, c)
	sum, c = bits.Add64(sum, small, c)
	return sum + c // if it carried, sum is at most small: no carry out of this one
}
