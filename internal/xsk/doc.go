//go:build linux

// Package xsk makes the system calls of AF_XDP: it makes a socket and its UMEM, maps the
// rings, kicks the socket and reads its statistics.
//
// The calls are divided by privilege. [Create] needs CAP_NET_RAW and runs in unetd: it
// makes the socket, registers the memory, sets the sizes of the four rings, puts the first
// frames on the fill ring and binds the socket to a queue of a device. It returns the
// descriptor; nothing stays mapped. [Attach] needs no capability and runs in the application
// that has received the descriptor: it maps the rings. [NewSegment] makes the memory, a
// sealed memfd, and [MapSegment] maps it.
//
// unetd identifies a socket by its [Cookie], and finds out by [SegmentInUse] whether another
// process still uses the memory.
//
// To send, a bound socket needs one system call, [Socket.Kick], which makes the kernel read
// the TX ring. To receive it needs none, unless a zero-copy driver has run out of frames and
// has set the need-wakeup flag ([Socket.KickReceive]).
//
// The statements about the kernel are from Documentation/networking/af_xdp.rst and
// net/xdp/xsk.c.
package xsk
