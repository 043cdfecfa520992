// Package bpf holds the programs of the mux: C in src/, compiled by bpf2go
// into the objects and bindings that are committed here, so that building unet
// needs no clang. `go generate ./bpf` compiles again after a change of src/; a
// test says when that was forgotten.
//
// There are three XDP programs. The first two share one tag table. All are
// xdp.frags: a packet may span several buffers.
//
//   - unet_uplink meets every frame that comes in from the wire, finds the
//     tag that claims it and sends it to the tag's owner. What no tag claims is
//     the kernel's.
//   - unet_port meets every frame that an endpoint sends, at the outer end of
//     the endpoint's port, and lets out only what carries a source tag of that
//     endpoint and lengths that are true.
//   - unet_deliver, at the inner end, puts the frame into the endpoint's socket
//     with four bytes of metadata in front (src/meta.h).
//
// To follow a frame, start at src/mux.c and read src/uplink.h, then src/tags.h.
// Package mux loads and attaches all this.
//
// # Counters
//
// Each program counts each frame once, under the reason of its verdict
// ([Counter]). What a program sent on and the kernel then dropped is counted a
// second time as lost, from tracepoints (src/trace.h). So, on a mux at rest:
//
//	frames in at the uplink   = sum of rx_*
//	frames sent by endpoints  = sum of tx_*
//	rx_port + tx_local        = sum of deliver_* + what was lost on the way to ports
//
// What a driver drops after it took a frame is in that device's own statistics.
package bpf
