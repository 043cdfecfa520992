// Package route answers how a destination is reached: from which source
// address, through which next hop, at which MAC address, with which MTU. It
// invents nothing. The kernel has a routing table and a neighbour table, kept
// by whoever administers the host, and a [Resolver] asks them over netlink.
//
// A destination, IPv4 or IPv6, takes two questions:
//
//	destination --RTM_GETROUTE--> next hop, source, MTU
//	next hop ----RTM_GETNEIGH---> MAC address
//
// If the kernel does not know the neighbour, it is asked to find out (NTF_USE
// starts ARP or neighbour discovery without a packet to send), and its answer is
// awaited. An endpoint thus never needs ARP of its own on the shared address, and
// both see the same network.
//
// # What changes
//
// One netlink subscription tells those who wait for a neighbour, and those who
// [Resolver.Watch]: a hop has another MAC address, does not answer any more or
// does so again; or routes, rules or addresses have changed, of which a burst is
// told once.
//
// The kernel learns that a neighbour has moved from its own traffic, and that of
// endpoints is not. So what it has not heard of lately is verified with each
// Resolve, after the answer (probe.go): by one question to the neighbour alone,
// and if it is silent for 50 ms, by one to everybody. The kernel takes the
// answer, and its event is news. A peer that has changed its MAC address and
// told nobody is found so about 50 ms after somebody has asked for it. One hop is
// asked about every 350 ms at most, and 128 hops in that time. Entries that an
// administrator has made (NUD_PERMANENT, NUD_NOARP) are believed.
//
// A Resolver may be used from any goroutine and works in the network namespace
// it was made for.
package route
