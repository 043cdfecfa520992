// Package unet is user-level networking for Go services: U-Net (von Eicken et al., SOSP
// 1995) on AF_XDP. Frames do not pass through the kernel's network stack.
//
// A [Host] is a host on the network, inside the process. It has an endpoint of its own
// (memory that no other process maps, and four descriptor rings) and a protocol stack,
// which runs in the goroutines that call it. Its sockets have the interfaces of package
// net. Sending takes one system call. Receiving takes none, unless the call sleeps:
//
//	host, err := unet.Open(ctx, unet.Config{})     // asks unetd for an endpoint
//	conn, err := host.ListenPacket(ctx, "udp", ":7000")
//	n, from, err := conn.ReadFrom(buf)
//
//	listener, err := host.Listen(ctx, "tcp", ":80")
//	err = http.Serve(listener, handler)
//	client := http.Client{Transport: &http.Transport{DialContext: host.DialContext}}
//
// docs/architecture.md follows one received frame and one sent message through the layers.
//
// [Open] asks unetd over its socket, and needs no privilege. A process that has
// the capabilities can make a grant itself with package mux and hand it to
// [New]; everything after that is the same.
//
// A service that takes a [Network] also runs on the kernel's sockets ([Kernel]), which
// [OpenNetwork] can fall back to, and on the hosts in memory of package unettest.
//
// # Addresses
//
// By default a host shares all addresses of the interface that unetd serves, as they come and go.
// Each socket claims its port there, at all of them if it listens at no address in particular, as in
// package net, and at those that come later; the error for a port that a kernel program or another host
// has is EADDRINUSE. What is sent comes from the address that the kernel would choose. Outgoing sockets get their ports from blocks that the host claims as a
// whole. A host keeps a TCP port that it listens on until the listener is closed and the
// last connection accepted there has ended. With [HostConfig].Addrs the host
// claims addresses of its own, with all their ports, and answers ARP requests, neighbour
// solicitations and pings for them. The zone of a link-local address (fe80::1%eth0) is the name or
// the number of the interface; none means the same.
// Loopback addresses are the kernel's: sockets there, and dials to them, fail at once.
//
// A name with several addresses is dialled as RFC 8305 says: the families take turns, and the next address is tried when
// all before have failed, or 250 ms have passed.
//
// # When the network changes
//
// The kernel has the routes, the neighbours and the state of the interface. unetd reports
// their changes to the host, which then sends to the new MAC address of a peer or a
// gateway. The error for a destination without a route is ENETUNREACH, for a route of type prohibit or
// blackhole EACCES or EINVAL; for a neighbour that
// does not answer it is EHOSTUNREACH. While the interface is down sends fail with ENETDOWN and
// reads wait; TCP connections stay open.
// [Host.Notices] reports the changes to the application. unetd itself may be restarted:
// see [Host].
//
// # Waiting
//
// A blocked call polls the network itself; no other goroutine does so meanwhile. How it
// waits is [HostConfig].Wait: spin, sleep, or spin for a while and then sleep.
package unet
