/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/* What an endpoint may send: the checks of IPv6 and neighbour discovery. */
#ifndef UNET_CHECK6_H
#define UNET_CHECK6_H

#include "check.h"

/*
 * check_nd: all hosts on the link trust neighbour discovery, so an endpoint may send it
 * only about its own addresses. nd is the whole payload, room bytes, of an
 * unfragmented packet. Allowed are:
 *
 *   solicitation          from an owned address, with or without its MAC address
 *   solicitation from ::  probe for an owned address (RFC 4861, 7.1.1)
 *   advertisement         of an owned address, from one, not as a router
 *
 * Router solicitations, router advertisements and redirects are not allowed.
 */
static __always_inline int check_nd(struct ipv6_header *ip, struct nd_message *nd, void *data_end, __u32 room, __u32 port)
{
	struct nd_link_option *option = (void *)(nd + 1);
	bool solicits = nd->type == ND_SOLICITATION, probes = false, own;

	if ((!solicits && nd->type != ND_ADVERTISEMENT) || ip->hop_limit != ND_HOP_LIMIT)
		return UNET_TX_FORGED_ND;
	if (room != sizeof(*nd) && room != sizeof(*nd) + sizeof(*option))
		return UNET_TX_FORGED_ND;
	if ((void *)(nd + 1) > data_end)
		return UNET_TX_TRUNCATED;

	if (!solicits) {
		own = !(nd->flags & ND_ROUTER_FLAG) && held_by(addr_holder6(nd->target), port) &&
		      held_by(addr_holder6(ip->src), port);
	} else if (is_unspecified(ip->src)) {
		probes = true;
		own = is_solicited_node(ip->dst, nd->target) && held_by(addr_holder6(nd->target), port);
	} else {
		own = held_by(addr_holder6(ip->src), port);
	}
	if (!own)
		return UNET_TX_FORGED_ND;

	if (room == sizeof(*nd))
		return ALLOWED;
	if ((void *)(option + 1) > data_end)
		return UNET_TX_TRUNCATED;
	if (probes || option->type != (solicits ? ND_SOURCE_LINK : ND_TARGET_LINK) || option->length != 1 ||
	    !is_link(option->link, config.link_head, config.link_tail))
		return UNET_TX_FORGED_ND;
	return ALLOWED;
}

/*
 * check_icmp6 is check_icmp for ICMPv6: RFC 4443, 2.2 and 2.4. Errors are all types
 * below 128 (2.1), and fit the minimum IPv6 MTU (2.4 c), so they are not fragmented.
 */
static __always_inline int check_icmp6(struct ipv6_header *ip, struct icmp_header *icmp, void *data_end, __u32 room, bool fragment)
{
	struct ipv6_header *quoted = (void *)(icmp + 1);

	if (icmp->type >= 128)
		return ALLOWED;
	if (fragment || room < sizeof(*icmp) + sizeof(*quoted))
		return UNET_TX_FORGED_QUOTE;
	if ((void *)(quoted + 1) > data_end)
		return UNET_TX_TRUNCATED;
	return is_ipv6(quoted) && same_addr(quoted->dst, ip->src) ? ALLOWED : UNET_TX_FORGED_QUOTE;
}

/*
 * check_ipv6 is check_ipv4 for IPv6: room is the number of bytes from ip on, and
 * fragments need the owned address. A first fragment is checked like a packet.
 * Neighbour discovery in fragments is dropped (RFC 6980), and so are packets with
 * other extension headers: the checks do not read what follows those.
 */
static __always_inline int check_ipv6(struct ipv6_header *ip, void *data_end, __u32 room, __u32 port)
{
	void *l4 = ip + 1;
	bool fragment = false, plain = false;
	__u8 next;
	int problem;

	if (l4 > data_end)
		return UNET_TX_TRUNCATED;
	if (!is_ipv6(ip))
		return UNET_TX_BAD_HEADER;
	if (!ip->payload_length || sizeof(*ip) + bpf_ntohs(ip->payload_length) > room)
		return UNET_TX_BAD_LENGTH;
	room = bpf_ntohs(ip->payload_length);
	next = ip->next_header;

	if (next == PROTOCOL_FRAGMENT) {
		struct ipv6_fragment *f = l4;

		l4 = f + 1;
		if (l4 > data_end)
			return UNET_TX_TRUNCATED;
		if (room < sizeof(*f))
			return UNET_TX_BAD_LENGTH;
		if (f->offset & bpf_htons(IPV6_OFFSET)) /* only the first fragment's next header counts (RFC 8200, 4.5) */
			return check_owned(addr_holder6(ip->src), port, true);
		fragment = true;
		room -= sizeof(*f);
		next = f->next_header;
		if (next == PROTOCOL_FRAGMENT)
			return UNET_TX_BAD_HEADER;
	}
	if (is_extension(next))
		return UNET_TX_BAD_HEADER;

	if (has_ports(next)) {
		struct unet_owner *owner;

		problem = check_ports(next, fragment, l4, data_end, room);
		if (problem != ALLOWED)
			return problem;
		owner = port_holder6(next, ip->src, ((struct udp_header *)l4)->src);
		if (owner && !held_by(owner, port))
			return UNET_TX_FORGED_TAG;
		if (unlikely(is_rdma(next, l4)) && !held_by(rdma_device6(ip->src), port))
			return UNET_TX_FORGED_RDMA;
		plain = next == PROTOCOL_TCP || is_plain_udp(l4);
		if (owner && !fragment && (plain || !addr_holder6(ip->src)))
			return ALLOWED;
	} else if (next == PROTOCOL_ICMPV6) {
		struct icmp_header *icmp = l4;

		if ((void *)(icmp + 1) > data_end)
			return UNET_TX_TRUNCATED;
		if (room < sizeof(*icmp))
			return UNET_TX_BAD_LENGTH;
		if (is_nd(icmp->type))
			return fragment ? UNET_TX_FORGED_ND : check_nd(ip, l4, data_end, room, port);
		problem = check_icmp6(ip, icmp, data_end, room, fragment);
		if (problem != ALLOWED)
			return problem;
		plain = icmp->type <= 129; /* errors and echo; not multicast listener discovery (RFC 3810), for one */
	}
	return check_owned(addr_holder6(ip->src), port, plain);
}

#endif
