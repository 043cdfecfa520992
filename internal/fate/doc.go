// Package fate decides what an impaired link does to frames: which it loses, duplicates,
// corrupts, delays or reorders. It is a model in virtual time, without a clock and without
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
// Random losses come before the queue, so a lost frame uses nothing of the rate. The queue is drop-tail: a frame that does not fit is lost.
// ECN-capable frames are marked if the queue holds more than MarkAbove bytes.
//
// Without Reorder the order is kept, also under Jitter and changes of Delay: a frame that
// would overtake arrives together with the one before it. Frames behind a frame that is held
// back do not wait for it.
//
// # Reproducible
//
// Each frame uses the same number of random numbers under every rule. So the random
// decisions for frame n depend on the seed, on n and on the rule at that time, and not on its
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
