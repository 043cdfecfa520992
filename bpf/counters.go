package bpf

import "strings"

// Counter is the reason of a verdict, by which the programs count frames.
type Counter = MuxUnetCounter

// NumCounters is the number of counters; they are numbered from 0.
const NumCounters = int(MuxUnetCounterUNET_COUNTERS)

// The counters that Go code uses.
const (
	LostCut             = MuxUnetCounterUNET_LOST_CUT
	LostUplinkRedirect  = MuxUnetCounterUNET_LOST_UPLINK_REDIRECT
	LostPortRedirect    = MuxUnetCounterUNET_LOST_PORT_REDIRECT
	LostDeliverBacklog  = MuxUnetCounterUNET_LOST_DELIVER_BACKLOG
	LostDeliverRedirect = MuxUnetCounterUNET_LOST_DELIVER_REDIRECT
	LostReserved        = MuxUnetCounterUNET_LOST_RESERVED
	MuxUplink           = MuxUnetCounterUNET_MUX_UPLINK
	MuxLocal            = MuxUnetCounterUNET_MUX_LOCAL
	MuxHost             = MuxUnetCounterUNET_MUX_HOST
	MuxRate             = MuxUnetCounterUNET_MUX_RATE
)

// CounterName is the name of c: rx_port for UNET_RX_PORT.
func CounterName(c Counter) string { return counters[c].name }

// CounterHelp describes what c counts.
func CounterHelp(c Counter) string { return counters[c].help }

// counters has the names and descriptions of enum unet_counter in src/unet.h. A test compares the
// names with the enum in the compiled object.
var counters = [NumCounters]struct{ name, help string }{
	MuxUnetCounterUNET_RX_PASS:             {"rx_pass", "from the wire, claimed by no tag: left to the kernel"},
	MuxUnetCounterUNET_RX_PASS_TRUNCATED:   {"rx_pass_truncated", "from the wire, too short for a tag to be read: left to the kernel"},
	MuxUnetCounterUNET_RX_PASS_VLAN:        {"rx_pass_vlan", "from the wire, of a VLAN other than 0: left to the kernel"},
	MuxUnetCounterUNET_RX_PASS_PORT_GONE:   {"rx_pass_port_gone", "from the wire, the owner's process has died, or the tag is suspended: left to the kernel"},
	MuxUnetCounterUNET_RX_PASS_OTHER_QUEUE: {"rx_pass_other_queue", "from the wire, the owner is bound to another queue: left to the kernel (lead its frames there: ethtool -N, -X)"},
	MuxUnetCounterUNET_RX_PORT:             {"rx_port", "from the wire, sent to a port"},
	MuxUnetCounterUNET_RX_QUEUE:            {"rx_queue", "from the wire, put into the socket of a queue attachment"},
	MuxUnetCounterUNET_RX_HOST:             {"rx_host", "from the kernel of this host, sent to a port"},
	MuxUnetCounterUNET_RX_GROUP:            {"rx_group", "copies to ports of multicast and broadcast that the kernel also receives or sends"},
	MuxUnetCounterUNET_RX_BAD_LENGTH:       {"rx_bad_length", "from the wire, claimed, but shorter than a length field says, which is wrong or the driver has cut the frame: dropped"},
	MuxUnetCounterUNET_RX_TAGGED_TWICE:     {"rx_tagged_twice", "from the wire, with two tags of VLAN 0: dropped"},
	MuxUnetCounterUNET_RX_MARTIAN:          {"rx_martian", "from the wire, claimed, with a source that no other host can have (an address of this host or of an endpoint, a loopback, multicast or broadcast address): dropped"},
	MuxUnetCounterUNET_RX_FRAGMENT:         {"rx_fragment", "from the wire, the first fragment of a packet to a claimed port, which accepts whole packets only: dropped"},
	MuxUnetCounterUNET_RX_EXTENSION:        {"rx_extension", "from the wire, to a claimed port behind IPv6 extension headers, or behind 16 or more of them: dropped"},
	MuxUnetCounterUNET_RX_QUEUE_GONE:       {"rx_queue_gone", "from the wire, the owner's socket has left its queue: dropped"},
	MuxUnetCounterUNET_RX_NO_METADATA:      {"rx_no_metadata", "from the wire, the VLAN tag cannot be removed: dropped"},
	MuxUnetCounterUNET_RX_CUT:              {"rx_cut", "from the wire, a super-frame to a port that accepts single frames: the kernel segments it, and its parts count again"},
	MuxUnetCounterUNET_RX_MANY_PARTS:       {"rx_many_parts", "from the wire, a super-frame of more than 128 parts, to a port that accepts single frames: dropped"},
	MuxUnetCounterUNET_RX_CUTTER_BUSY:      {"rx_cutter_busy", "from the wire, a super-frame to a port that accepts single frames, while too many parts are on the way to it: dropped"},
	MuxUnetCounterUNET_RX_STALE_PART:       {"rx_stale_part", "from the wire, a part of a super-frame whose tag has another owner now, or a super-frame with a forged mark: dropped"},
	MuxUnetCounterUNET_RX_FORGED_TAG:       {"rx_forged_tag", "from the kernel of this host, to an endpoint or the wire, from a port or an IPv6 address that an endpoint holds (a socket's IP_PKTINFO, IPV6_FREEBIND): dropped"},
	MuxUnetCounterUNET_RX_FORGED_RDMA:      {"rx_forged_rdma", "from the kernel of this host, to an endpoint or the wire, to UDP port 4791 from an address whose RDMA device an endpoint is: dropped"},

	MuxUnetCounterUNET_TX_UPLINK:         {"tx_uplink", "from an endpoint, sent out of the uplink"},
	MuxUnetCounterUNET_TX_LOCAL:          {"tx_local", "from an endpoint, sent to another one of this host"},
	MuxUnetCounterUNET_TX_HOST:           {"tx_host", "from an endpoint, sent to the kernel of this host"},
	MuxUnetCounterUNET_TX_GROUP:          {"tx_group", "from an endpoint, copies of multicast and broadcast to other ones of this host, beside tx_uplink"},
	MuxUnetCounterUNET_TX_TRUNCATED:      {"tx_truncated", "from an endpoint, the headers are truncated or not in the first buffer: dropped"},
	MuxUnetCounterUNET_TX_BAD_LENGTH:     {"tx_bad_length", "from an endpoint, a length field is wrong: dropped"},
	MuxUnetCounterUNET_TX_BAD_HEADER:     {"tx_bad_header", "from an endpoint, unknown version, invalid header length or IPv6 extension header: dropped"},
	MuxUnetCounterUNET_TX_OVERSIZE:       {"tx_oversize", "from an endpoint, longer than the MTU of the uplink: dropped"},
	MuxUnetCounterUNET_TX_BAD_ETHERTYPE:  {"tx_bad_ethertype", "from an endpoint, neither IP, ARP nor a U-Net message: dropped"},
	MuxUnetCounterUNET_TX_FORGED_LINK:    {"tx_forged_link", "from an endpoint, the source MAC address is not the uplink's: dropped"},
	MuxUnetCounterUNET_TX_FORGED_ADDR:    {"tx_forged_addr", "from an endpoint, the source address is not its own, or only a port of it where all is needed (fragments, IP options, other protocols): dropped"},
	MuxUnetCounterUNET_TX_FORGED_TAG:     {"tx_forged_tag", "from an endpoint, the source tag is not its own: dropped"},
	MuxUnetCounterUNET_TX_FORGED_ARP:     {"tx_forged_arp", "from an endpoint, ARP for an address not its own: dropped"},
	MuxUnetCounterUNET_TX_FORGED_ND:      {"tx_forged_nd", "from an endpoint, neighbour discovery for an address not its own, or as a router: dropped"},
	MuxUnetCounterUNET_TX_FORGED_QUOTE:   {"tx_forged_quote", "from an endpoint, an ICMP error about a packet that was not sent to it, or ICMP of a router: dropped"},
	MuxUnetCounterUNET_TX_FORGED_GROUP:   {"tx_forged_group", "from an endpoint, to a group, or to a group MAC address, and the MAC address is not the one of the destination IP address: dropped"},
	MuxUnetCounterUNET_TX_BROADCAST:      {"tx_broadcast", "from an endpoint, a broadcast without the tag udp:255.255.255.255:PORT of its source port: dropped"},
	MuxUnetCounterUNET_TX_INFRASTRUCTURE: {"tx_infrastructure", "from an endpoint, a service or an IP protocol of the network's infrastructure, which the policy does not permit: dropped"},
	MuxUnetCounterUNET_TX_FORGED_RDMA:    {"tx_forged_rdma", "from an endpoint, to UDP port 4791 without the tag of port 4791 of its source address, whose RDMA device it is not: dropped"},
	MuxUnetCounterUNET_TX_NO_OWNER:       {"tx_no_owner", "from an endpoint, to this host, where no endpoint holds the tag, and not for its kernel (a loopback address, or one that is not the host's): dropped"},
	MuxUnetCounterUNET_TX_TO_QUEUE:       {"tx_to_queue", "from an endpoint, to one of this host on a queue, which receives frames of the uplink only: dropped"},
	MuxUnetCounterUNET_TX_PORT_GONE:      {"tx_port_gone", "from an endpoint, to one of this host whose port no longer exists: dropped"},
	MuxUnetCounterUNET_TX_UPLINK_GONE:    {"tx_uplink_gone", "from an endpoint, the uplink no longer exists: dropped"},
	MuxUnetCounterUNET_TX_RATE_ENDPOINT:  {"tx_rate_endpoint", "from an endpoint, beyond the rate that the policy permits it: dropped"},
	MuxUnetCounterUNET_TX_RATE_USER:      {"tx_rate_user", "from an endpoint, beyond the rate that the policy permits all endpoints of its user together: dropped"},

	MuxUnetCounterUNET_DELIVER_SOCKET:    {"deliver_socket", "to an endpoint, put into its socket"},
	MuxUnetCounterUNET_DELIVER_NO_SOCKET: {"deliver_no_socket", "to an endpoint, its socket is gone: dropped"},
	MuxUnetCounterUNET_DELIVER_BAD_FILL:  {"deliver_bad_fill", "to an endpoint, its fill ring has more entries than its size, or entries that are not frames: dropped, and the endpoint is revoked (unless another processor delivered to it at the same time)"},
	MuxUnetCounterUNET_DELIVER_TOO_LONG:  {"deliver_too_long", "to an endpoint, longer than a frame of its segment: dropped"},
	MuxUnetCounterUNET_DELIVER_KERNEL:    {"deliver_kernel", "from the kernel of this host, past the tags: out of the outer end of a port, or of another device of unetd, to which a program has bound a socket: dropped"},

	MuxUnetCounterUNET_LOST_CUT:              {"lost_cut", "of rx_cut, the kernel did not segment it (in tcx mode also before it was counted as rx_cut)"},
	MuxUnetCounterUNET_LOST_UPLINK_REDIRECT:  {"lost_uplink_redirect", "of rx_port, the port did not accept it"},
	MuxUnetCounterUNET_LOST_PORT_REDIRECT:    {"lost_port_redirect", "of tx_uplink, the uplink did not accept it: it is down, or its queue is stopped"},
	MuxUnetCounterUNET_LOST_DELIVER_REDIRECT: {"lost_deliver_redirect", "of deliver_socket, the endpoint's receive queue was full or its fill queue empty"},
	MuxUnetCounterUNET_LOST_UPLINK_BACKLOG:   {"lost_uplink_backlog", "from the wire, the processor's backlog was full: dropped before it was counted as rx_*"},
	MuxUnetCounterUNET_LOST_PORT_BACKLOG:     {"lost_port_backlog", "from an endpoint, the processor's backlog was full: dropped before it was counted as tx_*"},
	MuxUnetCounterUNET_LOST_DELIVER_BACKLOG:  {"lost_deliver_backlog", "of rx_port, rx_host and tx_local, the processor's backlog was full: dropped before it was counted as deliver_*"},
	MuxUnetCounterUNET_LOST_DEVICE_FULL:      {"lost_device_full", "native mode: of tx_uplink, the queue of the uplink was full"},
	MuxUnetCounterUNET_LOST_PORT_FULL:        {"lost_port_full", "native mode: of rx_port and tx_local, the queue of the port was full"},
	MuxUnetCounterUNET_LOST_PORT_DOWN:        {"lost_port_down", "tcx mode: of rx_port and rx_host, the port was being removed, since its process has died"},
	MuxUnetCounterUNET_LOST_QUEUE_REDIRECT:   {"lost_queue_redirect", "of rx_queue, the endpoint's receive queue was full or its fill queue empty"},
	MuxUnetCounterUNET_LOST_LOCAL_REDIRECT:   {"lost_local_redirect", "of tx_local, the port did not accept it"},
	MuxUnetCounterUNET_LOST_RESERVED:         {"lost_reserved", "to a claimed port, but received by the kernel: by another interface of this host, on another queue than the endpoint's (rx_pass_other_queue), or from this host for an endpoint on a queue"},
	MuxUnetCounterUNET_LOST_HOST:             {"lost_host", "between an endpoint and the kernel of this host, after tx_host or before rx_host: a processor's backlog was full (that of lo also for the kernel's own packets), or the kernel had no memory"},

	MuxUnetCounterUNET_MUX_UPLINK: {"mux_uplink", "sent by unetd for an endpoint out of the uplink: RSTs at its end, address probes, announcements"},
	MuxUnetCounterUNET_MUX_LOCAL:  {"mux_local", "sent by unetd for an endpoint to another one of this host: RSTs at its end"},
	MuxUnetCounterUNET_MUX_HOST:   {"mux_host", "sent by unetd for an endpoint to the kernel of this host: RSTs at its end"},
	MuxUnetCounterUNET_MUX_RATE:   {"mux_rate", "not sent by unetd for an endpoint, beyond what it or its user may send: dropped"},
}

// Dropped reports whether c counts frames that a program or the kernel dropped.
func Dropped(c Counter) bool {
	return strings.Contains(counters[c].help, ": dropped") || strings.HasPrefix(counters[c].name, "lost_")
}

// OfPort reports whether c counts what became of a frame that an endpoint has sent, after the program of its
// port has begun.
func OfPort(c Counter) bool {
	switch c {
	case LostPortRedirect, MuxUnetCounterUNET_LOST_LOCAL_REDIRECT, MuxUnetCounterUNET_LOST_HOST:
		return true
	}
	return strings.HasPrefix(counters[c].name, "tx_")
}
