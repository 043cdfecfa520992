package udp

import "github.com/unet-go/unet/wire"

// Defaults of [Options].
const (
	DefaultQueueDatagrams = 1024
	DefaultQueueBytes     = 1 << 20 // of payload

	maxQueueDatagrams = 1 << 20
)

// Options of a socket. The zero value works.
type Options struct {
	QueueDatagrams int // bound of the receive queue, datagrams; at most 1,048,576
	QueueBytes     int // bound of the receive queue, bytes of payload
	Owner          any // see [Socket.Owner]
	// Shared: other sockets that are shared, too, and not connected may have the same port
	// of the same address. Each sender's datagrams go to one of them, by a hash.
	Shared bool
}

// Socket is one UDP socket. [Table.Open] makes it.
type Socket struct {
	// Owner is for the driver of the engine, which finds its own socket by it
	// when [Table.Process] returns this one. The engine never reads it.
	Owner any

	queue
	local  AddrPort
	remote AddrPort // zero: not connected
	open   bool
	shared bool
	err    error // pending
	table  *Table
	groups []wire.Addr // see Join; the zero value is free
	next   *Socket     // in the list of its port that it is on
	count  SocketCounters
}

// SocketCounters count datagrams.
type SocketCounters struct {
	Received  uint64 // popped by the application, or still queued
	QueueFull uint64 // dropped because a bound of the queue was reached
	Sent      uint64 // counted by CountSent
}

// Local is where the socket receives; its Addr may be a wildcard.
func (s *Socket) Local() AddrPort { return s.local }

// Remote is the address that the socket is connected to, or zero.
func (s *Socket) Remote() AddrPort { return s.remote }

// Connected reports whether the socket receives from its remote only.
func (s *Socket) Connected() bool { return s.remote.Port != 0 }

// Counters returns a copy of the socket's counters.
func (s *Socket) Counters() SocketCounters { return s.count }

// TakeError returns the pending error and clears it. Every send and every
// receive checks it first, as in the kernel, before data that may be queued.
func (s *Socket) TakeError() error {
	err := s.err
	s.err = nil
	return err
}

// HasError reports whether an error is pending.
func (s *Socket) HasError() bool { return s.err != nil }

// SetQueue changes the bounds of the receive queue. Values below 1 do not change a bound.
// What is queued stays.
func (s *Socket) SetQueue(datagrams, bytes int) {
	if datagrams > 0 {
		s.maxCount = min(datagrams, maxQueueDatagrams)
	}
	if bytes > 0 {
		s.maxBytes = bytes
	}
}

// SetError makes err the pending error.
func (s *Socket) SetError(err error) { s.err = err }

// CountSent counts a datagram that the caller has handed over: to a link, or to another
// socket of the table.
func (s *Socket) CountSent() {
	s.count.Sent++
	s.table.count.Sent++
}

// Datagram is one received datagram that waits for, or is with, the
// application.
type Datagram struct {
	Payload []byte
	// Frame is the caller's name for the memory that Payload lies in, from
	// [Inbound]. The caller releases it, once, after the datagram was popped.
	Frame uint64
	From  AddrPort
	To    wire.Addr // the address that it was sent to
	// Heap: Payload is memory of the Go heap. The engine does not use Frame.
	Heap bool
	// ECN is that of the IP header, see [wire.ECNMask].
	ECN uint8
	// Group is not 0 if it was sent to a group: see [Socket.GroupAt].
	Group uint8
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

// Len is the number of datagrams queued.
func (q *queue) Len() int { return int(q.tail - q.head) }

// Bytes is the payload of the datagrams queued, in bytes.
func (q *queue) Bytes() int { return q.bytes }

// push appends a datagram and reports whether there was room. An empty queue takes any
// datagram: one larger than the bound in bytes would otherwise never arrive.
//
// Slots are written and read field by field. A copy of a whole Datagram would read with
// wide loads what narrow stores have just written; the processor cannot forward such
// stores, and waits for longer than all the rest takes.
func (q *queue) push(in *Inbound, port uint16, payload []byte) bool {
	used := int(q.tail - q.head)
	if used >= q.maxCount || used > 0 && q.bytes+len(payload) > q.maxBytes {
		return false
	}
	if used == len(q.ring) {
		q.grow()
	}
	slot := &q.ring[q.tail&uint32(len(q.ring)-1)]
	slot.Payload, slot.Frame, slot.Heap = payload, in.Frame, in.Heap
	slot.From.Addr, slot.From.Port = in.Src, port
	slot.ECN, slot.To = in.ECN, in.Dst
	slot.Group = in.Group
	q.tail++
	q.bytes += len(payload)
	return true
}

// Pop moves the oldest datagram to *d, with its frame, and reports whether
// there was one. It works on a closed socket too, whose frames are released in this way.
func (q *queue) Pop(d *Datagram) bool {
	if q.head == q.tail {
		return false
	}
	slot := &q.ring[q.head&uint32(len(q.ring)-1)]
	d.Payload, d.Frame = slot.Payload, slot.Frame
	d.From, d.Heap, d.ECN, d.To = slot.From, slot.Heap, slot.ECN, slot.To
	d.Group = slot.Group
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
