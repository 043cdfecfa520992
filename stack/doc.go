// Package stack is a network stack for one process: IPv4 and IPv6, ICMP, UDP and TCP
// on top of a [Link], with no goroutine between a frame and the application that
// waits for it. A Link is an AF_XDP endpoint, a pair in memory (package
// memlink) or a test; the stack makes no system call and runs on any system.
//
//	input ─ receive ─ Link.Borrow ─ inputPacket ─┬─ inputUDP ─ socket's queue ─ signal
//	                                             ├─ inputICMP ─ echo reply, or an error for a socket
//	                                             ├─ inputTCP ─ engine ─ settle: events, output
//	                                             ├─ inputGroup ─ copies for the members
//	                                             ├─ inputFragment ─ a whole datagram: inputPacket again
//	                                             ├─ inputARP
//	                                             └─ inputIPv6 ─ the same, and inputICMPv6 ─ inputNeighbor
//
//	UDPConn.Write ─ send ─ queue ─ route ready? ─ Link.Reserve ─ headers and payload ─ Link.Send ─ Link.Flush
//	TCPConn.Write ─ engine's send buffer ─ settle ─ route ready? ─ Link.Reserve ─ Emit ─ Link.Send ─ Link.Flush
//
// Each header is parsed once and each frame has one owner: a function that keeps a frame
// returns true, otherwise its caller gives it back. A frame that is dropped is counted
// ([Stack.Counters]), by reason, and not logged. A call takes one lock and kicks the link once.
//
// # The poll role
//
// A goroutine that waits runs the stack itself: a Read that finds its queue empty takes the
// poll role, polls the link, and returns as soon as its data is there. One goroutine at a
// time has the role. Others that wait are parked, each on its socket, and the one that polls
// wakes them. Before it receives more it lets those run that it has woken, and no goroutine that waits
// takes the role before all of these have run, so connections take turns. Whoever leaves the role wakes
// another one to take it. While no goroutine waits,
// the caretaker, a goroutine of the stack, has the role, so that pings and timers do not
// depend on the application. See role.go and wait.go.
//
// # Memory
//
// Received datagrams and large TCP segments wait in the frames they came in. The queues of
// sockets and borrowed memory together hold at most Config.FrameQuota frames. What is
// received beyond that is copied and its frame returned, so that a slow reader leaves
// frames for the others. Packets of several frames are copied together. What TCP sends is in the
// engine's buffers until the peer has acknowledged it: no frame is kept for it.
//
// # Limits
//
// MAC addresses and MTUs come from [Resolver]. Packets to an owned address are reassembled (package
// frag); UDP datagrams and answers to pings from one are sent in fragments if they are too long.
// docs/ip.md says which requirements of the RFCs on hosts are met.
// ICMP errors are accepted only if they quote what a socket here could have sent.
package stack
