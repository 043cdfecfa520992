// Package control is a process's end of the connection to unetd: how a process without
// any capability gets an endpoint, keeps it when unetd dies, and gives it back. It is not
// on the data path: once the grant is received, the process and the kernel communicate
// through the rings of the segment.
//
// # The lease is the connection
//
// [Open] returns a [Lease]. One connection carries one lease, and one lease is one
// endpoint. The connection ends when the process closes the lease, exits or is killed. Then
// unetd cancels requests in progress and reclaims the endpoint's tags and its port or
// queue. When [Lease.Close] returns, the tags are free. The memory of the segment lives until
// the process has closed its descriptors and removed its mappings, or is dead.
//
// When unetd dies the endpoint goes on: all that it needs is in the kernel and in the
// process. The Lease tries to connect until a new unetd runs, and presents its XSK. The new
// unetd identifies the socket by its cookie (SO_COOKIE) and the process by its uid.
//
// # Reading order
//
//	dial.go, lease.go, change.go    Open, Claim, Unclaim, Resolve
//	connection.go, reconnect.go     the connection, and the next one
//	operator.go                     Operator: what an operator asks and tells unetd
//
// Package internal/protocol has the records. cmd/unetd/internal/session is unetd's end.
// [docs/control-protocol.md] is the reference: records, events, errors, order, limits and
// the handling of descriptors.
//
// [docs/control-protocol.md]: https://github.com/unet-go/unet/blob/main/docs/control-protocol.md
package control
