// Package control is the protocol between an application and unetd: how a process
// without any capability gets an endpoint, keeps it when unetd dies, and gives it back.
//
// Both ends are here. An application calls [Open] and holds the [Lease] that it
// returns. unetd runs a [Server] over a [Provider], which has the mux. Nothing in this
// package is on the data path: once the grant is received, the application and the
// kernel communicate through the rings of the segment.
//
// # The lease is the connection
//
// One connection carries one lease, and one lease is one endpoint. The connection ends
// when the application closes it, exits or is killed. Then requests in progress are
// cancelled and the endpoint's tags and its port or queue are reclaimed. An application
// that shuts its writing side down and waits for the end of the stream (as
// [Lease.Close] does) knows then that its tags are free. The memory of the segment lives
// until the application has closed its descriptors and removed its mappings, or is dead.
//
// When unetd dies the endpoint goes on, since all that it needs is in the kernel and in
// the application. The [Lease] connects again and again and presents its XSK. The new
// unetd knows it by its cookie (SO_COOKIE) and the application by its uid.
//
// # Limits
//
// The connections and requests of one user are bounded ([Limits]), and take turns: unetd
// works on one request of a user at a time. It never waits for a peer to read, nor for a
// descriptor from a peer to close. The bounds of endpoints, memory and tags are the
// mux's.
//
// # Reading order
//
//	dial.go, lease.go, change.go    the application's end: Open, Claim, Unclaim
//	connection.go, reconnect.go     its connection, and the next one
//	server.go, session.go           unetd's end: accepting, one session a connection
//	requests.go, present.go         what a session does for a request
//	limits.go, turns.go, closing.go fairness between users
//	record.go, strict.go, error.go  records and their strict parser; seqpacket.go the socket
//
// [docs/control-protocol.md] is the reference: records, events, errors, order, limits and
// the handling of descriptors.
//
// [docs/control-protocol.md]: https://github.com/unet-go/unet/blob/main/docs/control-protocol.md
package control
