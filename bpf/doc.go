// Package bpf holds the programs of the mux: C in src/, compiled by bpf2go into the objects and
// bindings that are committed here, so that building unet needs no clang. `go generate ./bpf`
// compiles them again after a change of src/; a test compares hashes. Package mux loads and
// attaches the programs.
//
// XDP programs (a packet may be in several buffers, xdp.frags):
//
//   - unet_uplink runs on each frame from the wire and redirects it to the owner of the tag that
//     claims it. Frames without a tag, and frames of a VLAN other than 0, go to the kernel.
//     unet_queue does so for endpoints on queues only, in tcx mode.
//   - unet_port runs on each frame that an endpoint sends, at the outer end of its port. It drops
//     frames whose source tag the endpoint does not hold, wrong lengths, and ICMP errors that
//     quote a packet of others. unet_port_limited, on ports with a limit, also drops what is beyond
//     the rate of the endpoint or its user (src/limit.h).
//   - unet_deliver runs at the inner end. It checks the socket's fill ring (src/fill.h), writes
//     the size of its datagrams into a UDP super-frame (src/super.h) and redirects the frame to
//     the socket. Untrusted owners have unet_deliver_linear (tcx mode) or unet_deliver_whole
//     (native mode), which drop what does not fit one frame of the segment (src/deliver.h).
//
// At traffic control, unet_uplink_tcx does in tcx mode what unet_uplink does in native mode
// (src/tcx.h), and unet_cut makes the kernel segment super-frames, which TSO and GRO make of
// several TCP segments or datagrams, for untrusted owners (src/cut.h). On tracepoints,
// unet_note_vlan notes VLAN tags in the skb (src/vlan.h), and others count frames that the kernel
// dropped after a redirect (src/trace.h).
//
// To follow a frame, start at src/mux.c: src/tcx.h or src/uplink.h, src/find.h and src/tags.h for received
// frames; src/port.h, src/check.h and src/check6.h for sent ones.
//
// The tables tags (IPv4 and messages) and tags6 map a tag to its owner. The most specific tag
// decides: UDP or TCP port, block of ports, owned address. That is at most three look-ups. An ICMP
// error goes to the owner of the source tag of the packet that it quotes; ARP requests and
// neighbour solicitations for an owned address go to its owner. Fragments and packets with IPv6
// extension headers go to the owner of the address or to the kernel. If they are for a
// claimed port they are dropped, since the kernel would answer them.
//
// The tables are also the state of the control plane (ADR 14): tags, [Endpoint] by [Owner], and
// [State], with [ObjectsHash] as its version. alarms is a ring buffer of [Alarm].
//
// Each of these programs counts each frame once, by the reason of its verdict ([Counter]). A frame that
// the kernel dropped after a redirect is counted a second time as lost. On a mux at rest:
//
//	frames in at the uplink   = sum of rx_*
//	frames sent by endpoints  = sum of tx_*
//	rx_port + rx_host + rx_group + tx_local + tx_group = sum of deliver_* + lost_deliver_backlog
//	                + lost_uplink_redirect + lost_local_redirect + lost_port_full + lost_port_down
//
// The first two sums are without rx_group and tx_group, which count copies of datagrams to groups (group.h).
// Frames of the host's own kernel (rx_host, and rx_bad_length, rx_fragment and rx_extension on lo) are
// among rx_*, and the parts of a segmented super-frame (rx_cut) count again there. lost_uplink_backlog and
// lost_port_backlog are in neither sum. What a driver drops is in the statistics of the device.
// Package internal/account checks the third equation.
package bpf
