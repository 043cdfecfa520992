// Package bpf holds the programs of the mux: C in src/, compiled by bpf2go
// into the objects and bindings that are committed here, so that building unet
// needs no clang. `go generate ./bpf` compiles again after a change of src/; a
// test says when that was forgotten.
//
// There are three kinds of XDP programs. A packet may span several buffers (xdp.frags).
//
//   - unet_uplink meets every frame that comes in from the wire, finds the
//     tag that claims it and sends it to the tag's owner. What no tag claims is
//     the kernel's, and so is everything of a VLAN but VLAN 0, which is a priority only.
//   - unet_port meets every frame that an endpoint sends, at the outer end of
//     the endpoint's port, and lets out only what carries a source tag of that
//     endpoint, lengths that are true, and no ICMP error about packets of others.
//   - unet_deliver, at the inner end, puts the frame into the endpoint's socket
//     with four bytes of metadata in front (src/meta.h), unless the socket's fill
//     ring would harm whoever sent it (src/fill.h). For an owner who is not trusted
//     unet_deliver_linear (generic mode) or unet_deliver_whole (native mode) stands
//     there instead, and lets through only what fits one frame of the segment: the
//     kernel's way of putting a frame into several can be led to a NULL pointer by
//     the owner of the fill ring, and no look beforehand can rule that out.
//
// A super-frame (TSO, GRO) for such an owner is cut first: unet_cut, where packets enter
// traffic control, takes it from unet_uplink and sends it round through a device that
// makes the kernel do it (src/cut.h).
//
// Programs on tracepoints see what XDP cannot: unet_note_vlan notes VLAN tags that
// stand beside a frame (src/vlan.h), the others count what the kernel dropped after
// an XDP program had sent it on (src/trace.h).
//
// To follow a frame, start at src/mux.c and read src/uplink.h, then src/find.h (whose
// is it?) and src/tags.h (who holds what?); for one that an endpoint sends src/port.h,
// src/check.h and src/check6.h. Package mux loads and attaches all this.
//
// # Tags
//
// The tables tags (IPv4 and messages) and tags6 map a tag to its owner. The most
// specific one decides: UDP or TCP port, block of ports, whole address. That is
// three lookups at most, however many endpoints there are. An ICMP error belongs
// to the owner of the tag in the packet it quotes, ARP and neighbour discovery for a
// whole address to its owner. Fragments, and what stands behind IPv6 extension
// headers, belong to a whole address or to the kernel; if they are for a port that
// somebody holds, to nobody, for the kernel would answer in the holder's name.
//
// # State
//
// The maps are also where the control plane keeps its state, so that it lives as
// long as what it describes: tags and tags6, endpoints ([Endpoint], by [Owner]) and
// state ([State]). [ObjectsHash] says whether another process's maps can be
// understood. alarms is a ring buffer of what a program asks the control plane to
// act on ([Alarm]).
//
// # Counters
//
// Each XDP program counts each frame once, under the reason of its verdict
// ([Counter]). What a program sent on and the kernel then dropped is counted a
// second time as lost. So, on a mux at rest:
//
//	frames in at the uplink   = sum of rx_*
//	frames sent by endpoints  = sum of tx_*
//	rx_port + tx_local        = sum of deliver_* + lost_deliver_backlog + what was lost on the way to ports
//
// (The parts of a super-frame that was cut, rx_cut, come in at the uplink again. What
// lost_uplink_backlog and lost_port_backlog count is in the sums of neither.)
// What a driver drops after it took a frame is in that device's own statistics.
package bpf
