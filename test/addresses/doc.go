//go:build linux

// Package addresses compares a host of unet with the Linux kernel's sockets on an uplink whose addresses,
// routes and rules are many and change.
//
// Each row of a test configures two pairs of hosts alike. On host A of one pair the sockets are those of its
// kernel, on host A of the other those of unet, through a unetd. The peer, host B, is a kernel on both. A
// probe is what a client or service sees of one exchange: whether it succeeds, the errno if not, and the
// addresses that the peer sees. Both sides have to see the same. After a change unet may lag behind the
// kernel for as long as a notice takes.
//
// The last row keeps TCP, UDP and RDMA going at addresses that stay and that come and go: -load says for how long, and
// make test-addresses is ten minutes of it.
//
// It has tests only. They need root and AF_XDP, and are skipped without them unless UNET_REQUIRE_XDP=1.
package addresses
