// Package queues is the four descriptor rings of an AF_XDP socket, as Go code
// over memory that the kernel maps too. It makes no system call and does
// not interpret the descriptors.
//
// A ring has one producer and one consumer. Each side owns one index and only
// reads the other's; both indices run freely through uint32 and are reduced by
// the mask when an entry is touched, so "producer minus consumer" is the
// number of entries in flight whatever has wrapped.
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
// (Submit). A [Consumer] looks at what has
// arrived (Peek, At) and hands the slots back (Release, or in two steps Take and
// Publish). All of them take counts: a batch costs one shared-index access, not
// one an entry.
//
// The order of memory accesses is the kernel's (net/xdp/xsk_queue.h): the
// other side's index is loaded with acquire, ours is stored with release. Go's
// sync/atomic gives both. To keep the shared cache lines still, each side
// works from a copy of the other's index and reloads it only when the copy says
// full, or empty.
//
// None of the types is safe for concurrent use, with one exception that each
// method states.
package queues
