package udp

import "syscall"

// Defaults of [Options].
const (
	DefaultQueueDatagrams = 1024
	DefaultQueueBytes     = 1 << 20

	maxQueueDatagrams = 1 << 20
)

// Options of a socket. The zero value works.
type Options struct {
	QueueDatagrams int  // bound of the receive queue, datagrams
	QueueBytes     int  // bound of the receive queue, bytes of payload
	Reuse          bool // let sockets that all set it overlap, see [Table.Open]
	Owner          any  // see [Socket.Owner]
}

func (o Options) withDefaults() Options {
	if o.QueueDatagrams <= 0 {
		o.QueueDatagrams = DefaultQueueDatagrams
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = DefaultQueueBytes
	}
	o.QueueDatagrams = min(o.QueueDatagrams, maxQueueDatagrams)
	return o
}

// Socket is one UDP socket. [Table.Open] makes it.
type Socket struct {
	// Owner is for the driver of the engine, which finds its own socket by it
	// when [Table.Process] returns this one. The engine never reads it.
	Owner any

	local  AddrPort
	addr   uint32   // local.Addr as a number; 0: the wildcard
	remote AddrPort // zero: not connected
	reuse  bool
	open   bool
	queue  queue
	err    syscall.Errno // pending, 0: none
	table  *Table
	next   *Socket // in the list of its port that it is on
	count  SocketCounters
}

// SocketCounters count datagrams.
type SocketCounters struct {
	Received  uint64 // popped by the application, or still queued
	QueueFull uint64 // dropped because a bound of the queue was reached
	Sent      uint64 // counted by CountSent
}

// Local is where the socket receives; its Addr may be the wildcard.
func (s *Socket) Local() AddrPort { return s.local }

// Remote is whom the socket is connected to, or zero.
func (s *Socket) Remote() AddrPort { return s.remote }

// Connected reports whether the socket receives from its remote only.
func (s *Socket) Connected() bool { return s.remote.Port != 0 }

// Len is the number of datagrams queued.
func (s *Socket) Len() int { return s.queue.len() }

// QueuedBytes is the number of bytes of payload queued.
func (s *Socket) QueuedBytes() int { return s.queue.bytes }

// Counters returns a copy of the socket's counters.
func (s *Socket) Counters() SocketCounters { return s.count }

// Pop moves the oldest datagram to *d, with its frame, and reports whether
// there was one. It works on a closed socket too: that is how its frames come
// back.
func (s *Socket) Pop(d *Datagram) bool { return s.queue.pop(d) }

// TakeError returns the pending error and clears it. Every send and every
// receive asks first, as in the kernel, before data that may be queued.
func (s *Socket) TakeError() error {
	if s.err == 0 {
		return nil
	}
	err := s.err
	s.err = 0
	return err
}

// HasError reports whether an error is pending.
func (s *Socket) HasError() bool { return s.err != 0 }

// CountSent counts a datagram that the caller has handed over: to a link, or to another
// socket of the table.
func (s *Socket) CountSent() {
	s.count.Sent++
	s.table.count.Sent++
}
