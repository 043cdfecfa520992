package stack

// reason names a counter. A frame that is dropped is counted by one of them; it causes no
// error and no log line.
type reason uint8

const (
	framesReceived reason = iota // each part of a packet is one
	framesSent

	frameTruncated
	frameNestedVLAN
	frameVLAN        // tagged for a VLAN; the stack is on none
	frameDestination // for another MAC address
	frameType        // neither IPv4 nor ARP, nor IPv6 on a stack that has it
	frameParts       // a packet whose last part is missing
	frameLong        // longer than the MTU, by a path, and not TCP

	ipv4Truncated
	ipv4Version
	ipv4Length
	ipv4Checksum
	ipv4Option      // an option exceeds the header, or is a source route
	ipv4Destination // for an address that is not ours
	ipv4Source      // an address that no host can have
	groupNoMember   // to a group that no socket has joined
	ipv4LinkGroup   // to our address in a link-layer broadcast (RFC 1122, 3.3.6)
	ipv4Fragment    // fragments to a shared address, which are not reassembled
	ipv4Protocol    // neither ICMP, UDP nor TCP

	ipv6Truncated
	ipv6Version
	ipv6Extension   // extension headers that are malformed or not accepted
	ipv6Destination // for an address that is not ours
	ipv6Source      // an address that no host can have
	ipv6LinkGroup   // to our address in a link-layer multicast
	ipv6Fragment    // as ipv4Fragment
	ipv6Protocol    // neither ICMPv6, UDP nor TCP

	ndBogus    // fails a validation of RFC 4861, or has an impossible sender
	ndNotOurs  // not about our address, or our address is shared
	ndConflict // another host claims our address
	ndIgnored  // router advertisements and redirects
	ndRepliesSent

	arpMalformed
	arpBogus    // an impossible sender address, or an unknown operation
	arpNotOurs  // not a request for our address, or our address is shared
	arpConflict // another host claims our address
	arpRepliesSent

	icmpTruncated
	icmpChecksum
	icmpIgnored   // of a type that needs no answer, or an echo request that the stack does not answer
	icmpUnmatched // an error about a packet that no socket of ours sent
	icmpErrors    // errors that reached a socket or a route
	icmpEchoRepliesSent
	icmpUnreachablesSent    // ICMP errors of all types, over IPv6 too
	icmpUnreachablesLimited // of these, not sent because of the rate limit

	heldDropped // packets given up that waited for a route
	routesFailed
	routesGivenUp // not yet answered when too many others were asked for
	routesRefreshed
	routesDoubted     // asked for again because they were silent
	routesInvalidated // asked for again, or forgotten, because something has changed
	linkDowns
	pathMTULowered
	pathMTUIgnored

	multiPart   // packets that came in several frames and were copied together
	superFrames // UDP super-frames, split
	quotaCopied // datagrams copied because the application holds its quota of frames

	replyNoFrame // a reply of the stack's own found no frame or no room to send
	sendBlocked  // a send found no frame or no room and had to wait
	segmentsLost // segments that could not be sent: no route, no room, or the link is down
	portLost     // packets of a UDPPort that could not be sent: no route, or too long for it
	flushFailed
	loopedBack // datagrams from a socket of this stack to another one

	reasons
)

var reasonNames = [reasons]string{
	framesReceived:          "frames_received",
	framesSent:              "frames_sent",
	frameTruncated:          "frame_truncated",
	frameNestedVLAN:         "frame_nested_vlan",
	frameVLAN:               "frame_vlan",
	frameDestination:        "frame_destination",
	frameType:               "frame_type",
	frameParts:              "frame_parts",
	frameLong:               "frame_long",
	ipv4Truncated:           "ipv4_truncated",
	ipv4Version:             "ipv4_version",
	ipv4Length:              "ipv4_length",
	ipv4Checksum:            "ipv4_checksum",
	ipv4Option:              "ipv4_option",
	ipv4Destination:         "ipv4_destination",
	ipv4Source:              "ipv4_source",
	groupNoMember:           "group_no_member",
	ipv4LinkGroup:           "ipv4_link_group",
	ipv4Fragment:            "ipv4_fragment",
	ipv4Protocol:            "ipv4_protocol",
	ipv6Truncated:           "ipv6_truncated",
	ipv6Version:             "ipv6_version",
	ipv6Extension:           "ipv6_extension",
	ipv6Destination:         "ipv6_destination",
	ipv6Source:              "ipv6_source",
	ipv6LinkGroup:           "ipv6_link_group",
	ipv6Fragment:            "ipv6_fragment",
	ipv6Protocol:            "ipv6_protocol",
	ndBogus:                 "nd_bogus",
	ndNotOurs:               "nd_not_ours",
	ndConflict:              "nd_conflict",
	ndIgnored:               "nd_ignored",
	ndRepliesSent:           "nd_replies_sent",
	arpMalformed:            "arp_malformed",
	arpBogus:                "arp_bogus",
	arpNotOurs:              "arp_not_ours",
	arpConflict:             "arp_conflict",
	arpRepliesSent:          "arp_replies_sent",
	icmpTruncated:           "icmp_truncated",
	icmpChecksum:            "icmp_checksum",
	icmpIgnored:             "icmp_ignored",
	icmpUnmatched:           "icmp_unmatched",
	icmpErrors:              "icmp_errors",
	icmpEchoRepliesSent:     "icmp_echo_replies_sent",
	icmpUnreachablesSent:    "icmp_unreachables_sent",
	icmpUnreachablesLimited: "icmp_unreachables_limited",
	heldDropped:             "held_dropped",
	routesFailed:            "routes_failed",
	routesGivenUp:           "routes_given_up",
	routesRefreshed:         "routes_refreshed",
	routesDoubted:           "routes_doubted",
	routesInvalidated:       "routes_invalidated",
	linkDowns:               "link_downs",
	pathMTULowered:          "path_mtu_lowered",
	pathMTUIgnored:          "path_mtu_ignored",
	multiPart:               "multi_part",
	superFrames:             "super_frames",
	quotaCopied:             "quota_copied",
	replyNoFrame:            "reply_no_frame",
	sendBlocked:             "send_blocked",
	segmentsLost:            "segments_lost",
	portLost:                "port_lost",
	flushFailed:             "flush_failed",
	loopedBack:              "looped_back",
}

// Counter is one count since the stack was made.
type Counter struct {
	Name  string
	Value uint64
}

// Counters returns all counts, by reason, in a fixed order. Those of UDP count datagrams, those of
// reassembly fragments, those of TCP segments, and the others frames or packets, unless their
// names state otherwise.
func (s *Stack) Counters() []Counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Counter, 0, int(reasons)+100)
	for r, name := range reasonNames {
		out = append(out, Counter{name, s.count[r]})
	}
	u := s.udp.Counters()
	out = append(out,
		Counter{"udp_received", u.Received},
		Counter{"udp_sent", u.Sent},
		Counter{"udp_no_socket", u.NoSocket},
		Counter{"udp_queue_full", u.QueueFull},
		Counter{"udp_length", u.BadLength},
		Counter{"udp_checksum", u.BadChecksum},
		Counter{"udp_errors", u.Errors},
	)
	s.fragments.EachCounter(func(name string, value uint64) { out = append(out, Counter{"frag_" + name, value}) })
	s.tcp.EachCounter(func(name string, value uint64) { out = append(out, Counter{"tcp_" + name, value}) })
	return out
}
