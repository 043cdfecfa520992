// Package rdma is the engine of RDMA verbs on the RoCEv2 wire (InfiniBand Architecture
// Specification, volume 1, chapters 9 to 11, and annex A17): memory regions, queue pairs and
// completion queues as a function of state, packets and time. Work requests, packets and
// instants go in; packets, completions, events and a deadline come out. The engine does no
// I/O, reads no clock and starts no goroutine. Its driver holds a lock around every call, but for those of
// an application on memory and shared receive queues, which take it: see [Driver]. The words are
// rdma-core's.
//
//	packets in ── Device.Process ──┐                ┌── CQ.Poll, Device.NextEvent: completions and events
//	time ──────── Device.Expire  ──┼── queue pairs ─┼── Device.Ready ── QP.Emit: packets out
//	application ─ QP.PostSend … ───┘                └── Device.Deadline: when to call Expire
//
// A [Device] is one IPv4 address. Each [QP.Emit] writes one packet from the IPv4 header to
// the ICRC. The driver chooses when to emit.
//
// Addresses in work requests are virtual addresses, as in rdma-core: [MR.Addr] is the address
// of a region's first byte. An [MR] refers to its buffer, so the collector neither frees nor
// moves it while it is registered.
//
// # Reading order
//
//	device.go     a device: its tables, a packet comes in, who is ready, timers
//	memory.go     protection domains, regions, windows; copy_unsafe.go: copies into and out of them, words
//	cq.go         completion queues; srq.go: shared receive queues
//	qp.go         queue pairs: states, attributes, legal moves
//	post.go       work requests, the two rings, flush
//	requester.go  RC: PSNs, ACKs, NAKs, retries, READ responses, atomics
//	congestion.go the congestion window, round-trip times, CNPs
//	responder.go  RC: requests from the peer; unreliable.go: UC and UD
//	pacing.go     when READ responses and packets of UC leave
//	emit.go       what is sent next, and writing it
//	status.go     names and numbers
package rdma
