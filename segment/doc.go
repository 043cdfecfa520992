// Package segment is the memory of U-Net's communication segment: frames, the
// pool of those that are free, and a record of the owner of each.
//
// A segment is one stretch of memory cut into frames of equal size, a power of
// two. An address is an offset in bytes from its start, as in the kernel's descriptors.
// Any address inside a frame names that frame: a received packet begins after the
// kernel's headroom (256 bytes in copy mode).
//
// Every frame has exactly one owner at any moment, and moves like this:
//
//	           reserve             send
//	pool ----------------> stack ---------> kernel-transmit
//	 ^  \                   ^ | \                  |
//	 |   \ refill     peek /  |  \ deliver         |
//	 |    v               /   |   v                |
//	 |   kernel-receive -'    |  application       |
//	 |                        |       |            |
//	 +------------------------+-------+------------+
//	       return, cancel     |  return completion
//
// [Segment.Move] performs one of these steps and panics if the frame has another owner
// than the one that the step begins with: a frame that is freed twice, or sent while the
// application reads it, is a bug in this process that would corrupt messages.
// [Segment.Audit] counts the frames by owner. Frames that the stack still owns at the
// end of a test have leaked.
//
// A packet that is longer than a frame is sent from a run: adjacent frames,
// so that it can be composed in one piece. Runs are set aside once
// ([Segment.MakeRuns]). The pool keeps their frames apart from the others; each has its
// own owner and moves like any other.
//
// Built with -tags unetdebug, a frame that goes back to the pool is filled with
// a pattern, and the pattern is checked when the frame is allocated again, which
// finds a write after the frame was freed.
//
// The package works on any memory it is given; the sealed memfd that an
// endpoint maps is made elsewhere. It is not safe for concurrent use.
package segment
