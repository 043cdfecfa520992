// Package nat says which ports of the host's addresses are network address translation's.
//
// A frame from the wire meets the mux before netfilter. So an answer to a flow that was
// masqueraded, or a frame for a port that is forwarded, would go to the endpoint that
// holds a tag of that port. bind(2) sees nothing of it: translation asks neither sockets nor the
// mux, and its own table has no place for a port as such, only for flows.
//
// Two things are asked of the kernel by netlink, in the calling thread's network namespace:
//
//   - the connection tracking table (ctnetlink), for flows that are translated now. Their
//     ports are in use.
//   - the rules of nftables, which those of iptables-nft are too, for what may be
//     translated later. A port that a dnat or redirect rule names as the destination of
//     what it translates is in use. A port that a masquerade or snat rule may give a flow,
//     and one of a dnat rule that names no port, may be used.
//
// A rule whose conditions are not understood counts as one without them, so no port of
// these is missed. Translation by other means (tc, other BPF programs, ipvs, Open vSwitch) is
// seen by its flows if they are in the connection tracking table, and not at all otherwise.
// A kernel without ctnetlink shows no flows. Rules of iptables-legacy cannot be listed by
// netlink. Root, or a process with CAP_DAC_READ_SEARCH, can see that they have a nat table,
// and then every port may be used.
package nat
