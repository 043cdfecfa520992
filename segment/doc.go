// Package segment is the memory of U-Net's communication segment: frames, the
// pool of those that are free, and a record of the owner of each.
//
// A segment is one stretch of memory cut into frames of equal size, a power of
// two. An address is an offset from its start, as in the kernel's descriptors;
// any address inside a frame names that frame, because in copy mode a received
// address is not frame-aligned (it lies 256 bytes of headroom in).
//
// Every frame has exactly one owner at any moment, and moves like this:
//
//	           alloc               send
//	pool ----------------> stack ---------> kernel-transmit
//	 ^  \                   ^ | \                  |
//	 |   \ refill     peek /  |  \ deliver         |
//	 |    v               /   |   v                |
//	 |   kernel-receive -'    |  application       |
//	 |                        |       |            |
//	 +------------------------+-------+------------+
//	           release        |  free   completion
//
// [Segment.Move] performs one of these steps and panics if the frame is not
// where the step starts: a frame freed twice or sent while the application
// reads it is a bug in this process, and corrupts messages if it goes on.
// [Segment.Audit] counts the frames by owner; at any quiet moment the counts
// add up to the whole. Frames that the stack still owns at the end of a test
// have leaked.
//
// A packet that is longer than a frame is sent from a run: adjacent frames,
// so that it can be composed in one piece. Runs are set aside once
// ([Segment.MakeRuns]). Each of their frames has its owner and moves like any other;
// only the pool keeps them apart.
//
// Built with -tags unetdebug, a frame that goes back to the pool is filled with
// a pattern, and the pattern is checked when the frame is allocated again, which
// finds a write after the frame was freed.
//
// The package works on any memory it is given; the sealed memfd that an
// endpoint maps is made elsewhere. It is not safe for concurrent use.
package segment
