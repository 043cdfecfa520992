/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * What an endpoint may send: the checks of IPv4, ARP and messages, and what they
 * share with those of IPv6 (check6.h). A check returns the counter of the reason to
 * drop the frame, or ALLOWED.
 *
 * The tags of an endpoint decide about the sources of its frames. A port permits
 * complete UDP or TCP packets from that port, as bind(2) does for a program. An owned
 * address permits what a host sends: UDP, TCP, ICMP echo and errors, options,
 * fragments, ARP and neighbour discovery for itself. What only the infrastructure of a
 * network sends (DHCP servers, routers) also needs UNET_INFRASTRUCTURE, as the kernel
 * requires a privilege for it: all other IP protocols, and some UDP ports. The same
 * holds for a port of an owned address, since the holder of an owned address may claim any
 * port of it. Destinations are not restricted, as for a program of the kernel's stack:
 * broadcast and multicast are allowed. The exception is the port of RDMA devices (tags.h).
 */
#ifndef UNET_CHECK_H
#define UNET_CHECK_H

#include "find.h"
#include "kernel.h"

#define ALLOWED (-1)

static __always_inline bool held_by(struct unet_owner *owner, __u32 port)
{
	return owner && owner->port == port;
}

/*
 * check_owned decides about a packet that needs an owned address as its source. plain: it
 * needs no UNET_INFRASTRUCTURE.
 */
static __always_inline int check_owned(struct unet_owner *owner, __u32 port, bool plain)
{
	if (!held_by(owner, port))
		return UNET_TX_FORGED_ADDR;
	return plain || owner->queue & UNET_INFRASTRUCTURE ? ALLOWED : UNET_TX_INFRASTRUCTURE;
}

/*
 * is_plain_udp: not from the ports of DHCP (RFC 2131) and DHCPv6 (RFC 8415) servers or RIP
 * (RFC 2453, RFC 2080), and not to those of DHCP clients, many of which do not check the
 * source of an offer.
 */
static __always_inline bool is_plain_udp(struct udp_header *udp)
{
	return udp->src != bpf_htons(67) && udp->src != bpf_htons(547) &&
	       udp->src != bpf_htons(520) && udp->src != bpf_htons(521) &&
	       udp->dst != bpf_htons(68) && udp->dst != bpf_htons(546);
}

/* is_rdma: to an RDMA device, from another port than the device's own, whose holder is checked as that of any port. */
static __always_inline bool is_rdma(__u8 protocol, const struct udp_header *udp)
{
	return udp->dst == RDMA_PORT && protocol == PROTOCOL_UDP && udp->src != RDMA_PORT;
}

/*
 * check_ports: the header with the ports must be complete and its lengths correct.
 * fragment: this is the first fragment of a packet. room: bytes of the packet from
 * l4 on.
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

/* icmp_is_routers: types that only routers send, an obsolete one (RFC 6633), and router solicitation (RFC 1256). */
static __always_inline bool icmp_is_routers(__u8 type)
{
	return type == 4 || type == 5 || type == 9 || type == 10; /* source quench, redirect, the two of discovery */
}

/*
 * check_icmp: icmp is the beginning of a packet's payload, room bytes.
 *
 * The receiver applies an error to the flow or the path of the quoted packet. So an
 * error can do harm also with a correct source address: a path MTU of 68 stops a
 * neighbour's connection to a third host. Only routers report about packets between
 * other hosts, and an endpoint is a host. So an error must quote a packet that was
 * sent to the source address of the error (RFC 1122, 3.2.2).
 *
 * An error must not be a fragment: errors are short (RFC 1812, 4.3.2.3), and another
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
 * A port does not permit fragments, since only the first one has the port. Nor does
 * it permit IP options: source routes (RFC 791, 3.1) contain addresses that are not
 * checked, and a program with one port needs no options. Both need an owned
 * address. Its owner may not send a first fragment from a port that another
 * endpoint holds. Other fragments cannot contain the ports, since they begin at
 * least 8 bytes later.
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
		/* The most specific tag decides, also against the holder of the owned address. */
		owner = port_holder(ip->protocol, ip->src, ((struct udp_header *)l4)->src);
		if (owner && !held_by(owner, port))
			return UNET_TX_FORGED_TAG;
		if (unlikely(is_rdma(ip->protocol, l4)) && !held_by(rdma_device(ip->src), port))
			return UNET_TX_FORGED_RDMA;
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
	return check_owned(addr_holder(ip->src), port, plain);
}

/*
 * check_arp: only the owner of an address may announce it, or probe for it: the
 * sender address of a probe is 0 (RFC 5227, 2.1.1).
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
