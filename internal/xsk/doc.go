// Package xsk is the system calls of AF_XDP: make a socket and its UMEM, map its
// rings, kick it, read its statistics.
//
// The work is split where the privilege ends. [Create] needs CAP_NET_RAW and
// runs in unetd: it makes the socket, registers the memory, sizes the four
// rings, puts the first frames on the fill ring and binds to a device's queue.
// What it returns is a bare descriptor; nothing stays mapped. [Attach] needs
// no capability and runs in the application that was given the descriptor: it
// maps the rings and drives them. The memory itself, a sealed memfd, is made by
// [NewSegment] and mapped by [MapSegment].
//
// The process that passed socket and memory on recognises the socket by its [Cookie] and
// learns by [SegmentInUse] whether the memory is still used.
//
// A bound socket needs one system call on its data path, [Socket.Kick], which
// makes the kernel read the TX ring. Receiving needs none, but for a
// zero-copy driver that ran out of frames and set the flag ([Socket.KickReceive]).
//
// Every fact about the kernel here is from Documentation/networking/af_xdp.rst
// and net/xdp/xsk.c.
package xsk
