package queues

import (
	"fmt"
	"sync/atomic"
)

// Desc is the kernel's struct xdp_desc: one entry of a TX or RX ring.
type Desc struct {
	Addr    uint64 // of the first byte, from the start of the segment
	Len     uint32 // bytes
	Options uint32 // [Continued], or 0
}

// Continued in Options: the packet goes on in the next descriptor
// (XDP_PKT_CONTD, Documentation/networking/af_xdp.rst).
const Continued uint32 = 1 << 0

// Entry is what a ring holds.
type Entry interface{ Desc | uint64 }

// needWakeup is XDP_RING_NEED_WAKEUP: the kernel sleeps and needs a kick.
const needWakeup = 1 << 0

// Shared is the memory of one ring as both sides map it.
type Shared[T Entry] struct {
	Producer *uint32 // written by the producer
	Consumer *uint32 // written by the consumer
	Flags    *uint32 // written by the kernel; nil if the ring has none
	Entries  []T     // their number is a power of two
}

func (s *Shared[T]) mask() uint32 {
	n := len(s.Entries)
	if n == 0 || n&(n-1) != 0 || uint64(n) > 1<<31 {
		panic(fmt.Sprintf("BUG: ring of %d entries is not a power of two", n))
	}
	return uint32(n - 1)
}

// Producer is the near end of a ring that the process fills: Fill or TX.
//
//	submitted          reserved                 consumer + size
//	    |                  |                          |
//	    [ ours, unpublished ) . . . room left . . . . )
type Producer[T Entry] struct {
	shared    Shared[T]
	mask      uint32
	submitted uint32 // our index as published
	reserved  uint32 // end of what we claimed; never before submitted
	limit     uint32 // the consumer's index as last seen, plus the ring's size
}

// NewProducer starts from the indices in memory: the ring may hold entries already.
func NewProducer[T Entry](s Shared[T]) *Producer[T] {
	p := &Producer[T]{shared: s, mask: s.mask()}
	p.submitted = atomic.LoadUint32(s.Producer)
	p.reserved = p.submitted
	p.limit = atomic.LoadUint32(s.Consumer) + p.Size()
	return p
}

// Size is the number of entries in the ring.
func (p *Producer[T]) Size() uint32 { return p.mask + 1 }

// Free is the number of entries that Reserve would grant now.
func (p *Producer[T]) Free() uint32 {
	p.limit = atomic.LoadUint32(p.shared.Consumer) + p.Size()
	return p.limit - p.reserved
}

// InFlight is the number of submitted entries that the consumer has not taken.
func (p *Producer[T]) InFlight() uint32 {
	return p.submitted - atomic.LoadUint32(p.shared.Consumer)
}

// Reserve claims room for n more entries and returns how many it got.
func (p *Producer[T]) Reserve(n uint32) uint32 {
	room := p.limit - p.reserved
	if room < n {
		room = p.Free()
	}
	n = min(n, room)
	p.reserved += n
	return n
}

// Reserved is the number of entries that are claimed and not submitted.
func (p *Producer[T]) Reserved() uint32 { return p.reserved - p.submitted }

// At is the i-th of the reserved entries, 0 being the oldest.
func (p *Producer[T]) At(i uint32) *T { return &p.shared.Entries[(p.submitted+i)&p.mask] }

// Push reserves one entry and writes it. It is false when the ring is full.
func (p *Producer[T]) Push(v T) bool {
	if p.reserved == p.limit && p.Free() == 0 {
		return false
	}
	p.shared.Entries[p.reserved&p.mask] = v
	p.reserved++
	return true
}

// Submit publishes the oldest n reserved entries: from here on they are the
// consumer's.
func (p *Producer[T]) Submit(n uint32) {
	if n > p.reserved-p.submitted {
		panic(fmt.Sprintf("BUG: submit of %d entries, %d reserved", n, p.Reserved()))
	}
	p.submitted += n
	atomic.StoreUint32(p.shared.Producer, p.submitted)
}

// NeedWakeup reports whether the kernel waits for a system call before it
// looks at this ring again. It may be called from any goroutine.
func (p *Producer[T]) NeedWakeup() bool {
	return p.shared.Flags != nil && atomic.LoadUint32(p.shared.Flags)&needWakeup != 0
}

// Consumer is the near end of a ring that the kernel fills: RX or Completion.
//
//	released             taken             producer
//	    |                  |                  |
//	    [ taken, slots ours ) what Peek offers )
type Consumer[T Entry] struct {
	shared   Shared[T]
	mask     uint32
	released uint32 // our index as published
	taken    uint32 // end of what we have taken; never before released
	filled   uint32 // the producer's index as last seen
}

// NewConsumer starts from the indices it finds.
func NewConsumer[T Entry](s Shared[T]) *Consumer[T] {
	c := &Consumer[T]{shared: s, mask: s.mask()}
	c.released = atomic.LoadUint32(s.Consumer)
	c.taken, c.filled = c.released, c.released
	return c
}

// Size is the number of entries in the ring.
func (c *Consumer[T]) Size() uint32 { return c.mask + 1 }

// Peek returns how many entries can be read with At, at most limit. It takes
// nothing: until Take or Release, Peek offers the same entries again.
func (c *Consumer[T]) Peek(limit uint32) uint32 {
	n := c.filled - c.taken
	if n < limit {
		c.filled = atomic.LoadUint32(c.shared.Producer)
		n = c.filled - c.taken
	}
	return min(n, limit)
}

// At is the i-th of the entries that Peek counted, 0 being the oldest.
func (c *Consumer[T]) At(i uint32) *T { return &c.shared.Entries[(c.taken+i)&c.mask] }

// Take consumes the oldest n entries that Peek counted, but keeps their slots
// until Publish. Publish is slow, a locked instruction on a cache line that the
// producer's core has. A caller may put it off until nothing has arrived, as long as
// the ring is far from full.
func (c *Consumer[T]) Take(n uint32) {
	if n > c.filled-c.taken {
		panic(fmt.Sprintf("BUG: %d entries taken, %d peeked", n, c.filled-c.taken))
	}
	c.taken += n
}

// Taken is the number of entries that were taken and not published.
func (c *Consumer[T]) Taken() uint32 { return c.taken - c.released }

// Publish hands the slots of all taken entries back to the producer.
func (c *Consumer[T]) Publish() {
	c.released = c.taken
	atomic.StoreUint32(c.shared.Consumer, c.released)
}

// Release is Take and Publish.
func (c *Consumer[T]) Release(n uint32) {
	c.Take(n)
	c.Publish()
}

// Pending is the number of entries that are not released: those that wait, and
// those taken and not published. It reads only the shared indices, so it may be
// called from any goroutine.
func (c *Consumer[T]) Pending() uint32 {
	return atomic.LoadUint32(c.shared.Producer) - atomic.LoadUint32(c.shared.Consumer)
}
