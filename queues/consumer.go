package queues

import (
	"fmt"
	"sync/atomic"
)

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
// until Publish. The store that publishes is a locked instruction on a cache
// line that the producer's core has: it can wait for a moment with nothing
// else to do, as long as the ring is far from full.
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
