//go:build linux

// Package impair turns the cable between two hosts of package netlab into an impaired link: it
// loses, duplicates, corrupts, delays and reorders frames, by a rule for each direction.
//
//	    host a                       middle                       host b
//	┌────────────┐          ┌───────────────────────┐          ┌────────────┐
//	│     uplink ├── veth ──┤ to-a ─ relay ─ to-b   ├── veth ──┤ uplink     │
//	└────────────┘          └───────────────────────┘          └────────────┘
//
// The pair must have a cable that is cut:
//
//	pair := netlab.RequirePair(t, netlab.Config{Cut: true})
//	link := impair.RequireLink(t, pair, impair.Config{
//		Seed: 1,
//		AtoB: impair.Rule{Loss: 0.01, Delay: 5 * time.Millisecond},
//		BtoA: impair.Rule{Delay: 5 * time.Millisecond},
//	})
//	...
//	link.Set(impair.AtoB, impair.Rule{Blackout: linksim.Down})
//	n := link.Counters(impair.AtoB).LostInBlackouts
//
// Package linksim defines a [Rule] and decides: the same seed decides the same for the same
// frames. The seed of direction B to A is that of A to B plus one. The rule applies to every
// frame, also ARP and VLAN frames; only ECN reads a protocol header, because the mark is in IP.
// A mux may be attached to either host.
//
// The link turns all offloads of the hosts' interfaces off, unless [Config.Offloads] is set:
// otherwise one loss would be that of the forty segments of a super-frame, and partial
// checksums would hide corruption. With offloads a super-frame is one frame to the model. A
// partial checksum is completed before the frame is corrupted; a super-frame is lost instead.
//
// One thread, the relay, takes frames from both ends (packet sockets with rings), asks the
// model, and sends what is due. It reads arrival times from the ring, so its own lateness
// does not add to the delay. It sleeps until shortly before the next frame is due and then
// spins (not with [Config.Doze]). It has real-time priority (SCHED_FIFO) and one of the
// runtime's processors, of which there is one more while the link is open. docs/adr/0021 has
// the measurements, and the reasons against doing it in the kernel.
package impair
