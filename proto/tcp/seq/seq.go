// Package seq is the arithmetic of TCP sequence numbers (RFC 9293, section
// 3.4): unsigned 32-bit numbers modulo 2^32, where "less" is defined only for two
// that are less than 2^31 apart.
//
// A [Number] is a struct, so that a comparison with < or an addition with +,
// which would be wrong where numbers wrap, every 4 GiB, does not compile. == compares
// for equality.
package seq

import "strconv"

// Number is a sequence number. The zero value is number 0.
type Number struct{ v uint32 }

// New is the number that a header field holds.
func New(v uint32) Number { return Number{v} }

// Uint32 is the number as a header field.
func (n Number) Uint32() uint32 { return n.v }

// Add is the number that many octets after n.
func (n Number) Add(octets uint32) Number { return Number{n.v + octets} }

// Back is the number that many octets before n.
func (n Number) Back(octets uint32) Number { return Number{n.v - octets} }

// From is how many octets n is after start, which must not be after n: from 0
// to 2^32-1.
func (n Number) From(start Number) uint32 { return n.v - start.v }

// Before reports whether n comes before o. Of two numbers exactly 2^31 apart each comes
// before the other.
func (n Number) Before(o Number) bool { return int32(n.v-o.v) < 0 }

// After reports whether n comes after o: o.Before(n).
func (n Number) After(o Number) bool { return int32(o.v-n.v) < 0 }

// AtOrBefore reports whether n is o or comes before it.
func (n Number) AtOrBefore(o Number) bool { return n == o || n.Before(o) }

// AtOrAfter reports whether n is o or comes after it.
func (n Number) AtOrAfter(o Number) bool { return n == o || n.After(o) }

// InWindow reports whether n is one of the size numbers that begin with first.
// It is exact for every size, also above 2^31.
func (n Number) InWindow(first Number, size uint32) bool { return n.v-first.v < size }

// Max is the later of the two.
func Max(a, b Number) Number {
	if a.Before(b) {
		return b
	}
	return a
}

// Min is the earlier of the two.
func Min(a, b Number) Number {
	if b.Before(a) {
		return b
	}
	return a
}

func (n Number) String() string { return strconv.FormatUint(uint64(n.v), 10) }
