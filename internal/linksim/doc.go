// Package linksim simulates an impaired link: it decides which frames the link loses, duplicates,
// corrupts, delays or reorders. It is a model in virtual time, without a clock and without
// the frames themselves. The impaired link between two namespaces (internal/netlab/impair)
// and the simulation of TCP (proto/tcp) use it, so a [Rule] means the same in both.
//
// # What the link does to a frame
//
// A [Model] is one direction. A frame goes through its parts in this order:
//
//	down? ── too large? ── loss, bursts ── queue ── line at Rate ── duplicated ── corrupted ── Delay, Jitter, HoldBack
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
// [Model.Next] returns the [Outcome] of a frame. A [Link] is a model that also keeps the frames
// in flight, in the order of arrival:
//
//	link := linksim.NewLink[[]byte](seed, linksim.Rule{Loss: 0.01, Delay: time.Millisecond})
//	link.Send(now, linksim.Frame{Size: len(b)}, b)
//	...
//	at, ok := link.Next()              // when does something arrive?
//	arrival, ok := link.Receive(now)   // what has arrived by now?
package linksim
