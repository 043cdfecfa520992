// Package tcp is the TCP engine (RFC 9293): connections as a function of state,
// segment and time. Segments, calls of the application and instants go in;
// segments, events and a deadline come out. The engine does no I/O, reads no
// clock, starts no goroutine and takes no lock. Package stack drives it and holds
// a lock around every call. The same calls always give the same segments.
//
//	frames in ── Table.Process ──┐                    ┌── Table.NextEvent: whom to wake
//	time ─────── Table.Expire  ──┼── connections ─────┼── Table.Ready ── Conn.Emit: frames out
//	application ─ Write, Read … ─┘                    └── Table.Deadline: when to call Expire
//
// [Table.Process] takes one IP payload. A reply that belongs to no connection (a RST,
// a SYN cookie, an ACK from TIME-WAIT) sets Result.Reply, and [Table.EmitReply] writes
// it. Connections that have something to send become
// Table.Ready in turn; each [Conn.Emit] writes one segment, with its options
// and checksum, into the frame. The driver chooses when to emit. If it first runs
// the goroutine that waits for the data, one segment carries the ACK and what that
// goroutine writes.
//
// Each call that changes a connection may produce events, segments and timers. The event
// Readable follows only a Read that found nothing, or a Post; Writable follows only a
// Write that found too little room.
//
// [docs/tcp.md] says what is implemented, RFC by RFC. [docs/tcp-engine.md] explains
// the states, memory, timers and loss recovery.
//
// # Reading order
//
//	process.go    a segment comes in: demultiplexing, checksum, CLOSED
//	states.go     header prediction; the other states; steps.go: the steps that they share, ACKs
//	listener.go   LISTEN and SYN cookies; timewait.go: TIME-WAIT
//	receive.go    received data and the receive window; outoforder.go: data out of order
//	send.go       the application's Write and the send queue
//	emit.go       what is sent next, and writing it
//	scoreboard.go what is in flight; recovery.go: RACK, NewReno, PRR, undo
//	rto.go        retransmission, persist and keepalive timers, loss probes, F-RTO
//	congestion.go Reno, CUBIC, pacing, ECN
//	pathmtu.go    the path's MTU; icmp.go: ICMP errors
//	conn.go       a connection; table.go: all connections; timers.go: the heap of timers
//	pool.go       memory; list.go: linked lists; ports.go: local ports; isn.go: initial sequence numbers
//
// [docs/tcp.md]: https://github.com/unet-go/unet/blob/main/docs/tcp.md
// [docs/tcp-engine.md]: https://github.com/unet-go/unet/blob/main/docs/tcp-engine.md
package tcp
