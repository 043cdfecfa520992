// Package transport is what the benchmark compares: every way that two
// processes can exchange messages here, behind one interface.
//
//	floor           raw AF_XDP rings, no stack: what the attachment itself costs
//	msg             package datapath's messages
//	udp             package unet's UDP sockets
//	kernel-udp      the kernel's UDP, spinning on non-blocking system calls
//	kernel-udp-mux  the same, on interfaces that carry the mux
//	go-udp          package net's UDP
//	tcp             package unet's TCP connections
//	kernel-tcp      the kernel's TCP, spinning on non-blocking system calls
//	go-tcp          package net's TCP
//
// [All] is the table. A transport enters it with a name and an Open function;
// the loops, the orchestration and the output then know it. One that has a
// stream below frames its messages in its [workload.Conn]. One that opens and
// closes connections has a Dial and a Listen function too; its connections are
// [workload.Stream]s.
package transport
