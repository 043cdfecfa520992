// Package fate decides what a bad link does to frames: which it loses, doubles,
// damages, delays or lets others overtake. It is a model in virtual time, without
// a clock and without frames of its own. The impaired cable between two
// namespaces (internal/netlab/impair) and the simulation of TCP in virtual time
// (proto/tcp) both ask it, so a [Rule] means the same in both.
//
// # What happens to a frame
//
// A [Model] is one direction. A frame goes through its parts in this order:
//
//	down? ── too large? ── loss, bursts ── queue ── line at Rate ── doubled ── damaged ── Delay, Jitter, HoldBack
//	  │           │             │            │                        (each copy has the rest for itself)
//	  └───────────┴─────────────┴────────────┴── lost
//
// Losses at random come before the queue, so a frame that is lost takes no part of
// the rate. The queue is drop-tail: what finds less than its size free is lost.
// Frames that may carry a mark (ECN) are marked when they find more than MarkAbove
// bytes in the queue.
//
// Without Reorder the order is kept, whatever Jitter and changes of Delay do: a
// frame that would overtake arrives together with the one before it. A frame that
// is held back is the exception; those behind it do not wait.
//
// # Reproducible
//
// Each frame draws the same number of random numbers, whatever the rule says. So
// what chance does to frame n depends on the seed, on n and on the rule of that
// moment, and not on its size, the time, or what happened to others. A rule that
// is changed, or one that loses more, leaves the draws of all others as they were.
// Time matters to the queue and to blackouts alone.
//
// # Use
//
// [Model.Next] returns the [Fate] of a frame. A [Line] is a model that keeps what
// is under way as well, in the order of arrival:
//
//	line := fate.NewLine[[]byte](seed, fate.Rule{Loss: 0.01, Delay: time.Millisecond})
//	line.Send(now, fate.Frame{Size: len(b)}, b)
//	...
//	at, ok := line.Next()              // when does something arrive?
//	arrival, ok := line.Receive(now)   // what has arrived by now?
package fate
