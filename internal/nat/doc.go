//go:build linux

// Package nat finds out which ports of the host's addresses network address translation uses.
//
// A frame from the wire reaches the mux before netfilter. So the answer to a masqueraded flow,
// or a frame for a forwarded port, would go to an endpoint that holds a tag of that port.
// bind(2) does not fail for such a port: translation binds no sockets, and the kernel lists its
// flows, not its ports.
//
// The package reads two things by netlink, in the calling thread's network namespace:
//
//   - the connection tracking table (ctnetlink): flows that are translated now. Their ports
//     are in use.
//   - the rules of nftables, which include those of iptables-nft: what may be translated
//     later. If a dnat or redirect rule matches a destination port, that port is in use; if it
//     matches any port, all ports may be used. The ports that a masquerade or snat rule can give
//     to a flow may be used.
//
// A rule with an unknown condition counts as a rule without that condition, so no port is
// missed. Translation by other means (tc, BPF programs, ipvs, Open vSwitch) is found only by
// its flows, if they are in the connection tracking table. A kernel without ctnetlink shows no
// flows. Rules of iptables-legacy cannot be listed by netlink. Root, or a process with
// CAP_DAC_READ_SEARCH, can read whether they have a nat table. If they have one, or if a chain
// cannot be read or evaluated, every port of every address may be used.
package nat
