package queues

import (
	"fmt"
	"sync/atomic"
)

// Consumer is the near end of a ring that the kernel fills: RX or Completion.
//
//	released                        producer
//	    |                              |
//	    [ filled: what Peek offers . . )
type Consumer[T Entry] struct {
	shared   Shared[T]
	mask     uint32
	released uint32 // our index as published
	filled   uint32 // the producer's index as last seen
}

// NewConsumer starts from the indices it finds.
func NewConsumer[T Entry](s Shared[T]) *Consumer[T] {
	c := &Consumer[T]{shared: s, mask: s.mask()}
	c.released = atomic.LoadUint32(s.Consumer)
	c.filled = c.released
	return c
}

// Size is the number of entries in the ring.
func (c *Consumer[T]) Size() uint32 { return c.mask + 1 }

// Peek returns how many entries can be read with At, at most limit. It takes
// nothing: until Release the entries stay, and Peek offers them again.
func (c *Consumer[T]) Peek(limit uint32) uint32 {
	n := c.filled - c.released
	if n < limit {
		c.filled = atomic.LoadUint32(c.shared.Producer)
		n = c.filled - c.released
	}
	return min(n, limit)
}

// At is the i-th of the entries that Peek counted, 0 being the oldest.
func (c *Consumer[T]) At(i uint32) *T { return &c.shared.Entries[(c.released+i)&c.mask] }

// Release hands the oldest n entries that Peek counted back to the producer.
func (c *Consumer[T]) Release(n uint32) {
	if n > c.filled-c.released {
		panic(fmt.Sprintf("BUG: release of %d entries, %d peeked", n, c.filled-c.released))
	}
	c.released += n
	atomic.StoreUint32(c.shared.Consumer, c.released)
}

// Pending is the number of entries that wait. It reads only the shared indices,
// so it may be called from any goroutine.
func (c *Consumer[T]) Pending() uint32 {
	return atomic.LoadUint32(c.shared.Producer) - atomic.LoadUint32(c.shared.Consumer)
}
