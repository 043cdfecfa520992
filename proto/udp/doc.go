// Package udp is the UDP engine (RFC 768, RFC 1122 section 4.1): which socket a
// datagram is for, the queue it waits in, and the errors that connected sockets get. It
// does no I/O, keeps no clock and starts no goroutine; package stack calls it
// and holds a lock around every call. The stack also writes the datagrams that are sent, and
// counts them here ([Socket.CountSent]).
//
//	IP payload ── Process ── length, checksum ── lookup ──┬─ socket's queue
//	                             │                 │      │
//	                        BadLength,         NoSocket   └ QueueFull
//	                        BadChecksum    (ICMP is the caller's)
//
// [Table.Process] takes one IP payload and returns a [Verdict] and the socket to wake. It
// counts each verdict. The datagram is not copied: the queue holds a [Datagram], a slice
// of the frame and the frame's handle, and the socket owns the frame from then on. The
// caller that pops the datagram releases the frame. If nothing was queued the frame is
// still the caller's.
//
// A port of an address, or of all addresses (the wildcard), has at most one socket, as in the
// kernel without SO_REUSEADDR. A connected socket receives from its remote only. Ports are 16
// bits, so the table is an array in two levels of 256 and not a hash table: a lookup is two
// dependent loads and a list by address, and 256 ports take 2 KiB if one of them is in use.
//
// An ICMP error about a datagram that a connected socket has sent becomes its pending error
// ([Table.ProcessICMP], [Socket.TakeError]), which the next send or receive
// returns once: ECONNREFUSED for a port unreachable. Sockets that are not
// connected get none (RFC 1122, section 4.1.3.3, and Linux).
package udp
