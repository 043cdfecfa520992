package tcp

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// isnTick is the clock of initial sequence numbers (RFC 9293, section 3.4.1).
const isnTick = 4 * time.Microsecond

// isn is the initial sequence number of a connection that begins now (RFC
// 6528): M + F(both ends, secret). For one pair of ends the numbers rise with
// the clock, so that a new incarnation begins after the last. From the numbers of one
// pair those of another cannot be computed.
func (t *Table) isn(now Time, id tuple) seq.Number {
	m := uint32(uint64(now) / uint64(isnTick))
	return seq.New(m + uint32(t.hashed(useISN, &id)))
}

// timestampOffset is added to the clock in the timestamps of a pair of ends, milliseconds
// (RFC 7323, section 5.4). It hides how long the host has been up, and is the same for each
// incarnation of the pair, as RFC 6191 requires.
func (t *Table) timestampOffset(id tuple) uint32 {
	return uint32(t.hashed(useTimestamp, &id))
}

// sipHash is SipHash-2-4 (Aumasson and Bernstein, 2012) of whole 64-bit words:
// a keyed hash for short inputs, whose output does not reveal the key. RFC 6528 leaves
// the choice of F open; MD5, its example, takes ten times as long. hash/maphash
// guarantees neither a pseudo-random function nor the same result in two runs, and the
// engine is deterministic.
type sipHash struct{ k0, k1 uint64 }

func newSipHash(key [16]byte) sipHash {
	return sipHash{binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])}
}

func (h sipHash) sum(words ...uint64) uint64 {
	v0, v1 := h.k0^0x736f6d6570736575, h.k1^0x646f72616e646f6d
	v2, v3 := h.k0^0x6c7967656e657261, h.k1^0x7465646279746573
	round := func() {
		v0 += v1
		v2 += v3
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 = bits.RotateLeft64(v0, 32)
		v2 += v1
		v0 += v3
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 = bits.RotateLeft64(v2, 32)
	}
	for _, m := range words {
		v3 ^= m
		round()
		round()
		v0 ^= m
	}
	// The last word holds the length in bytes in its top byte and, since all
	// words are whole, nothing else.
	m := uint64(len(words)*8) << 56
	v3 ^= m
	round()
	round()
	v0 ^= m
	v2 ^= 0xff
	for range 4 {
		round()
	}
	return v0 ^ v1 ^ v2 ^ v3
}

// What the secret is used for, one word each, so that no two uses ever hash the
// same input.
const (
	useISN uint64 = iota + 1
	useTimestamp
	useCookie
	usePort
	usePortStep
	useChallenge
	useShare
)
