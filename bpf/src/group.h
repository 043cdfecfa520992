/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * UDP to groups: IPv4 and IPv6 multicast, and IPv4 broadcast, whose tags all have the address
 * 255.255.255.255. Several endpoints may hold the tag of a group and port, and each gets a copy.
 * The kernel gets every frame that it would get without the mux.
 *
 *   uplink  --> kernel
 *       unet_group_in: a copy --> up: unet_group --> the ports that hold the tag
 *   kernel --> uplink --> wire
 *       unet_egress: a copy --> up: unet_group --> the same
 *   port: unet_port --> the wire, and the ports that hold the tag, but not the sender's
 *
 * XDP can copy a frame to the devices of a map, but not also pass it to the kernel; traffic control
 * can copy it to a device. So traffic control copies it to the device up, by which nothing else
 * comes in, and generic XDP there to the ports, in all modes. Port programs copy by the devices of
 * group_devices: the ports, and the uplink.
 *
 * Fragments and packets with IPv6 extension headers are the kernel's alone.
 */
#ifndef UNET_GROUP_H
#define UNET_GROUP_H

#include "check6.h"
#include "host.h"

/* How many endpoints hold a tag. IPv4 addresses are ::ffff:a.b.c.d. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNET_GROUPS);
	__type(key, struct unet_tag6);
	__type(value, __u32);
} groups SEC(".maps");

/* A set of devices, by ifindex. */
struct device_set {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, UNET_GROUP_PORTS + 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
};

/* The ports that hold a tag. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, UNET_GROUPS);
	__uint(key_size, sizeof(struct unet_tag6));
	__array(values, struct device_set);
} group_ports SEC(".maps");

/* The same, and the uplink. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, UNET_GROUPS);
	__uint(key_size, sizeof(struct unet_tag6));
	__array(values, struct device_set);
} group_devices SEC(".maps");

static __always_inline void group_tag4(struct unet_tag6 *tag, __be32 addr, __be16 port)
{
	*tag = (struct unet_tag6){ .kind = UNET_TAG_UDP, .port = port, .addr = { 0, 0, bpf_htonl(0xffff), addr } };
}

/* is_group4_of: the multicast MAC address of an IPv4 group (RFC 1112, 6.4). */
static __always_inline bool is_group4_of(const __u8 *link, __be32 addr)
{
	const __u8 *a = (const __u8 *)&addr;

	return is_multicast4(addr) && link[0] == 1 && !link[1] && link[2] == 0x5e &&
	       link[3] == (a[1] & 0x7f) && link[4] == a[2] && link[5] == a[3];
}

/* is_group6_of is the same of IPv6 (RFC 2464, 7). */
static __always_inline bool is_group6_of(const __u8 *link, const __be32 *addr)
{
	return is_multicast6(addr) && is_group_of(link, addr);
}

/* group_tag reads the tag of a UDP datagram to a group; false: the frame is none, or no tag claims its port. */
static __always_inline bool group_tag(struct eth_header *eth, void *data_end, struct unet_tag6 *tag)
{
	struct ipv4_header *ip = (void *)(eth + 1);
	struct ipv6_header *ip6 = (void *)(eth + 1);
	struct udp_header *udp;

	if (eth->type == bpf_htons(ETHERTYPE_IPV4)) {
		if ((void *)(ip + 1) > data_end || !is_ipv4(ip) || ip->protocol != PROTOCOL_UDP || is_fragment(ip))
			return false;
		udp = (void *)ip + header_len(ip);
		if ((void *)(udp + 1) > data_end || !any_port(udp->dst))
			return false;
		group_tag4(tag, is_broadcast(eth->dst) ? BROADCAST : ip->dst, udp->dst);
		return is_broadcast(eth->dst) ? is_any_broadcast(ip->dst) : is_group4_of(eth->dst, ip->dst);
	}
	if (eth->type == bpf_htons(ETHERTYPE_IPV6)) {
		udp = (void *)(ip6 + 1);
		if ((void *)(udp + 1) > data_end || !is_ipv6(ip6) || ip6->next_header != PROTOCOL_UDP ||
		    !is_group6_of(eth->dst, ip6->dst) || !any_port(udp->dst))
			return false;
		*tag = (struct unet_tag6){ .kind = UNET_TAG_UDP, .port = udp->dst, .addr = { ip6->dst[0], ip6->dst[1], ip6->dst[2], ip6->dst[3] } };
		return true;
	}
	return false;
}

/*
 * copy_to_group copies a frame of the kernel's for the endpoints that hold its tag, if there are any. A martian from the
 * wire is not copied; the kernel decides what becomes of it.
 */
static __always_inline void copy_to_group(struct __sk_buff *skb, bool from_wire)
{
	struct eth_header *eth = (void *)(long)skb->data;
	void *data_end = (void *)(long)skb->data_end;
	struct unet_tag6 tag;

	if ((void *)(eth + 1) > data_end || !group_tag(eth, data_end, &tag) || !bpf_map_lookup_elem(&groups, &tag))
		return;
	if (!from_wire || !is_martian_packet(eth, data_end))
		bpf_clone_redirect(skb, config.up, BPF_F_INGRESS); /* without memory it is lost, as any frame */
}

/* unet_group_in is at the uplink's entry to traffic control. */
SEC("tcx/ingress")
int unet_group_in(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_MULTICAST && skb->pkt_type != PACKET_BROADCAST)
		return TCX_NEXT;
	if (skb->vlan_tci & VLAN_ID || !put_link_header(skb))
		return TCX_NEXT;
	if (has_headers(skb) || !bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX))
		copy_to_group(skb, true);
	return TCX_NEXT;
}

/* unet_group is generic XDP of the device up: a frame there is a copy, or the kernel has sent it out of top. */
SEC("xdp.frags")
int unet_group(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct eth_header *eth = data;
	struct unet_tag6 tag;
	__u32 *members;
	void *ports;

	if ((void *)(eth + 1) > data_end)
		return XDP_DROP;
	if (is_from(eth, UNET_KERNEL_LINK))
		return count(UNET_DELIVER_KERNEL, XDP_DROP);
	if (!group_tag(eth, data_end, &tag))
		return XDP_DROP;
	members = bpf_map_lookup_elem(&groups, &tag);
	ports = bpf_map_lookup_elem(&group_ports, &tag);
	if (!members || !ports) /* the last one has just left */
		return XDP_DROP;
	add(UNET_RX_GROUP, *members);
	return bpf_redirect_map(ports, 0, BPF_F_BROADCAST);
}

/* is_for_port: the frame is for an endpoint on a port. */
static __always_inline bool is_for_port(struct __sk_buff *skb)
{
	struct eth_header *eth;
	void *data_end;
	struct found f;

	if (!has_headers(skb) && bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX))
		return false;
	eth = (void *)(long)skb->data;
	data_end = (void *)(long)skb->data_end;
	if ((void *)(eth + 1) > data_end)
		return false;
	f = find_unicast(of_skb(skb), eth, data_end);
	return f.owner && f.owner->port;
}

/* is_announcement: an ARP announcement (RFC 5227, 1.1). unetd sends those of owned addresses, whose owners need none. */
static __always_inline bool is_announcement(struct eth_header *eth, void *data_end)
{
	struct arp_packet *arp = (void *)(eth + 1);

	return eth->type == bpf_htons(ETHERTYPE_ARP) && (void *)(arp + 1) <= data_end && arp->sender == arp->target;
}

/*
 * unet_egress is at the uplink's exit of traffic control: the kernel asks for the MAC address of a
 * owned address there, and sends to it, and the wire has no answer. It is that of the uplink. The
 * request goes to the wire too: an announcement is for all hosts. What the kernel sends to a group is copied.
 *
 * All else is sent to the wire as without this program, also to the uplink's own MAC address: a switch may return
 * frames (a macvlan in VEPA mode needs that). Frames with another source MAC address are not the kernel's own, but those of a
 * macvlan or of a bridge port: the kernel's sockets do not get them here either.
 */
SEC("tcx/egress")
int unet_egress(struct __sk_buff *skb)
{
	struct eth_header *eth = (void *)(long)skb->data;
	void *data_end = (void *)(long)skb->data_end;
	enum unet_counter forged;
	bool unicast;

	if ((void *)(eth + 1) > data_end || skb->vlan_tci & VLAN_ID || is_vlan(eth->type))
		return TCX_NEXT;
	forged = forges(eth, data_end);
	if (forged != UNET_RX_PASS)
		return count(forged, TCX_DROP);
	unicast = is_link(eth->dst, config.link_head, config.link_tail);
	if ((!unicast && !(eth->dst[0] & 1)) || !is_link(eth->src, config.link_head, config.link_tail))
		return TCX_NEXT;
	if (unicast)
		return is_for_port(skb) ? bpf_redirect(LO, BPF_F_INGRESS) : TCX_NEXT;
	if (any_addr() && !is_announcement(eth, data_end) && find_asked(of_skb(skb), eth->dst, eth, data_end).owner)
		bpf_clone_redirect(skb, LO, BPF_F_INGRESS); /* if there is no memory, the kernel asks again */
	else
		copy_to_group(skb, false);
	return TCX_NEXT;
}

/* may_broadcast: the sender holds the whole source address, or broadcasts to its source port. */
static __always_inline bool may_broadcast(struct ipv4_header *ip, void *data_end, __u32 port)
{
	struct udp_header *udp = (void *)ip + header_len(ip);
	struct unet_tag6 tag;
	void *ports;

	if (held_by(addr_holder(ip->src), port))
		return true;
	if (ip->protocol != PROTOCOL_UDP || (void *)(udp + 1) > data_end)
		return false;
	group_tag4(&tag, BROADCAST, udp->src);
	ports = bpf_map_lookup_elem(&group_ports, &tag);
	return ports && bpf_map_lookup_elem(ports, &port);
}

/*
 * is_to_group: the destination IP address is, or may be, a group or a broadcast address, whatever the MAC address: a host
 * accepts such a packet in a frame to its own MAC address, too.
 */
static __always_inline bool is_to_group(struct eth_header *eth, void *data_end)
{
	struct ipv4_header *ip = (void *)(eth + 1);
	struct ipv6_header *ip6 = (void *)(eth + 1);

	if (eth->type == bpf_htons(ETHERTYPE_IPV4))
		return (void *)(ip + 1) <= data_end && (*(const __u8 *)&ip->dst >= 224 || possible_kinds(ip->dst) & 1 << OWN_BROADCAST);
	return eth->type == bpf_htons(ETHERTYPE_IPV6) && (void *)(ip6 + 1) <= data_end && is_multicast6(ip6->dst);
}

/*
 * check_group: what an endpoint sends to a group or a broadcast address, or to the MAC address of one. The MAC address must
 * be the one of the destination IP address: hosts also accept packets to their own address by broadcast, and switches flood
 * them.
 */
static __always_inline int check_group(struct eth_header *eth, void *data_end, __u32 port)
{
	struct ipv4_header *ip = (void *)(eth + 1);
	struct ipv6_header *ip6 = (void *)(eth + 1);
	bool is, right;

	if (eth->type == bpf_htons(ETHERTYPE_IPV4)) {
		if ((void *)(ip + 1) > data_end)
			return UNET_TX_TRUNCATED;
		if (is_any_broadcast(ip->dst)) {
			if (!may_broadcast(ip, data_end, port))
				return UNET_TX_BROADCAST;
			return is_broadcast(eth->dst) ? ALLOWED : UNET_TX_FORGED_GROUP;
		}
		is = is_multicast4(ip->dst);
		right = is_group4_of(eth->dst, ip->dst);
	} else if (eth->type == bpf_htons(ETHERTYPE_IPV6)) {
		if ((void *)(ip6 + 1) > data_end)
			return UNET_TX_TRUNCATED;
		is = is_multicast6(ip6->dst);
		right = is_group6_of(eth->dst, ip6->dst);
	} else {
		return ALLOWED;
	}
	return right || (!is && !(eth->dst[0] & 1)) ? ALLOWED : UNET_TX_FORGED_GROUP;
}

/* group_copies is how many endpoints other than the sender hold the tag. to is where they, and the wire, are. */
static __always_inline __u32 group_copies(struct eth_header *eth, void *data_end, __u32 port, void **to)
{
	struct unet_tag6 tag;
	__u32 *members, own;

	if (!group_tag(eth, data_end, &tag))
		return 0;
	members = bpf_map_lookup_elem(&groups, &tag);
	*to = bpf_map_lookup_elem(&group_devices, &tag);
	if (!members || !*to)
		return 0;
	own = bpf_map_lookup_elem(*to, &port) ? 1 : 0; /* also before it is counted in members */
	return *members > own ? *members - own : 0;
}

#endif
