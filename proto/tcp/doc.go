// Package tcp is the TCP engine (RFC 9293): connections as a function of (state,
// segment, time). Segments, what the application does, and instants go in;
// segments, events and a deadline come out. It does no I/O, keeps no clock,
// starts no goroutine and takes no lock; package stack drives it and holds a lock
// around every call. The same calls give the same segments, always.
//
// What it does and does not, RFC by RFC and clause by clause, is in docs/tcp.md.
//
// # The driver's loop
//
//	frames in ── Table.Process ──┐                    ┌── NextEvent, NextListener: whom to wake
//	time ─────── Table.Expire  ──┼── connections ─────┼── NextReady ── Conn.Emit: frames out
//	application ─ Write, Read … ─┘                    └── NextDeadline: when to call Expire
//
// [Table.Process] takes one IP payload. If the segment calls for an answer that
// no connection gives (a RST, a SYN cookie, an ACK from TIME-WAIT), Result.Reply
// says so and [Table.EmitReply] writes it. Everything else is sent by a
// connection: one that has something to send is on the list of
// [Table.NextReady], and each [Conn.Emit] writes one segment, header, options,
// text and checksum, straight into the frame. When to emit is the driver's
// choice. If it first lets the goroutine run that has been waiting for the
// text, the acknowledgment leaves with the answer.
//
// Calls that are told the time may make events, emissions and timers. Events are
// for waking: a reader hears Readable only after a Read that found nothing, a
// writer Writable only after a Write that found too little room.
//
// # A connection's life
//
//	                    ┌────────┐   Dial: SYN
//	       Listen       │ CLOSED ├───────────────────┐
//	   ┌────────────────┴────────┘                   ▼
//	┌──▼─────┐ SYN: SYN,ACK ┌──────────────┐ SYN  ┌──────────┐
//	│ LISTEN ├─────────────▶│ SYN-RECEIVED │◀─────┤ SYN-SENT │
//	└────────┘              └──────┬───────┘      └────┬─────┘
//	                           ACK │                   │ SYN,ACK: ACK
//	                        ┌──────▼───────────────────▼─┐
//	     CloseWrite: FIN    │        ESTABLISHED         │  FIN: ACK
//	      ┌─────────────────┤                            ├──────────────────┐
//	      ▼                 └────────────────────────────┘                  ▼
//	┌────────────┐  FIN: ACK   ┌─────────┐                           ┌────────────┐
//	│ FIN-WAIT-1 ├────────────▶│ CLOSING │                           │ CLOSE-WAIT │
//	└─────┬──────┘             └────┬────┘                           └─────┬──────┘
//	  ACK │                     ACK │                      CloseWrite: FIN │
//	      ▼                         ▼                                      ▼
//	┌────────────┐  FIN: ACK  ┌───────────┐                          ┌──────────┐
//	│ FIN-WAIT-2 ├───────────▶│ TIME-WAIT │                          │ LAST-ACK │
//	└────────────┘            └─────┬─────┘                          └────┬─────┘
//	                          2 MSL ▼ CLOSED                          ACK ▼ CLOSED
//
// Each state is one function that follows the text of section 3.10.7 step by
// step. CLOSED has no connection; LISTEN is a [Listener]; TIME-WAIT is a record
// of a few words that stays in the table when the connection is done. What the
// engine does otherwise than the letter says:
//
//   - A peer's SYN that comes again in SYN-RECEIVED is answered with our SYN,ACK
//     at once, and a SYN,ACK there after a simultaneous open is the ACK that
//     figure 7 takes it for.
//   - Text and FIN in a SYN are not queued. They are not acknowledged, so they
//     come again.
//   - Close in SYN-RECEIVED always waits for ESTABLISHED before it sends a FIN.
//   - A RST must have exactly the next number, SYN and wild ACKs on a connection
//     are answered with a challenge, at most ten and then ten a second for each
//     connection (RFC 5961). Retransmitted text is always answered.
//
// # Who owns bytes
//
// [Conn.Write] copies once, to the retransmission buffer; [Conn.Lend] does not
// copy and refers to the caller's memory until it is acknowledged. Emit copies
// from there to the frame and computes the checksum in the same pass, the first
// time and every time again.
//
// Received text goes one of three ways. A reader that waits has posted its memory
// ([Conn.Post]): the text is copied there while its checksum is computed. Else,
// if it is large enough to be worth a frame, it stays in the frame (Result.Kept)
// until it is read or, borrowed ([Conn.Borrow]), returned. Else it is copied to the
// receive queue. Text out of order is always copied.
//
// Queues are made of chunks of 4 KiB out of one pool for the table. A queue that
// is empty has none, so an idle connection is its struct and its place in the
// table: a little over a kilobyte. Spans of the scoreboard are there while something is
// in flight; a request that is answered makes none.
//
// # Bounds
//
// SendBuffer and ReceiveBuffer bound the queues of a connection, Config.Memory
// all of them; beyond it text is dropped and comes again. A connection that names no
// sizes begins with a few hundred kilobytes, and its buffers grow with what the
// path holds and the reader reads (window.go). Text out of order has
// at most twice the chunks that a window of it needs, in maxRuns pieces.
//
// Of Config.Memory half at most is kept back for queues with less than 16 KiB, so that a
// connection which has little goes on whatever others have. As what is left runs out,
// buffers grow no more and windows shrink to that size as they are used up; text in
// order takes memory from text out of order; in the end nobody new gets in. Text
// that stays in frames is bounded by the driver, and what is lent by the lender. A scoreboard has at most some
// thousand spans, whatever SACK blocks come. A listener has at most
// SynQueue connections in SYN-RECEIVED; beyond, it answers with SYN cookies and
// remembers nothing. When AcceptQueue are waiting, SYNs are dropped and handshakes
// held back, as Linux does by default, so that the peer tries again. Records in
// TIME-WAIT are bounded too.
//
// # Timers
//
// A connection has six instants: retransmission (or persist, never both), delayed
// acknowledgment, cork, pacing, keepalive, and the end of patience with a handshake or
// an orphan. A heap in the table holds each connection once, at the earliest of its
// six or before. Acknowledgments, which move timers back, leave the heap alone.
//
// Retransmission timeouts are RFC 6298's, measured with the driver's clock in
// nanoseconds, with a minimum of 5 ms instead of a second ([DefaultMinRTO]). A
// timeout that was backed off stays so until something is timed again, and a
// connection whose peer turns out to delay its acknowledgments for longer gets a
// longer minimum. After a timeout everything is taken for lost that the peer has not said
// it has, and is sent again from SND.UNA on, unless the next two ACKs tell that the peer
// was only slow (F-RTO, RFC 5682).
//
// # Loss
//
//	ACK, SACK ──▶ scoreboard ──▶ what is lost? ──▶ phase ──▶ window ──▶ planAgain
//	              what was sent,  rack.go: time;    open,      PRR, or    first what is
//	              when, and its   without SACK      recovering, congestion lost, then
//	              fate            duplicates        collapsed  control    what is new
//
// A loss is found before the timer runs out. The scoreboard has what is in flight, in
// spans that were sent at about the same time. Something that was sent a round trip
// before what has arrived, and a quarter of one for reordering, is lost (RACK, RFC
// 8985); with three segments above it there is no such patience, until something has
// turned out to be only late. So retransmissions that are lost again are found too. A
// peer without SACK has three duplicate ACKs and partial ones to tell it by (NewReno,
// RFC 6582).
//
// What nothing follows has nobody to tell of its loss. So the first time the
// retransmission timer runs out, which is after two round trips if there is enough in
// flight, it is for a probe: something new, or the last segment once more (TLP).
//
// The first loss of a window begins a recovery. Congestion control is told once and
// names a target; proportional rate reduction (RFC 9937) lets so much go with each ACK
// that at the end this is what is in flight. A timeout begins one too, from a
// window of one segment. Both end when what was in flight at their beginning is
// acknowledged.
//
// A recovery that was a mistake is undone: all that seemed lost has arrived before anything
// was sent again, as in one batch of frames; or the timestamp of an ACK says that the
// first transmission has arrived (RFC 3522); or D-SACKs have told of all that was sent
// again. The window is then what it was before.
//
// Where routers mark packets instead of losing them, a mark does to the window what a loss
// does (ECN, RFC 3168).
//
// What may be in flight is for [Congestion] to decide: CUBIC (RFC 9438), or Reno. Where
// the round trip is longer than a millisecond, new text goes out over it, pace.go.
//
// # Segments that the path does not take
//
// What a router says of the path's MTU is a claim: anybody could have said it. It counts at
// once only against what has never been seen to pass, and else when the segment that it
// quotes is lost. A path that says nothing is found out by timeouts. Larger segments are
// then tried again, by probes among the others. What was lost for its size is sent again
// at once and is no congestion.
//
// # When text leaves, and when ACKs do
//
// A small write leaves at once if nothing is in flight. While something is, small
// writes gather until they fill a segment, everything is acknowledged, the writer
// waits ([Conn.Flush]), or some tens of microseconds have passed (Options.Cork).
// Text is acknowledged at once, or adaptively, see ack.go.
//
// # Reading order
//
//	process.go    a segment comes in; CLOSED
//	states.go     the states, one function each; steps.go, the steps they share
//	listener.go   LISTEN; cookie.go, SYN cookies; timewait.go, TIME-WAIT
//	ack.go        acknowledging and being acknowledged
//	text.go       text that is received; outoforder.go, what comes too early; window.go
//	emit.go       what is sent next, and writing it
//	rto.go        the timers of retransmission, persist and keepalive
//	scoreboard.go what is in flight; rack.go, what of it is lost; probe.go; recovery.go; frto.go
//	congestion.go what may be in flight; cubic.go; ecn.go; pace.go, not all of it at once
//	write.go      the application's side; read.go
//	conn.go       the connection; table.go, all of them; lists.go, timers.go
//	pool.go       memory; sendqueue.go
//	isn.go        what must not be guessed; siphash.go, ports.go
//	icmp.go       errors from the network
//	pathmtu.go    what size of segments the path takes; mtuprobe.go, finding out
//	info.go       what can be known; counters.go
package tcp
