// Package capture captures the frames of endpoints for `unetd capture`: those that they send, those
// that they receive, and those that the programs of the mux drop, with the reason.
//
// Nothing on the path of a frame belongs to it. While a capture runs, programs (bpf/src/capture.c) are
// attached to tracepoints of the kernel. They copy frames into a perf buffer. The descriptors of their links
// are in this process only, so that they are detached when it ends, in whatever way. ADR 40 says why it is
// done so.
//
//	capture.go   Run: the whole of a capture
//	target.go    finds a mux and an endpoint by what unetd has pinned
//	attach.go    loads and attaches the tracing programs
//	records.go   makes packets of the records of the perf buffer
//	window.go    puts packets of several processors in order, and marks those that were dropped
//	claims.go    finds the owner of a frame that the uplink's program has dropped
//	pcapng.go    the file format
//	line.go      a packet as a line of text
package capture
