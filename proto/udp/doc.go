// Package udp is the UDP engine (RFC 768, RFC 1122 section 4.1): which socket a
// datagram is for, the queue it waits in, and the header it leaves with. It
// does no I/O, keeps no clock and starts no goroutine; package stack drives it
// and holds a lock around every call.
//
// # A datagram in
//
//	IP payload ── Process ── length, checksum ── lookup ──┬─ socket's queue
//	                             │                 │      │
//	                        BadLength,         NoSocket   └ QueueFull
//	                        BadChecksum    (ICMP is the caller's)
//
// [Table.Process] takes one IP payload and hands back a [Verdict]: what became
// of it, and the socket to wake. Nothing is an error and nothing is logged; each
// verdict is a counter. The datagram is not copied. The queue holds a
// [Datagram], a slice of the frame and the frame's handle, and the socket owns
// the frame from then on; whoever pops the datagram gives the frame back. If
// nothing was queued the frame is still the caller's.
//
// # A datagram out
//
// [Socket.Emit] writes header and payload into a buffer, summing as it copies;
// [Socket.EmitInPlace] completes a datagram whose payload was composed in the
// buffer. Routes, IP and frames are the stack's business, and so it is the stack
// that says when a datagram has been handed over ([Socket.CountSent]).
//
// # Which socket
//
// As in the kernel, the most specific wins: a socket connected to the sender,
// then one bound to the address, then one bound to the wildcard. Ports are 16
// bits, so the table is an array in two levels of 256 and not a hash table: two
// dependent loads, no hashing, no worst case, and 6 KiB for each block of 256
// ports in use. Only the connected sockets of one port hang off a map, keyed by the
// remote address and port packed in a word, as a server may have thousands.
//
// # Errors from the network
//
// UDP has no connection to fail, but a connected socket knows whom it talks to.
// An ICMP error about a datagram it sent becomes its pending error
// ([Table.ProcessICMP], [Socket.TakeError]), which the next send or receive
// returns once: ECONNREFUSED for a port unreachable. Sockets that are not
// connected hear of none (RFC 1122, section 4.1.3.3, and Linux).
//
// There is no timer in UDP, so unlike the engine of proto/tcp this one needs no
// time.
package udp
