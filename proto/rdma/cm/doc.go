// Package cm is the engine of the RDMA connection manager: it connects and disconnects queue
// pairs by the messages that librdmacm and the kernel's rdma_cm exchange (InfiniBand
// Architecture Specification, volume 1, chapter 12; RDMA IP CM service, annex A11). Management
// datagrams (MADs), calls of the application and instants go in; MADs, events and a deadline
// come out. The engine does no I/O, reads no clock, starts no goroutine and takes no lock.
//
// The driver exchanges the MADs as UD packets between QP 1 of both hosts, with the Q_Key
// [wire.GSIQKey]. It gives the payload of each packet to [Engine.Input], sends what
// [Engine.Emit] writes, and calls [Engine.Expire] at [Engine.Deadline].
//
//	active                              passive
//	Dial              ── REQ ──▶        event ConnectRequest; queue pair to RTR, RTS
//	ConnectResponse   ◀── REP ──        Accept
//	queue pair to RTR, RTS
//	Establish         ── RTU ──▶        event Established
//	Close             ── DREQ ─▶        event Disconnected
//	Disconnected      ◀── DREP ─        (by itself)
//
// Either side may answer REQ or REP by a REJ, and either side may send the DREQ. REQ, REP and
// DREQ are sent again until they are answered; duplicates are answered again. [Conn.Attr] is
// what REQ and REP say about the queue pair.
//
// # What a peer can do
//
// A message counts only if it comes from the peer's address and names both communication IDs;
// the answer to a REQ and to a DREQ also its transaction ID. These are random. A REQ needs
// nothing but a source address: half-open connections are bounded by the listener's backlog, all
// connections by [Config].MaxConns, the time of a handshake by [Config].MaxHandshake. What a
// message without a connection is answered (REJ, DREP) is not larger than the message, and
// waits in a queue of [Config].MaxReplies. A REQ from the address of a connected peer that
// names its queue pair is rejected as stale, as the specification demands, and a DREQ asks the peer for the connection. It
// ends when the peer confirms that it does not know it, so not by a REQ with a forged source address.
//
// Not implemented: SIDR (UD service lookup) and alternate paths (LAP), which are answered so; sending of
// MRA; IPv6.
package cm
