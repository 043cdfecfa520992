// Package transport is what the benchmarks compare: ways for two processes to exchange
// messages, behind one interface.
//
//	floor           raw AF_XDP rings, no stack
//	msg             package datapath's messages
//	udp             package unet's UDP sockets
//	kernel-udp      the kernel's UDP, spinning on non-blocking system calls
//	kernel-udp-mux  the same, on interfaces that carry the mux
//	go-udp          package net's UDP
//	tcp             package unet's TCP connections
//	kernel-tcp      the kernel's TCP, spinning on non-blocking system calls
//	go-tcp          package net's TCP
//	netstack-udp    gVisor's netstack over its own AF_XDP link, UDP
//	netstack-tcp    the same, TCP
//	rc-send         SEND and RECV of package verbs
//	rc-write        WRITE of package verbs, into memory that the receiver polls
//
// udp6 and tcp6 are udp and tcp over IPv6.
//
// [All], [IPv6] and [Verbs] are the tables of transports, [Bulk] that of bandwidth, [Operations] that of rdma. A transport that can open
// connections has a Dial and a Listen function beside Open.
package transport
