//go:build linux

// Package route answers how packets from a source reach a destination: next hop, its MAC
// address, and MTU; also the source, if the kernel is to choose it. All answers come from the
// kernel: a [Resolver] reads its routing table and its neighbour table over netlink.
//
// A source and a destination, IPv4 or IPv6, take two requests. One more chooses the source if there
// is none:
//
//	destination -----------RTM_GETROUTE--> source
//	source, destination ---RTM_GETROUTE--> next hop, MTU
//	next hop --------------RTM_GETNEIGH--> MAC address
//
// If the kernel does not have the neighbour, the resolver starts its ARP or neighbour
// discovery (NTF_USE, without a packet to send) and waits for the result. So an endpoint needs
// no ARP of its own on an address that it shares with the kernel.
//
// # Changes
//
// A goroutine reads one netlink subscription. It wakes the calls of Resolve that wait for a
// neighbour, and the function given to [New] is called when a next hop has another MAC address,
// does not answer any more or answers again, and when routes, rules or addresses have changed. A
// burst of changes of routes, rules or addresses is one call.
//
// The kernel confirms a neighbour by its own traffic, and does not see that of endpoints. So
// after the return of Resolve the resolver verifies a neighbour that the kernel has not
// confirmed in the last 300 ms (probe.go): by an ARP request or neighbour solicitation to the
// known MAC address, and 50 ms later, if there was no answer, by one to all hosts. The kernel
// receives the answer and sends an event. So a peer that has changed its MAC address without an
// announcement is found about 50 ms after the next Resolve. A hop is probed at most every 350
// ms, and at most 128 hops in that time. Entries made by an administrator (NUD_PERMANENT,
// NUD_NOARP) are not verified.
//
// A Resolver may be used from any goroutine. It works in the network namespace that it was
// made for.
package route
