// Package stack is a network stack for one process: IPv4, ICMP, UDP and TCP
// on top of a [Link], with no goroutine between a frame and the application that
// waits for it. A Link is an AF_XDP endpoint, a pair in memory (package
// memlink) or a test; the stack makes no system call and runs on any system.
//
//	Link.Recv ─ input ─ receive ─ inputPacket ─┬─ inputUDP ─ socket's queue ─ signal
//	                                           ├─ inputICMP ─ echo reply, or an error for a socket
//	                                           ├─ inputTCP ─ engine ─ settleTCP: events, output
//	                                           └─ inputARP
//
//	UDPConn.Write ─ send ─ queue ─ route ready? ─ Link.Alloc ─ headers and payload ─ Link.Send ─ Link.Flush
//	TCPConn.Write ─ engine's send buffer ─ settleTCP ─ route ready? ─ Link.Alloc ─ Emit ─ Link.Send ─ Link.Flush
//
// Each header is parsed once and each frame has one owner: a function that keeps a frame
// returns true, otherwise its caller releases it. A frame that is dropped is counted
// ([Stack.Counters]), by reason, and not logged. A call takes one lock and kicks the link once.
//
// [Stack.Poll] takes in what has arrived, runs what is due and sends what is
// ready; [Stack.NextDeadline] is the time of the next timer. Neither
// blocks, and time is the argument of Poll (and Config.Now), so tests have a time of their own.
//
// # The poll role
//
// The goroutine that waits. A Read that finds its queue empty takes the poll
// role, runs the stack itself, and returns the moment its data is there. There is one
// role. Others park, each on its socket, and are woken by the goroutine that polls. A poller that leaves
// offers the role to one of them. While no goroutine waits, the caretaker, a goroutine of the
// stack, holds the role, so that pings and timers do not depend on the application. See wait.go.
//
// # Memory
//
// Received datagrams and large TCP segments wait in the frames they came in. The application,
// queues and borrowed memory together, holds Config.FrameQuota of them; what is beyond that is
// copied, and its frame goes back to be filled, so a slow reader takes nothing
// from others. Packets of several frames are copied together. What TCP sends is in the
// engine's buffers until the peer has acknowledged it: no frame is kept for it.
//
// # Limits
//
// MAC addresses and MTUs come from [Resolver]. Nothing is fragmented and no fragment is
// reassembled: what exceeds the path's MTU is EMSGSIZE. ICMP errors are accepted only if they
// quote what a socket here could have sent.
package stack
