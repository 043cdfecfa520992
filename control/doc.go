// Package control is the conversation between an application and unetd: how a
// process that holds no capability comes by an endpoint, and how it loses it.
//
// Both ends are here. An application calls [Open] and holds the [Lease] it
// gets; unetd runs a [Server] over a [Provider], which is where the mux is.
// Nothing in this package is on the data path: once the grant has crossed,
// application and kernel talk through the rings of the segment.
//
// # The lease is the connection
//
// One connection carries one lease, and one lease is one endpoint. The
// connection ends when the application closes it, exits or is killed, and the
// kernel tells unetd of all three in the same way. Then requests in progress
// are cancelled, and the endpoint's tags and its port or queue are reclaimed:
// nothing more reaches it. There is no other way to give an endpoint back, so
// there is none to forget. An application that shuts its writing side down and
// waits for the end of the stream (as [Lease.Close] does) knows when it reads
// it that its tags are free again.
//
// The memory is not unetd's to reclaim. unetd closes its copies of the two
// descriptors as soon as the grant is sent; from then on the segment, and the
// network namespace that a port's socket belongs to, live until the
// application has closed its descriptors and undone its mappings, or is dead.
// The limits below count leases, so they do not bound what an application
// keeps of leases that have ended; its memory cgroup and its own limit of open
// files do.
//
// # Transport
//
// A unix socket of type SOCK_SEQPACKET ("unixpacket" in package net). It keeps
// record boundaries, so that nothing is ever half a request: a record is one
// JSON object (RFC 8259) in UTF-8, of at most 65,536 bytes. A record of length
// zero reads as the end of the stream. unetd knows who the application is from
// SO_PEERCRED, never from what it says.
//
// # Records
//
// A request has the protocol version, an identifier that the application
// chooses (not 0, and not that of a request still unanswered), an operation,
// and the operation's one argument:
//
//	{"v":1,"id":1,"op":"open","open":{"attach":"port","geometry":{"frame_count":4096},"tags":["udp:10.0.0.1:7"]}}
//	{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}
//	{"v":1,"id":3,"op":"unclaim","tag":"udp:10.0.0.1:7"}
//	{"v":1,"id":4,"op":"resolve","addr":"10.0.0.2"}
//
// The argument of open is an [endpoint.Request]: attach ("port" or "queue"),
// queue, geometry, tags, huge; what is left out takes its default. Tags have
// the text form of [endpoint.ParseTag]. At most 1,024 of them come with an
// open, and all are claimed or none.
//
// Each request is answered by one record that repeats its identifier. Answers
// come in the order in which the work gets done, not in that of the requests:
//
//	{"v":1,"id":1,"grant":{"id":7,"attach":"port","geometry":{...},"identity":{...},"tags":["udp:10.0.0.1:7"]}}
//	{"v":1,"id":2,"tag":"udp:10.0.0.1:40001"}
//	{"v":1,"id":3}
//	{"v":1,"id":4,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}
//
// or, in place of the result, by an error:
//
//	{"v":1,"id":2,"error":{"code":"tag-held","message":"tag already claimed: udp:10.0.0.1:40001"}}
//
// The answer to claim has the tag with its wildcards resolved (a port of 0
// became a free port). The geometry and the identity of a grant are complete
// [endpoint.Geometry] and [endpoint.Identity] values. The record with the
// grant carries exactly two descriptors (SCM_RIGHTS), in this order: the bound
// AF_XDP socket and the memfd of the segment. No other record carries any, in
// either direction.
//
// The identifier 0 in an answer means the connection as a whole: what unetd
// could not read as a request, or would not wait for, is answered so. It is
// the last record of the stream.
//
// # Errors
//
// The code is for programs and the message for people, in one line. A code
// becomes the same sentinel error again on the application's side, so that
// errors.Is gives one answer in process and across the socket:
//
//	tag-held      endpoint.ErrTagHeld
//	tag-denied    endpoint.ErrTagDenied
//	tag           endpoint.ErrTag           the text is not a tag
//	geometry      endpoint.ErrGeometry
//	unreachable   endpoint.ErrUnreachable
//	closed        endpoint.ErrLeaseClosed
//	permission    os.ErrPermission
//	unsupported   errors.ErrUnsupported     the kernel or the device cannot
//	huge-pages    ErrHugePages              too few are set aside for the segment
//	busy          ErrBusy                   a limit was reached, or a queue is taken; try later
//	protocol      ErrProtocol               a violation of this page
//	internal      none                      all else; the message says what
//
// # Order, and violations of it
//
// The first request is open, it is sent within 10 seconds, and it is the only
// open: also after an error, another endpoint takes another connection. The
// other operations follow its answer. unetd answers a violation with code
// "protocol", as far as there is somebody to answer, and ends the connection
// and with it the lease: a record too long, not JSON, with an unknown field,
// another version, an unknown operation or another operation's argument, an
// identifier of 0 or one in use, a request out of order, a descriptor nobody
// asked for. Every other error, but that of open, leaves the lease as it was.
//
// unetd is strict so that a newer application is told, not misunderstood. The
// application's side is tolerant instead: it skips fields it does not know.
//
// # Limits
//
// One application shall not be able to harm another, or unetd. A connection
// has at most 32 requests in progress, of 131,072 bytes in all; what exceeds
// that is answered with code "busy". ([Lease] waits for its turn instead.)
// An application that does not read its answers is given 5 seconds a record
// before its connection is ended. The server reads without room for
// descriptors, so that the kernel discards unexpected ones before they take a
// place in unetd's descriptor table.
//
// What a connection can hold in unetd is bounded for the connection, for all
// those of one user (by the uid that the kernel vouches for), and for all:
//
//	             one lease   one uid   all
//	connections  1           256       1,024
//	tags         1,024       8,192     16,384
//	resolves     32          32        64        in progress: each may wait seconds for a neighbour
//
// ([Limits] has the numbers, and a unetd with few descriptors has smaller
// ones.) The column of one uid does not bind root. What exceeds a limit is
// answered with code "busy", a connection with a "busy" answer of identifier 0.
// Users are kept apart only as far as they have uids of their own, and no
// further than the column of one uid is smaller than that of all.
//
// # Room for later
//
// A record from unetd that is no answer has "event" in place of "id", the
// event's name. Version 1 defines no event; applications skip those that they
// do not know.
package control
