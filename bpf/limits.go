package bpf

import (
	"fmt"
	"math"
	"time"
)

// Short names of the types that bpf2go makes; see src/limit.h.
type (
	Limit  = MuxUnetLimit
	Bucket = MuxUnetBucket
)

// BucketUnit is the units of a [Bucket] in a packet or byte: its rate a second is in units a nanosecond.
const BucketUnit = 1_000_000_000 // UNIT

// MaxBucket is the most packets or bytes that a bucket can hold: the programs add up to twice of it in 64 bits.
const MaxBucket = math.MaxInt64 / BucketUnit

// NoUser is the Uid of a Limit of an endpoint whose user has none.
const NoUser = math.MaxUint32 // UNET_NO_USER

// NewBucket is a full bucket of burst packets or bytes, which gets rate of them a second; rate 0: no limit.
func NewBucket(rate, burst int64) Bucket {
	if rate == 0 {
		return Bucket{}
	}
	if rate < 0 || burst <= 0 || burst > MaxBucket {
		panic(fmt.Sprintf("BUG: a bucket of %d with %d a second", burst, rate))
	}
	full := uint64(burst) * BucketUnit
	return Bucket{Rate: uint64(rate), Full: full, FillNs: (full-1)/uint64(rate) + 1, Level: full}
}

// Change is b with the rate and size of other. It keeps what it has, up to the new size.
func (b MuxUnetBucket) Change(other Bucket) Bucket {
	if b.Rate != 0 {
		other.Level = min(b.Level, other.Full)
	}
	return other
}

// FullAt is the time, in the programs' clock, from which a limit that was filled at last is full, if nothing is taken.
func (l *MuxUnetLimit) FullAt() time.Duration {
	return time.Duration(l.Last + max(l.Packets.FillNs, l.Bytes.FillNs))
}

// Take takes up to n frames of a number of bytes from a limit, at a time of the programs' clock, as admit in src/limit.h does for
// one frame after another. It returns how many there was enough for.
func (l *MuxUnetLimit) Take(n, size int, now time.Duration) int {
	if elapsed := uint64(now) - l.Last; int64(elapsed) > 0 {
		l.Packets.fill(elapsed)
		l.Bytes.fill(elapsed)
		l.Last = uint64(now)
	}
	n = min(n, l.Packets.holds(1), l.Bytes.holds(size))
	l.Packets.take(n)
	l.Bytes.take(n * size)
	return n
}

// fill adds what the rate gives in a number of nanoseconds.
func (b *MuxUnetBucket) fill(elapsed uint64) {
	if elapsed >= b.FillNs {
		b.Level = b.Full
		return
	}
	b.Level = min(b.Level+elapsed*b.Rate, b.Full)
}

// holds is how many times the bucket has so many packets or bytes.
func (b *MuxUnetBucket) holds(size int) int {
	if b.Rate == 0 {
		return math.MaxInt
	}
	return int(b.Level / BucketUnit / uint64(size))
}

func (b *MuxUnetBucket) take(n int) {
	if b.Rate != 0 {
		b.Level -= uint64(n) * BucketUnit
	}
}
