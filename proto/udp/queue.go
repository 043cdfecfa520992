package udp

// Datagram is one received datagram that waits for, or is with, the
// application.
type Datagram struct {
	Payload []byte
	// Frame names the memory that Payload lies in, to whoever lent it; opaque
	// here. Whoever has popped the datagram gives it back, once.
	Frame uint64
	From  AddrPort
	// Heap says that Payload is ordinary memory of the Go heap. Frame then
	// means nothing, and nothing is to be given back.
	Heap bool
}

const minQueue = 16 // slots of the first ring

// queue is a ring of datagrams that starts small and doubles up to its bound.
type queue struct {
	ring     []Datagram // length 0 or a power of two
	head     uint32     // next to pop; wraps
	tail     uint32     // next to push; wraps
	bytes    int        // of payload, queued
	maxCount int        // bound, datagrams
	maxBytes int        // bound, bytes of payload
}

func (q *queue) len() int { return int(q.tail - q.head) }

// push appends a datagram of n bytes and returns its slot, which the caller
// fills in; or nil if a bound is reached. An empty queue takes any datagram: one
// larger than the bound in bytes would otherwise never arrive.
//
// Slots are written and read field by field. To copy a whole Datagram is to
// read with wide loads what narrow stores have only just written, and that
// stalls the processor for longer than all the rest takes.
func (q *queue) push(n int) *Datagram {
	used := q.len()
	if used >= q.maxCount || used > 0 && q.bytes+n > q.maxBytes {
		return nil
	}
	if used == len(q.ring) {
		q.grow()
	}
	slot := &q.ring[q.tail&uint32(len(q.ring)-1)]
	q.tail++
	q.bytes += n
	return slot
}

func (q *queue) pop(d *Datagram) bool {
	if q.head == q.tail {
		return false
	}
	slot := &q.ring[q.head&uint32(len(q.ring)-1)]
	d.Payload, d.Frame = slot.Payload, slot.Frame
	d.From, d.Heap = slot.From, slot.Heap
	if slot.Heap {
		slot.Payload = nil // let the collector have it
	}
	q.head++
	q.bytes -= len(d.Payload)
	return true
}

// grow doubles a full ring. The datagrams move to the start of the new one.
func (q *queue) grow() {
	old := q.ring
	q.ring = make([]Datagram, max(minQueue, 2*len(old)))
	n := 0
	if len(old) > 0 {
		h := int(q.head) & (len(old) - 1)
		n = copy(q.ring, old[h:])
		n += copy(q.ring[n:], old[:h])
	}
	q.head, q.tail = 0, uint32(n)
}
