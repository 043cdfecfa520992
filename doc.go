// Package unet lets a Go service talk to the network without the kernel in
// between: U-Net (von Eicken et al., SOSP 1995) over AF_XDP.
//
// A [Host] is a host on the network that lives inside the process. It has an
// endpoint of its own, which is memory shared with nobody and four descriptor
// rings, and a protocol stack that runs in the goroutines that wait for it.
// What package net offers it offers, without a system call for receiving and
// with one for sending:
//
//	host, err := unet.Open(ctx, unet.Config{})     // asks unetd for an endpoint
//	conn, err := host.ListenPacket(ctx, "udp", ":7000")
//	n, from, err := conn.ReadFrom(buf)
//
//	listener, err := host.Listen(ctx, "tcp", ":80")
//	err = http.Serve(listener, handler)
//	client := http.Client{Transport: &http.Transport{DialContext: host.DialContext}}
//
// docs/architecture.md walks one frame in and one message out through the layers.
//
// [Open] asks unetd over its socket, and needs no privilege. A process that has
// the capabilities can make a grant itself with package mux and hand it to
// [New]; everything after that is the same.
//
// # Addresses
//
// By default a host shares the address of the interface that unetd serves: each
// socket claims its port there, and a port that a kernel program or another
// host has is "address already in use". Outgoing sockets take theirs from blocks
// of ports that the host claims as a whole. A TCP port that is listened on stays the
// host's until the last connection accepted there is over. With [Config].Addr the host claims an
// address of its own, with all its ports, its ARP and its pings.
//
// # When the network changes
//
// Routes, neighbours and the interface are the kernel's, and unetd tells of their
// changes: a peer or a gateway that has another MAC address is reached there, a
// host that cannot be reached is EHOSTUNREACH, and while the interface is down
// sends are ENETDOWN and reads wait; TCP connections live through that. [Host.Watch] tells
// the application, too. unetd itself may be restarted: see [Host].
//
// # Waiting
//
// Nothing runs in the background while somebody waits: a blocked Read polls the
// network itself and returns the moment its datagram is there. How it waits is
// [Config].Wait: spin, sleep, or spin for a while and then sleep.
package unet
