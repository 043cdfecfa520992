// Package filter compiles filters in tcpdump's language (pcap-filter(7)) for Ethernet frames, in Go: unetd is
// built without a C compiler, so without libpcap.
//
// It knows
//
//	host, net, net ... mask, port, portrange   with src, dst, src or dst, src and dst, and a protocol before them
//	ip, ip6, arp, rarp, tcp, udp, sctp, icmp, icmp6; ip proto, ip6 proto, proto, ether proto
//	ether host, ether src, ether dst; [ether] broadcast, [ether] multicast, ip multicast, ip6 multicast
//	less, greater, vlan [ID], inbound, outbound
//	PROTO[OFFSET:SIZE] and len in comparisons with + - * / % & | ^ << >>, and names as tcp-syn, tcpflags, icmptype
//	and (&&), or (||), not (!), parentheses
//
// A filter is true for the frames for which libpcap's is; the tests compare them. As there, "and" and "or" have the same
// precedence, and a frame that ends before a byte that the filter reads does not match. Names of hosts are
// not known: addresses only.
//
//	filter.go   Compile, Match
//	lex.go      words
//	parse.go    the grammar
//	primitive.go, arithmetic.go   what the words mean
package filter
