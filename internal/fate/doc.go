// Package fate decides what an impaired link does to frames: which it loses, doubles,
// damages, delays or reorders. It is a model in virtual time, without a clock and without
// the frames themselves. The impaired link between two namespaces (internal/netlab/impair)
// and the simulation of TCP (proto/tcp) use it, so a [Rule] means the same in both.
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
// the rate. The queue is drop-tail: a frame that does not fit is lost.
// Frames that may carry a mark (ECN) are marked when they find more than MarkAbove
// bytes in the queue.
//
// Without Reorder the order is kept, also under Jitter and changes of Delay: a frame that
// would overtake arrives together with the one before it. Frames behind one that is held
// back do not wait.
//
// # Reproducible
//
// Each frame takes the same number of random numbers under every rule. So what happens to
// frame n at random depends on the seed, on n and on the rule at that time, and not on its
// size, the time, or other frames. Only the queue and blackouts depend on time.
//
// # Use
//
// [Model.Next] returns the [Fate] of a frame. A [Line] is a model that keeps what
// is in flight as well, in the order of arrival:
//
//	line := fate.NewLine[[]byte](seed, fate.Rule{Loss: 0.01, Delay: time.Millisecond})
//	line.Send(now, fate.Frame{Size: len(b)}, b)
//	...
//	at, ok := line.Next()              // when does something arrive?
//	arrival, ok := line.Receive(now)   // what has arrived by now?
package fate
