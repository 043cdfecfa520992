/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * What an endpoint may send: the checks of IPv4, ARP and messages, and what they
 * share with those of IPv6 (check6.h). A check answers the counter of what is
 * wrong, or ALLOWED.
 *
 * The tag decides what a frame may say of its sender. A port is the right to
 * complete UDP or TCP packets from that port, as the kernel gives it to a program
 * by bind(2). A whole address is the right to be a host: UDP, TCP, echo and errors of
 * ICMP, options, fragments, ARP and neighbour discovery for itself. What hosts believe
 * of the infrastructure of their network, such as DHCP servers and routers, takes a
 * right more (UNET_INFRASTRUCTURE), as the kernel lets only the privileged send it:
 * all other IP protocols, and some UDP ports. Who holds a whole address may claim any
 * port of it, so a port of one is no way around that. Nothing says whom a frame may
 * go to: a program may send to everybody too, and to broadcast and multicast.
 */
#ifndef UNET_CHECK_H
#define UNET_CHECK_H

#include "find.h"

#define ALLOWED (-1)

static __always_inline bool held_by(struct unet_owner *owner, __u32 port)
{
	return owner && owner->port == port;
}

/*
 * check_whole: the last word about a packet from a whole address, or from somebody who
 * must hold one for it. plain: any host may send it.
 */
static __always_inline int check_whole(struct unet_owner *owner, __u32 port, bool plain)
{
	if (!held_by(owner, port))
		return UNET_TX_FORGED_ADDR;
	return plain || owner->queue & UNET_INFRASTRUCTURE ? ALLOWED : UNET_TX_INFRASTRUCTURE;
}

/*
 * is_plain_udp: not from the servers of DHCP (RFC 2131) and DHCPv6 (RFC 8415) or RIP
 * (RFC 2453, RFC 2080), and not to clients of DHCP, many of which do not look where an
 * offer comes from.
 */
static __always_inline bool is_plain_udp(struct udp_header *udp)
{
	return udp->src != bpf_htons(67) && udp->src != bpf_htons(547) &&
	       udp->src != bpf_htons(520) && udp->src != bpf_htons(521) &&
	       udp->dst != bpf_htons(68) && udp->dst != bpf_htons(546);
}

/*
 * check_ports: the header with the ports must be all there and its lengths true.
 * fragment: of a packet in fragments this is the first. room: bytes of the
 * packet from l4 on.
 */
static __always_inline int check_ports(__u8 protocol, bool fragment, void *l4, void *data_end, __u32 room)
{
	/* A datagram's length is that of all its fragments. */
	__u32 limit = fragment && protocol == PROTOCOL_UDP ? 0xffff : room;
	enum find_problem problem = ports_problem(protocol, l4, data_end, limit);

	if (problem == FIND_TRUNCATED)
		return UNET_TX_TRUNCATED;
	return problem || room < sizeof(struct udp_header) ? UNET_TX_BAD_LENGTH : ALLOWED;
}

/* icmp_is_routers: what only routers send, or nobody any more (RFC 6633), or hosts to find routers (RFC 1256). */
static __always_inline bool icmp_is_routers(__u8 type)
{
	return type == 4 || type == 5 || type == 9 || type == 10; /* source quench, redirect, the two of discovery */
}

/*
 * check_icmp: icmp is the beginning of a packet's payload, room bytes.
 *
 * Whoever receives an error applies it to the flow or the path that it quotes, so
 * an error can do harm to others from a source address that is true: a path MTU of
 * 68 stops a neighbour's connection to somebody else. Only a router has something
 * to report of packets between others, and an endpoint is a host. So it may quote
 * what was sent to the very address that the error comes from (RFC 1122, 3.2.2).
 *
 * No error comes in fragments, for it is short (RFC 1812, 4.3.2.3), and another
 * fragment could replace the quotation.
 */
static __always_inline int check_icmp(struct ipv4_header *ip, struct icmp_header *icmp, void *data_end, __u32 room)
{
	struct ipv4_header *quoted = (void *)(icmp + 1);

	if ((void *)quoted > data_end)
		return UNET_TX_TRUNCATED;
	if (room < sizeof(*icmp))
		return UNET_TX_BAD_LENGTH;
	if (icmp_is_routers(icmp->type))
		return UNET_TX_FORGED_QUOTE;
	if (!icmp_is_error(icmp->type))
		return ALLOWED;

	if (is_fragment(ip) || room < sizeof(*icmp) + sizeof(*quoted))
		return UNET_TX_FORGED_QUOTE;
	if ((void *)(quoted + 1) > data_end)
		return UNET_TX_TRUNCATED;
	return is_ipv4(quoted) && quoted->dst == ip->src ? ALLOWED : UNET_TX_FORGED_QUOTE;
}

/*
 * check_ipv4: room is the number of bytes from ip on.
 *
 * A port alone gives no right to fragments, since only the first of them names
 * the port; and none to IP options, since a program that talks from one port has
 * no use for them, while source routes (RFC 791, 3.1) carry addresses that
 * nobody checks. Both need the whole address, whose owner is like any other host.
 * Not even that owner may name another's port in a first fragment. The ports
 * stand there and nowhere else: a later fragment begins 8 bytes behind.
 */
static __always_inline int check_ipv4(struct ipv4_header *ip, void *data_end, __u32 room, __u32 port)
{
	__u32 total, ihl;
	bool first, plain;
	void *l4;
	int problem;

	if ((void *)(ip + 1) > data_end)
		return UNET_TX_TRUNCATED;
	if (!is_ipv4(ip))
		return UNET_TX_BAD_HEADER;
	ihl = header_len(ip);
	total = bpf_ntohs(ip->total_length);
	if (total < ihl || total > room)
		return UNET_TX_BAD_LENGTH;

	l4 = (void *)ip + ihl;
	first = is_first(ip);
	plain = has_ports(ip->protocol) || ip->protocol == PROTOCOL_ICMP;

	if (first && has_ports(ip->protocol)) {
		struct unet_owner *owner;

		problem = check_ports(ip->protocol, is_fragment(ip), l4, data_end, total - ihl);
		if (problem != ALLOWED)
			return problem;
		/* The most specific tag decides, for better or worse. */
		owner = port_holder(ip->protocol, ip->src, ((struct udp_header *)l4)->src);
		if (owner && !held_by(owner, port))
			return UNET_TX_FORGED_TAG;
		plain = ip->protocol == PROTOCOL_TCP || is_plain_udp(l4);
		if (owner && !is_fragment(ip) && ihl == sizeof(*ip) && (plain || !addr_holder(ip->src)))
			return ALLOWED;
	} else if (first && ip->protocol == PROTOCOL_ICMP) {
		__u8 type;

		problem = check_icmp(ip, l4, data_end, total - ihl);
		if (problem != ALLOWED)
			return problem;
		type = ((struct icmp_header *)l4)->type;
		plain = type == 0 || type == 8 || icmp_is_error(type); /* echo */
	}
	return check_whole(addr_holder(ip->src), port, plain);
}

/*
 * check_arp: only the owner of a whole address may say where it is, or ask
 * whether somebody else has it: a probe names no sender (RFC 5227, 2.1.1).
 */
static __always_inline int check_arp(struct arp_packet *arp, void *data_end, __u32 port)
{
	__be32 addr;

	if ((void *)(arp + 1) > data_end)
		return UNET_TX_TRUNCATED;
	if (!is_arp(arp))
		return UNET_TX_BAD_HEADER;
	addr = arp->sender;
	if (!arp->sender && arp->op == bpf_htons(ARP_REQUEST))
		addr = arp->target;
	if (!is_link(arp->sender_link, config.link_head, config.link_tail) ||
	    !held_by(addr_holder(addr), port))
		return UNET_TX_FORGED_ARP;
	return ALLOWED;
}

static __always_inline int check_message(struct message_header *m, void *data_end, __u32 room, __u32 port)
{
	if ((void *)(m + 1) > data_end)
		return UNET_TX_TRUNCATED;
	if (m->version != MESSAGE_VERSION)
		return UNET_TX_BAD_HEADER;
	if (sizeof(*m) + bpf_ntohs(m->length) > room)
		return UNET_TX_BAD_LENGTH;
	return held_by(message_holder(m->src), port) ? ALLOWED : UNET_TX_FORGED_TAG;
}

#endif
