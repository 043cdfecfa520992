// Package stack is a network stack for one process: IPv4, ARP, ICMP, UDP and TCP
// on top of a [Link], with no goroutine between a frame and the application that
// waits for it. A Link may be an AF_XDP endpoint, a pair in memory (package
// memlink) or a test; the stack makes no system call and runs on any system.
//
// # One frame in
//
//	Link.Recv ─ input ─ inputEthernet ─ inputIPv4 ─┬─ inputUDP ── socket's queue ─ signal
//	              │            │                   ├─ inputICMP ─ echo reply, or an error for a socket
//	            parts        inputARP              └─ inputTCP ── the engine ── settleTCP: events, output
//	           (copied)
//
// Each header is parsed once and each frame has one owner: a handler either
// keeps it (the queue of a UDP socket does, until the application has read) or
// its caller releases it. What is wrong with a frame is a counter and nothing
// else ([Stack.Counters]). A reply that the stack makes itself leaves with the
// same batch. What connections have to say after a batch leaves with it too
// (tcp_output.go): the engine of proto/tcp writes each segment straight into a frame.
//
// # One message out
//
//	Send ─ send ─ route cached? ─ Link.Alloc ─ headers from the route's template,
//	         │                                 payload copied and summed ─ Link.Send ─ Link.Flush
//	       prepare: errors, deadline, route; held for the route service
//
// All of it under one lock and with one kick, or one for a batch.
//
//	Write ─ the engine's send buffer ─ settleTCP ─ route ready? ─ Link.Alloc ─ Emit, headers ─ Link.Send ─ Link.Flush
//
// The first small write on a connection leaves in the call that made it. One that
// follows while the peer has not acknowledged the first may wait some tens of
// microseconds for more to fill a segment with. A connection whose route is not
// known waits on it, and needs no frame meanwhile.
//
// # The engine
//
// [Stack.Poll] takes in what has arrived, then runs what is due and sends what is
// ready; [Stack.NextDeadline] says when time alone will make work. Neither
// blocks, and between them and a frame there is no clock but the argument of
// Poll (and Config.Now), so protocols are tested in a time of the test's own. TCP,
// which measures time, has the clock read once for each batch with a segment and
// once for each Write. Its connections have one timer of the stack together.
//
// # Who polls
//
// The goroutine that waits. A Recv that finds its queue empty takes the poll
// role, runs the engine itself, and returns the moment its datagram is there: no
// hand-off and no wake-up lie between the frame and the return. There is one
// role. Others that want to wait park, each on its socket, and are woken by
// whoever polls when their datagram comes. A poller that has woken somebody
// yields its processor, since those it woke sit on its own run queue. When it
// leaves, it offers the role to one of the parked (wait.go).
//
//	role free ──waitFor──▶ application ──leaveRole──▶ free, or offered to a parked one
//	    ▲                                               │ nobody has come for some ms
//	    └───────────────── caretaker ◀──────────────────┘
//
// Without the lock the poller does one of two things. It spins on Link.Pending
// and a flag that calls it back, reading the clock every thousand looks and
// letting other goroutines run now and then; or it sleeps in Link.Sleep up to
// the next timer or deadline. [WaitMode] says which.
//
// An acknowledgment of text that has woken a reader does not leave at once: the
// reader is about to run, and what it writes will carry it. It leaves alone when
// the reader calls Read again, or when whoever polls has let the woken run and has
// nothing else to do.
//
// A socket's signal wakes one reader for each datagram or connection. The text of a TCP
// connection wakes all its readers: part of it may lie in the memory of one of them.
// That nobody sleeps while what it waits for is there is tried in all schedules of a
// few goroutines (TestAllSchedules, with -tags unetdebug).
//
// Deadlines need no timers of the runtime: the poller watches those of the
// parked, too. A parked goroutine always has a poller, or the offer to be one.
//
// # The caretaker
//
// While nobody waits, ARP, pings and timers still need service, and a goroutine
// of the stack's own, the caretaker, sleeps in the link. The difficulty is not to
// pay for it: an application that works between two waits must not cause a
// goroutine switch or a timer each time. So the application tells the caretaker
// nothing on that path. The caretaker looks by itself, every 1 to 8 ms while the
// application is busy, whether the role has changed hands since; it takes the
// role only after it has been left alone for a millisecond or more. Then the
// application's next wait calls it back, once, and polls as a guest meanwhile
// (under the lock, without the role). If the application itself sleeps in the
// link for long, the caretaker stops looking altogether until that sleep is over.
// A process that spins or ping-pongs thus pays one look in 8 ms, which runs on
// the spinner's own processor when it yields; an idle process pays nothing.
//
// While there are connections it looks every 2 ms, and then sends acknowledgments
// that wait for an answer which does not come, and runs TCP's timers: less than the
// 5 ms after which a peer like us would send again. A writer that leaves text
// behind to be filled up has it look sooner.
//
// # Memory
//
// Datagrams wait in the frames they came in. The application, queues and borrowed
// payloads together, holds Config.FrameQuota of them; a datagram beyond that is
// copied to a buffer of the heap and its frame goes straight back, so a slow
// reader takes nothing from the fill queue and nothing from other sockets.
// Datagrams in several frames, and UDP super-frames, which are split here into the
// datagrams that were sent, are copied as well: they are rare.
//
// A TCP segment that came in several frames, as a super-frame does and everything that
// is longer than a frame, is copied together in memory that the next one uses again, and
// from there to the reader or to the receive queue: it costs one copy, no allocation,
// and holds no frame. What is sent and longer than a frame, a segment or a datagram at
// MTU 9000, is composed in one piece and leaves in several frames ([LongLink]).
//
// Received text that is worth a frame waits in it under the same quota, unless a
// reader is there and has it copied straight to its own memory. Beyond the quota,
// and if it is small, it is copied to the receive queue. A super-frame of TCP is
// one segment. What is sent stays in the engine's own buffers until the peer has
// acknowledged it: no frame is kept for it.
//
// # What a caller can count on
//
// Sends block while the link takes no more (until the write deadline, Close, or
// a second: ENOBUFS), and for nothing else. While the route service has not
// answered, packets are held, as kernels do: up to 16 a destination, some hundred
// in all, the oldest gives way, and each one given up is counted. If the answer is
// that there is no way, connected sockets get EHOSTUNREACH from their next call,
// and so does, for a second, whoever sends there again. While there is no answer at
// all, because the route service is away or busy, it is asked again as long as
// something is held, and routes that lead somewhere are used as they are.
//
// A route in use is verified behind the sender's back: every 5 seconds, after
// 250 ms in which packets were sent and nothing came back from its link address
// (route.go), and when [Stack.Invalidate] says that something has changed. While
// the link is down ([Stack.SetLink]) sends are ENETDOWN at once and reads wait; while
// the host has lost our address ([Stack.SetAddress]) they are EADDRNOTAVAIL.
//
// The SYN of a connection waits for the route as well, and an answer that there is
// no way ends DialTCP. A connection that is established lives through that, and
// through the link being down, as through any loss: it tries again until its user
// timeout. SYNs of strangers are answered to the link address they came from and
// ask nobody for a route.
//
// Close of a connection returns at once and leaves the rest to the engine; Close of
// the stack gives what was written up to a second to arrive.
//
// ICMP errors are believed only if they quote what a socket here could have sent.
// What is known of a path's MTU is kept with the route, see route.go.
// Nothing is fragmented and no fragment is reassembled: what exceeds the path's
// MTU is EMSGSIZE.
package stack
