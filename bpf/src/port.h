/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The port program: a frame comes out of an endpoint, at the outer end of its
 * port. XDP sees only what arrives, so this is where an endpoint's sending can
 * be checked: its owner wrote the frame and shares nothing with us that could
 * be trusted. Which endpoint it is, the device says (ingress_ifindex).
 */
#ifndef UNET_PORT_H
#define UNET_PORT_H

#include "count.h"
#include "tags.h"

#define ALLOWED (-1) /* what the checks answer when there is nothing to count */

static __always_inline bool held_by(struct unet_owner *owner, __u32 port)
{
	return owner && owner->port == port;
}

/* check_ipv4 answers the counter of what is wrong with the packet, or ALLOWED. room: bytes from ip on. */
static __always_inline int check_ipv4(struct ipv4_header *ip, void *data_end, __u32 room, __u32 port)
{
	struct unet_owner *owner;
	__u32 total, ihl;

	if ((void *)(ip + 1) > data_end)
		return UNET_TX_TRUNCATED;
	if (!is_ipv4(ip))
		return UNET_TX_BAD_HEADER;
	ihl = header_len(ip);
	total = bpf_ntohs(ip->total_length);
	if (total < ihl || total > room)
		return UNET_TX_BAD_LENGTH;

	if (ip->protocol == PROTOCOL_UDP && !is_fragment(ip)) {
		struct udp_header *udp = (void *)ip + ihl;
		__u32 length;

		if ((void *)(udp + 1) > data_end)
			return UNET_TX_TRUNCATED;
		length = bpf_ntohs(udp->length);
		if (length < sizeof(*udp) || ihl + length > total)
			return UNET_TX_BAD_LENGTH;
		/* The most specific tag decides, for better or worse. */
		owner = udp_holder(ip->src, udp->src);
		if (owner)
			return held_by(owner, port) ? ALLOWED : UNET_TX_FORGED_TAG;
	}
	return held_by(addr_holder(ip->src), port) ? ALLOWED : UNET_TX_FORGED_ADDR;
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

static __always_inline int send_local(struct unet_owner *owner)
{
	if (!owner->port)
		return count(UNET_TX_TO_QUEUE, XDP_DROP);
	if (bpf_redirect_map(&devices, owner->port, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_TX_PORT_GONE, XDP_DROP);
	return count(UNET_TX_LOCAL, XDP_REDIRECT);
}

SEC("xdp.frags")
int unet_port(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 port = ctx->ingress_ifindex;
	__u32 len = bpf_xdp_get_buff_len(ctx);
	struct eth_header *eth = data;
	void *l3 = eth + 1;
	__u32 room = len - sizeof(*eth);
	int problem;

	if (l3 > data_end)
		return count(UNET_TX_TRUNCATED, XDP_DROP);
	if (len > config.max_frame)
		return count(UNET_TX_OVERSIZE, XDP_DROP);
	if (!is_link(eth->src, config.link_head, config.link_tail))
		return count(UNET_TX_FORGED_LINK, XDP_DROP);

	if (eth->type == bpf_htons(ETHERTYPE_IPV4))
		problem = check_ipv4(l3, data_end, room, port);
	else if (eth->type == bpf_htons(ETHERTYPE_UNET))
		problem = check_message(l3, data_end, room, port);
	else if (eth->type == bpf_htons(ETHERTYPE_ARP))
		problem = check_arp(l3, data_end, port);
	else
		problem = UNET_TX_BAD_ETHERTYPE;
	if (problem != ALLOWED)
		return count(problem, XDP_DROP);

	/* The wire does not bring a frame back: what is for this host is turned round here. */
	if (is_link(eth->dst, config.link_head, config.link_tail)) {
		struct found f;

		if (eth->type == bpf_htons(ETHERTYPE_IPV4))
			f = find_ipv4(ctx, l3, data_end);
		else if (eth->type == bpf_htons(ETHERTYPE_UNET))
			f = find_message(ctx, l3, data_end);
		else
			f = find_arp(l3, data_end);
		if (!f.owner)
			return count(UNET_TX_NO_OWNER, XDP_DROP);
		return send_local(f.owner);
	}
	if (eth->type == bpf_htons(ETHERTYPE_ARP) && is_broadcast(eth->dst)) {
		struct found f = find_arp(l3, data_end);

		/* Its own address is announced to the wire (RFC 5227). */
		if (f.owner && f.owner->port != port)
			return send_local(f.owner);
	}
	if (bpf_redirect_map(&devices, config.uplink, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_TX_UPLINK_GONE, XDP_DROP);
	return count(UNET_TX_UPLINK, XDP_REDIRECT);
}

#endif
