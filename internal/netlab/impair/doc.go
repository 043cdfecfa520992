// Package impair makes the cable between two hosts of package netlab as bad as a
// test wants it: it loses, doubles, damages, delays and reorders frames, in each
// direction by a rule of its own.
//
//	    host a                       middle                       host b
//	┌────────────┐          ┌───────────────────────┐          ┌────────────┐
//	│     uplink ├── veth ──┤ to-a ─ relay ─ to-b   ├── veth ──┤ uplink     │
//	└────────────┘          └───────────────────────┘          └────────────┘
//
// The pair has to be made with a cable that is cut:
//
//	pair := netlab.RequirePair(t, netlab.Config{Cut: true})
//	link := impair.RequireLink(t, pair, impair.Config{
//		Seed: 1,
//		AtoB: impair.Rule{Loss: 0.01, Delay: 5 * time.Millisecond},
//		BtoA: impair.Rule{Delay: 5 * time.Millisecond},
//	})
//	...
//	link.Set(impair.AtoB, impair.Rule{Blackout: fate.Down})
//	n := link.Counters(impair.AtoB).LostInBlackouts
//
// What a [Rule] means, and that the same seed means the same fate for the same
// frames, is said in package fate, which decides; the direction from B to A has the
// seed after that of A to B. This package only carries out.
// It knows nothing of addresses and protocols: whatever comes as a frame is one,
// ARP and VLAN tags too. ECN is the exception: a mark is in the IP header.
// Both hosts are as usual, and a mux may be attached to either.
//
// # Offloads
//
// Left alone, the kernel's stack sends super-frames over a veth, with checksums that
// are not complete, and merges what it receives. One loss would then be that of
// forty segments, and damage would not show. So the link turns all offloads of the
// hosts' interfaces and of its own off, unless it is told otherwise. If it is, a
// super-frame is one frame to the model. A frame whose checksum is open gets one
// before it is damaged; a super-frame cannot, and is lost instead.
//
// # The relay
//
// One thread takes frames from both ends (packet sockets with rings), asks the
// model, and sends what is due. It reads the time of arrival from the ring, so being
// late itself does not add to the delay. It sleeps until shortly before the next
// frame is due and waits the rest with the processor (not with [Config.Doze]). The thread runs before all
// others of the machine (SCHED_FIFO), and it keeps one of the runtime's processors
// for itself; so there is one more of them while the link is open. docs/adr/0021 has
// what was measured, and why it is not done by the kernel.
//
// [Counters] say what was decided, what was missed because the relay was too slow,
// and how late it was.
package impair
