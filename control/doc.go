// Package control is the conversation between an application and unetd: how a
// process that holds no capability comes by an endpoint, how it keeps it when
// unetd dies, and how it loses it.
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
// The memory is not unetd's to reclaim. unetd closes the two descriptors of the
// grant as soon as it is sent; from then on the segment, and the network
// namespace that a port's socket belongs to, live until the application has
// closed its descriptors and undone its mappings, or is dead. Until the
// endpoint's end the mux keeps one descriptor more of the segment's memfd, by
// which it asks the kernel who else still has it open; it neither maps nor reads
// the segment. The limits below count leases, so they do not bound what an
// application keeps of leases that have ended. The provider may count what
// lingers, as it knows what is left, and release its own quotas only then.
//
// # unetd dies, the endpoint does not
//
// What makes an endpoint work is in the kernel and in the application, so it goes
// on without unetd. A lease ends when unetd says so: with the event closed, with
// an answer of code "protocol", or with an error for the connection as a whole. A
// connection that ends without a word means that unetd is gone. The application
// then connects to the same path again and again, until there is a unetd, and
// presents its endpoint: the XSK itself rides on the request, of which a [Lease]
// keeps a descriptor, and the table of its connections, if it has one. The new unetd knows the socket by a number that the kernel
// gave it (SO_COOKIE), and the application by its uid, and answers with the tags
// that the endpoint has. From these the application sees what became of a claim
// or an unclaim whose answer it did not get. Nothing else needs to be
// remembered on either side.
//
// An answer that no other attempt could better (not-presentable, leased,
// permission, protocol, unsupported, closed) ends the lease. All others, busy
// among them, are a matter of time.
//
// What an application should know:
//
//   - The path is the one that was given to [Open], made absolute. Where there is
//     nothing, or what may not be connected to, the lease looks again every half
//     second at most. A process that can reach its path no longer, because it
//     has changed its root folder, say, keeps a working endpoint that gets no
//     routes and no tags, until the next unetd reclaims it.
//   - unetd waits for a while (10 seconds, unless it is told otherwise), and then
//     reclaims what nobody has presented. A process that is stopped for that
//     long meanwhile loses its endpoint.
//   - A process that changes its uid after Open is another user to the next
//     unetd, which does not give it the endpoint. Drop privileges first.
//   - All descriptors are close-on-exec, so a program that the process starts
//     has none of them: the lease ends with the process, whoever it leaves
//     behind. A child by a bare fork(2), which no Go program makes, would share
//     connection and XSK, and the lease would last as long as either of them.
//   - Whoever holds the XSK and has the uid can present it, when no lease is
//     open. That is the boundary everywhere in unet: the uid.
//
// # Transport
//
// A unix socket of type SOCK_SEQPACKET ("unixpacket" in package net). It keeps
// record boundaries, so that nothing is ever half a request: a record is one
// JSON object (RFC 8259) in UTF-8, of at most 65,536 bytes. A record of length
// zero reads as the end of the stream. unetd knows who the application is from
// SO_PEERCRED and SO_PEERGROUPS, never from what it says.
//
// # Records
//
// A request has the protocol version, an identifier that the application
// chooses (not 0, and not that of a request still unanswered), an operation,
// and the operation's argument, if it takes one:
//
//	{"v":1,"id":1,"op":"open","open":{"attach":"port","geometry":{"frame_count":4096},"tags":["udp:10.0.0.1:7"]}}
//	{"v":1,"id":1,"op":"present"}
//	{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}
//	{"v":1,"id":3,"op":"unclaim","tag":"udp:10.0.0.1:7"}
//	{"v":1,"id":4,"op":"resolve","addr":"10.0.0.2"}
//	{"v":1,"id":1,"op":"list","after":7}
//	{"v":1,"id":2,"op":"counters"}
//
// The argument of open is an [endpoint.Request]: attach ("port" or "queue"),
// queue, geometry, tags, huge; what is left out takes its default. Tags have
// the text form of [endpoint.ParseTag]. At most 1,024 of them come with an
// open, and all are claimed or none.
//
// The record with open may carry one descriptor (SCM_RIGHTS), that of the table in
// which the application publishes its TCP connections ([datapath.Connections]): a file
// in memory, sealed against resizing, of at most 4 MiB. The record with present carries
// the XSK, and the table after it, if there is one. No other request carries any.
//
// Each request is answered by one record that repeats its identifier. Answers
// come in the order in which the work gets done, not in that of the requests:
//
//	{"v":1,"id":1,"grant":{"id":7,"attach":"port","geometry":{...},"identity":{...},"tags":["udp:10.0.0.1:7"]}}
//	{"v":1,"id":1,"lease":{"id":7,"tags":["udp:10.0.0.1:7","msg:12"]}}
//	{"v":1,"id":2,"tag":"udp:10.0.0.1:40001"}
//	{"v":1,"id":3}
//	{"v":1,"id":4,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}
//	{"v":1,"id":1,"endpoints":[{"id":8,"uid":1000,"pid":4711,"attach":"port","device":"unet8","queue":0,"segment_bytes":8388608,"tags":["msg:12"],"tags_total":1,"leased":true}],"more":true}
//	{"v":1,"id":2,"counters":[{"name":"rx_to_port","help":"Frames redirected to a port.","value":12}]}
//
// or, in place of the result, by an error:
//
//	{"v":1,"id":2,"error":{"code":"tag-held","message":"tag already claimed: udp:10.0.0.1:40001"}}
//
// The answer to claim has the tag with its wildcards resolved (a port of 0
// became a free port). The geometry and the identity of a grant are complete
// [endpoint.Geometry] and [endpoint.Identity] values. The record with the
// grant carries exactly two descriptors, in this order: the bound AF_XDP socket
// and the memfd of the segment. No other record from unetd carries any.
//
// The answer to present has all tags of the endpoint. If they are more than 512
// it comes in several records with the same identifier, all but the last of which
// have "more":true in "lease".
//
// The identifier 0 in an answer means the connection as a whole: what unetd
// could not read as a request, or would not wait for, is answered so. It is
// the last record of the stream.
//
// # Events
//
// A record from unetd that is no answer has "event" in place of "id", the
// event's name:
//
//	{"v":1,"event":"routes","addrs":["10.0.0.2"]}
//	{"v":1,"event":"routes"}
//	{"v":1,"event":"link","up":false}
//	{"v":1,"event":"address","addrs":["10.0.0.1"],"up":false}
//	{"v":1,"event":"address","up":true}
//	{"v":1,"event":"closed","message":"the uplink is gone"}
//
// routes: what was resolved for these destinations may be true no longer, or,
// without addresses, for none. unetd tells of destinations that this lease has
// asked it for. link: the uplink went down or came up; of a fresh lease it is up
// unless this is said, and a lease that was presented is told the state after
// the answer in any case. address: the host has lost (false) or has again (true) an
// address that the endpoint has tags on, which are suspended meanwhile; without addresses,
// which comes after the answer to present, all are there that no later event names. closed: the lease is over, its tags are free already,
// and there is nothing to present; it is the last record of the stream.
//
// Events come when they can be sent. Until then unetd keeps, for each lease, at
// most 256 destinations, beyond which it says all, and the last state of the link and
// of each address: it never waits for an application to read. Applications skip events that they do
// not know.
//
// # Errors
//
// The code is for programs and the message for people, in one line. A code
// becomes the same sentinel error again on the application's side, so that
// errors.Is gives one answer in process and across the socket:
//
//	tag-held         endpoint.ErrTagHeld
//	tag-denied       endpoint.ErrTagDenied
//	tag              endpoint.ErrTag           the text is not a tag
//	geometry         endpoint.ErrGeometry
//	unreachable      endpoint.ErrUnreachable
//	closed           endpoint.ErrLeaseClosed
//	not-presentable  ErrNotPresentable         not the XSK of an endpoint that this unetd has
//	leased           ErrLeased                 the endpoint that was presented has a lease
//	permission       os.ErrPermission
//	unsupported      errors.ErrUnsupported     the kernel or the device cannot
//	huge-pages       ErrHugePages              too few are set aside for the segment
//	busy             ErrBusy                   a limit was reached, or a queue is taken; try later
//	protocol         ErrProtocol               a violation of this page
//	internal         none                      all else; the message says what
//
// # Order, and violations of it
//
// The first request says what the connection is for, and is sent within 10
// seconds.
//
//	open, present    a lease. Neither comes a second time, also not after an
//	                 error: another endpoint takes another connection. claim,
//	                 unclaim and resolve follow the answer.
//	list, counters   an operator's questions, without a lease. Both may follow
//	                 as often as one likes, each within 30 seconds of the last
//	                 one, and nothing else.
//
// unetd answers a violation with code "protocol", as far as there is somebody to
// answer, and ends the connection and with it the lease: a record too long, not
// JSON, not UTF-8, nested deeper than any that means something, with an unknown
// field, one that comes twice or one in other letters, another version, an unknown
// operation or another operation's argument, an identifier of 0 or one in use, a
// request out of order, a descriptor nobody asked for, or none where one was.
// Every other error, but those of open and present, leaves the lease as it was.
//
// unetd is strict so that a newer application is told, not misunderstood. The
// application's side is tolerant instead: it skips fields it does not know.
//
// # Operators
//
// Who may ask for lists and counters is the provider's to say, by the credentials
// of the connection; others get code "permission". Lists have other users'
// addresses, ports and processes in them. They come in parts of about 48 KiB: an
// answer with "more":true is continued by the same request with "after", the
// last endpoint's identifier, or the number of counters had so far. An endpoint
// shows at most 256 of its tags, and tags_total says how many there are.
//
// # Limits
//
// One application shall not be able to harm another, or unetd. A connection
// has at most 32 requests in progress, of 131,072 bytes in all; what exceeds
// that is answered with code "busy". ([Lease] waits for its turn instead.)
// An application that does not read what it is sent is given 5 seconds a record
// before its connection is ended.
//
// What a connection can hold in unetd is bounded for the connection, for all
// those of one user (by the uid that the kernel vouches for), and for all:
//
//	             one lease   one uid   all
//	connections  1           256       1,024     leases, operators' and silent ones alike
//	tags                     8,192     131,072   a block of 64 ports counts as 64
//	resolves     32          32        64        in progress: each may wait seconds for a neighbour
//
// ([Limits] has the numbers, but for the tags of one uid, which the provider says,
// and unetd's policy for each rule. A unetd with few descriptors has smaller ones:
// each tag may take one.) The column of one uid does not bind root. What exceeds a limit is
// answered with code "busy", a connection with a "busy" answer of identifier 0.
// Users are kept apart only as far as they have uids of their own, and no
// further than the column of one uid is smaller than that of all.
//
// Requests take turns. unetd works on one request of a user at a time, or on one end of
// a lease of this user; of requests with a whole address, for which it asks the network,
// on four; resolves have the column above. The other requests of this user wait, first
// come first served, and those of other users do not: a user's requests are as fast
// beside thousands of another's as beside a few. A request that has its turn never waits
// for a peer to read.
//
// The tags of an endpoint that is presented count too, but are not refused for
// being too many: an endpoint shall not lose its life because unetd was started
// anew with smaller limits. It gets no more of them then.
//
// # Descriptors from applications
//
// A descriptor can be anything: a file on a FUSE file system whose server is the
// attacker, a socket that lingers, another connection to unetd. Asking such a
// file whether it is ready, reading it and even closing it can block for as long
// as its owner likes. So the server has room for two descriptors in the first
// record and for none in all others, which makes the kernel discard what else
// there is before it takes a place in unetd's descriptor table. What it receives
// never comes into the runtime's poller, is shown to the provider, which only
// asks the kernel for the cookie of the XSK (getsockopt(2), which fails for all but
// sockets) and for the seals of the table (fcntl(2), which fails for all but files in
// memory), and is closed by a goroutine of its own. Of a table that is one the provider
// keeps a descriptor of its own until the lease has ended. That one counts as a connection of the
// user until it is done, and nobody waits for it: not who accepts connections,
// not other sessions, not the end of unetd. The same goes for connections, which
// may have descriptors in them that were never read.
//
// A thread that waits in the kernel for such a file is sent a signal, after 2 ms
// and then again and again: this ends the wait for a TCP socket that lingers, and
// the socket lingers on without unetd. Not all waits can be interrupted: the flush
// of a file on FUSE cannot. Such a thread is given up until the file's owner
// lets it go, and the user's place with it.
//
// Connections that are refused, and a user's sessions at their end, are closed in the
// same way: four of one user at once, each followed by a pause of 10 ms, so 400 a second.
// The others of this user wait, first come first served; those of other users do not. A
// connection that waits to be refused is not read and not answered yet, and takes a
// descriptor of unetd's. So a user who connects again and again uses up his own time, and
// not the place of others in the queue of the listening socket, which is one for all. When
// 4,096 wait, the listener takes no descriptors any more (SO_PASSRIGHTS, Linux 6.16)
// until half of them are gone: a connection that was made meanwhile cannot block and is
// answered and closed at once. An application that sends a descriptor then gets EPERM, and
// sends it again until unetd has accepted the connection. Before Linux 6.16 there is no
// such bound.
package control
