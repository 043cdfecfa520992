//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/queues"
	"golang.org/x/sys/unix"
)

const (
	// fillSamples is the largest number of entries that Sound reads.
	fillSamples = 16
	// fillLooks is the largest number of times that Sound reads the indices, if the kernel
	// moves the consumer index meanwhile.
	fillLooks = 64
	// maxFillRate, in entries per second, is above the rate at which the kernel can receive
	// frames. It skips entries that are not frames at some 500 million per second.
	maxFillRate = 100e6
)

// FillRing is the fill ring of a socket of a process that is not trusted, also mapped by
// unetd. It is not safe for concurrent use.
//
// The kernel skips entries that are not frames of the segment one by one, with
// softirqs off, up to the producer index (__xp_alloc in net/xdp/xsk_buff_pool.c). It
// stops at the first entry that is a frame, so a write to the ring can stop it ([FillRing.Stop]).
type FillRing struct {
	mem     []byte
	ring    queues.Shared[uint64]
	segment uint64 // bytes

	last   uint32 // consumer index at the last call of Sound
	lastAt time.Time
}

// MapFillRing maps the fill ring of a socket. entries is the size of the ring, and segment
// that of the segment in bytes. Like a descriptor, the mapping keeps the socket open, until
// Unmap.
func MapFillRing(sock *os.File, entries uint32, segment int64) (*FillRing, error) {
	fd := int(sock.Fd())
	off, err := sockOffsets(fd)
	if err != nil {
		return nil, err
	}
	mem, ring, err := mapRing[uint64](fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, entries)
	if err != nil {
		return nil, err
	}
	r := &FillRing{mem: mem, ring: ring, segment: uint64(segment)}
	if entries == 0 || entries&(entries-1) != 0 {
		return nil, errors.Join(fmt.Errorf("fill ring of %d entries: not a power of two", entries), r.Unmap())
	}
	r.last, r.lastAt = atomic.LoadUint32(ring.Consumer), time.Now()
	return r, nil
}

// Unmap ends the use of the ring.
func (r *FillRing) Unmap() error {
	return os.NewSyscallError("munmap of a fill ring", unix.Munmap(r.mem))
}

// Sound reports whether an owner that follows the protocol can have written the ring. now is
// the present time. Sound returns false if the indices are further apart than the ring has
// entries, if an entry is not a frame of the segment, or if the kernel has taken more entries
// since the last call than it can receive frames into.
//
// Sound reads entries of the whole ring, not only those between the indices. The kernel reads
// the producer index once, skips entries up to it, and publishes its consumer index only
// then, so an owner can make the ring look empty meanwhile. But the kernel reads all entries
// in each round of the ring. So as long as it skips, no entry is a frame. The entries of an
// owner that follows the protocol are always frames: those that were never written are 0.
func (r *FillRing) Sound(now time.Time) bool {
	size := uint32(len(r.ring.Entries))
	consumer := atomic.LoadUint32(r.ring.Consumer)
	taken, since := consumer-r.last, now.Sub(r.lastAt)
	r.last, r.lastAt = consumer, now
	if taken > size && float64(taken) > maxFillRate*since.Seconds() {
		return false
	}
	for i := uint32(0); i < size; i += size/fillSamples + 1 {
		if atomic.LoadUint64(&r.ring.Entries[i]) >= r.segment {
			return false
		}
	}
	for range fillLooks {
		consumer := atomic.LoadUint32(r.ring.Consumer)
		if atomic.LoadUint32(r.ring.Producer)-consumer <= size {
			return true
		}
		// If the kernel has taken entries meanwhile, the owner may have written new ones.
		if atomic.LoadUint32(r.ring.Consumer) == consumer {
			return false
		}
	}
	return true
}

// Depth is the number of entries that the kernel has not taken. The owner can make it wrong, but
// not larger than the ring.
func (r *FillRing) Depth() uint32 {
	return min(atomic.LoadUint32(r.ring.Producer)-atomic.LoadUint32(r.ring.Consumer), uint32(len(r.ring.Entries)))
}

// Stop writes the first frame of the segment to every entry, so that the next entry that the
// kernel reads is a frame. What the kernel receives there overwrites only the owner's memory.
func (r *FillRing) Stop() {
	for i := range r.ring.Entries {
		atomic.StoreUint64(&r.ring.Entries[i], 0)
	}
}
