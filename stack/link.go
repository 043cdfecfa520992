package stack

import (
	"time"

	"github.com/unet-go/unet/wire"
)

// Frame is one link frame, or one part of one, that a Link lends or takes. It
// is a handle: copying it does not copy the bytes, and exactly one party owns
// them at any moment.
type Frame struct {
	// Data is, of a received frame, its bytes from the Ethernet header on. Of
	// a reserved frame it is the whole room; the stack reslices it from the
	// start to what is sent.
	Data []byte
	// ID is the link's identifier of the memory, opaque to the stack, which has bits 48 to 55 for itself: they are 0.
	ID uint64
	// GSOSize is not 0 for a UDP super-frame (UDP_SEGMENT), which is one header before
	// the payloads of several datagrams. It is the size in bytes of each payload but
	// the last.
	GSOSize uint16
	// More: the packet goes on in the next Frame of the batch.
	More bool
	// Volatile: the bytes of a received frame are valid until the next Borrow, so it is not kept.
	Volatile bool
	// NoChecksum: a received frame has passed no wire: the checksum of TCP is not demanded.
	NoChecksum bool
}

// Link sends and receives frames for a stack.
//
// Borrow, Return, Reserve, Cancel, Send and Flush are called under the stack's lock, so
// never two at once. Pending and Sleep are called without the lock, by the one
// goroutine that holds the poll role, possibly while another goroutine is in
// one of the first six. Wake may be called at any time by anyone.
//
// Ownership: Borrow and Reserve hand frames to the stack; Return takes the borrowed ones
// back, Cancel, and Send when it returns true, the reserved ones.
type Link interface {
	// Borrow hands over up to len(frames) received frames and returns how many.
	// It never splits a packet of several parts between calls. The stack's
	// batch has room for the largest packet there is (64 KiB in frames of
	// 2 KiB).
	Borrow(frames []Frame) int
	// Return gives back a frame from Borrow. Only ID is looked at.
	Return(f Frame)
	// Reserve hands over a frame to send n bytes in, or the largest that the link has, if that
	// is less. false: none is free at the moment.
	Reserve(n int) (Frame, bool)
	// Cancel gives back a frame from Reserve. Only ID is looked at.
	Cancel(f Frame)
	// Send queues f.Data. false: the queue is full, and the frame stays the
	// caller's.
	Send(f Frame) bool
	// Flush starts the transmission of all that was sent, with one kick.
	Flush() error
	// Pending reports whether Borrow would return something. It must be cheap:
	// it is spun on. After a Borrow that has not emptied the link it may be true
	// once without a reason.
	Pending() bool
	// Sleep blocks until a frame waits, Wake is called, or the time until has
	// come (zero: no limit). A Wake that comes before Sleep is not lost: the
	// next Sleep returns at once. Returning for no reason is allowed. An error
	// means that the link has failed for good. again is a hint: the next wait will sleep
	// too, without a look at Pending before.
	Sleep(until time.Time, again bool) error
	// Wake ends a Sleep, or the next one.
	Wake()
	// Frames is the number of frames that the link has, for both directions. New calls it.
	Frames() int
}

// SharedLink is a Link that can be one of several of a stack. Wake of one may end the sleep of another.
type SharedLink interface {
	Link
	// SleepWith is Sleep until a frame waits in this link or in one of others, which are of the same kind. It calls
	// SleepWith of the first of these. The last one, which has no others, sleeps for all.
	SleepWith(others []SharedLink, until time.Time, again bool) error
	// Leave ends the link's part in the sleep of others: it has nothing to receive any more.
	Leave()
}

// PathLink is a Link that reaches some endpoints of the same host, which have the stack's MAC address, by paths. These take longer frames than
// the link has: TCP sends there what would be several segments in one, without a checksum of the data. The
// other end receives it with Frame.NoChecksum.
type PathLink interface {
	Link
	// ReservePath is Reserve for a frame of TCP from src to dst, which goes to the stack's own MAC address. The frame must be sent or canceled
	// before anything else is reserved or sent. ok is false if there is no path, or none that takes frames: such a frame is one of Reserve. Data is
	// nil if the path is full at the moment.
	ReservePath(src, dst wire.AddrPort, n int) (f Frame, ok bool)
}
