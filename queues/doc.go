// Package queues reads and writes the four descriptor rings of an AF_XDP socket, in
// memory that the process shares with the kernel. It makes no system call and does
// not interpret the descriptors.
//
// A ring has one producer and one consumer. Each side writes one index and only
// reads the other's. Both indices count modulo 2^32; an entry's place in the ring is its
// index modulo the size. So "producer minus consumer" is the number of filled entries,
// also after an index has wrapped.
//
//	         consumer            producer
//	            |                   |
//	. . . . . . [ x x x x x x x x x ) . . . . . . .
//	            `--- filled --------'`--- free ----
//
// Seen from the process, U-Net's queues are these:
//
//	queue    ring        we are    entry           meaning
//	send     TX          producer  [Desc]          frames to transmit
//	         Completion  consumer  uint64 address  frames that were transmitted
//	free     Fill        producer  uint64 address  frames to receive into
//	receive  RX          consumer  [Desc]          frames that were received
//
// A [Producer] claims room (Reserve), writes entries (At), and publishes them
// (Submit). A [Consumer] looks at what has arrived (Peek, At) and hands the slots back
// (Release, or in two steps Take and Publish). Each of them takes a number of entries: a
// batch costs one access to a shared index.
//
// The order of memory accesses is the kernel's (net/xdp/xsk_queue.h): the
// other side's index is loaded with acquire, ours is stored with release. Go's
// sync/atomic gives both. To load the other side's index, which is in a cache line of
// another core, rarely, each side keeps a copy of it and reloads it only when by the
// copy there is not enough room, or there are not enough entries.
//
// None of the types is safe for concurrent use. Only NeedWakeup and Pending may be
// called from any goroutine.
package queues
