// Package route answers how a destination is reached: from which source
// address, through which next hop, at which link address, with which MTU. It
// invents nothing. The kernel has a routing table and a neighbour table, kept
// by whoever administers the host, and a [Resolver] asks them over netlink.
//
// A destination takes two questions:
//
//	destination --RTM_GETROUTE--> next hop, source, MTU
//	next hop ----RTM_GETNEIGH---> link address
//
// If the kernel does not know the neighbour, it is asked to find out (NTF_USE
// starts ARP without a packet to send), and its answer is awaited on a netlink
// subscription, which all that wait share. An endpoint thus never needs ARP of its own on the shared
// address, and both see the same network.
//
// A Resolver may be used from any goroutine and works in the network namespace
// it was made for.
package route
