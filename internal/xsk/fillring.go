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
	// fillSamples is how many entries of a fill ring are looked at, at most.
	fillSamples = 16
	// fillLooks is how often the indices are read again when the kernel was faster.
	fillLooks = 64
	// maxFillRate is more entries a second than the kernel can receive frames into.
	// It skips entries that are no frames at some 500 million a second.
	maxFillRate = 100e6
)

// FillRing is the fill ring of a socket whose owner is not trusted, mapped by unetd
// too. It is not safe for concurrent use.
//
// The kernel skips entries that are no frames of the segment one by one, with
// softirqs off, up to the producer index (__xp_alloc in net/xdp/xsk_buff_pool.c). It
// stops at the first entry that is a frame, so a write to the ring ends it.
type FillRing struct {
	mem     []byte
	ring    queues.Shared[uint64]
	segment uint64 // bytes

	last   uint32 // consumer index of the last look
	lastAt time.Time
}

// MapFillRing maps the fill ring of a socket: so many entries, of a segment of so
// many bytes. Like a descriptor the mapping holds the socket, until Unmap.
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

// Sound is false if an owner that follows the protocol cannot have written the ring as it
// is at now: more entries are claimed than the ring has, entries are not frames of the
// segment, or more were taken since the last call than the kernel can receive frames into.
//
// Entries count wherever the indices are. The kernel reads the producer index once,
// skips entries up to it, and publishes its consumer index only then, so an owner can
// make the ring look empty meanwhile. But it reads every entry each time around the
// ring, so as long as it skips, no entry is a frame. Entries of an owner that follows the
// protocol always are: those that were never written are 0.
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
		// Where the kernel has taken entries meanwhile, the owner may have written others.
		if atomic.LoadUint32(r.ring.Consumer) == consumer {
			return false
		}
	}
	return true
}

// Stop makes every entry the segment's first frame, so that the kernel finds a
// frame with the next entry that it looks at. A frame received there overwrites the
// owner's memory only.
func (r *FillRing) Stop() {
	for i := range r.ring.Entries {
		atomic.StoreUint64(&r.ring.Entries[i], 0)
	}
}
