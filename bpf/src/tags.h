/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The tag table, and the one answer to "whose is this frame?". The uplink
 * program asks it of every frame, the port program of frames to this host.
 */
#ifndef UNET_TAGS_H
#define UNET_TAGS_H

#include "headers.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct unet_tag);
	__type(value, struct unet_owner);
} tags SEC(".maps");

static __always_inline struct unet_owner *holder(enum unet_tag_kind kind, __be16 port, __be32 value)
{
	struct unet_tag tag = { .kind = kind, .port = port, .value = value };

	return bpf_map_lookup_elem(&tags, &tag);
}

static __always_inline struct unet_owner *udp_holder(__be32 addr, __be16 port)
{
	return holder(UNET_TAG_UDP, port, addr);
}

static __always_inline struct unet_owner *addr_holder(__be32 addr)
{
	return holder(UNET_TAG_ADDR, 0, addr);
}

static __always_inline struct unet_owner *message_holder(__be32 tag)
{
	return holder(UNET_TAG_MESSAGE, 0, tag);
}

enum find_problem {
	FIND_OK = 0,
	FIND_TRUNCATED,  /* ended before a tag could be read; no owner */
	FIND_BAD_LENGTH, /* there is an owner, and a length field that lies */
};

struct found {
	struct unet_owner *owner; /* NULL: nobody */
	enum find_problem problem;
};

/*
 * holds reports whether the frame has n bytes from at on. Nearly every frame
 * lies in one buffer, and then this is one comparison.
 */
static __always_inline bool holds(struct xdp_md *ctx, void *at, __u32 n)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;

	if (n <= (__u64)(data_end - at))
		return true;
	return n <= bpf_xdp_get_buff_len(ctx) - (__u64)(at - data);
}

/* icmp_is_error: the types that quote the packet they are about (RFC 792; 4 is dead, RFC 6633). */
static __always_inline bool icmp_is_error(__u8 type)
{
	return type == 3 || type == 11 || type == 12;
}

/*
 * quoted_holder finds who sent the packet that an ICMP error quotes, if it
 * was a UDP datagram from addr, where the error is addressed to.
 */
static __always_inline struct unet_owner *quoted_holder(struct icmp_header *icmp, void *data_end, __be32 addr)
{
	struct ipv4_header *quoted = (void *)(icmp + 1);
	struct udp_header *udp;

	if ((void *)(icmp + 1) > data_end || !icmp_is_error(icmp->type))
		return NULL;
	if ((void *)(quoted + 1) > data_end || !is_ipv4(quoted))
		return NULL;
	if (quoted->protocol != PROTOCOL_UDP || quoted->src != addr ||
	    quoted->fragment & bpf_htons(IPV4_OFFSET))
		return NULL;
	udp = (void *)quoted + header_len(quoted);
	if ((void *)(udp + 1) > data_end) /* RFC 792: 8 bytes are always quoted */
		return NULL;
	return udp_holder(quoted->src, udp->src);
}

static __always_inline struct found find_ipv4(struct xdp_md *ctx, struct ipv4_header *ip, void *data_end)
{
	struct found f = {};
	__u32 total, ihl;
	void *l4;

	if ((void *)(ip + 1) > data_end) {
		f.problem = FIND_TRUNCATED;
		return f;
	}
	if (!is_ipv4(ip))
		return f;
	ihl = header_len(ip);
	total = bpf_ntohs(ip->total_length);
	l4 = (void *)ip + ihl;

	if (ip->protocol == PROTOCOL_UDP && !is_fragment(ip)) {
		struct udp_header *udp = l4;

		if ((void *)(udp + 1) > data_end) {
			f.problem = FIND_TRUNCATED;
		} else {
			f.owner = udp_holder(ip->dst, udp->dst);
			if (f.owner && (bpf_ntohs(udp->length) < sizeof(*udp) ||
					ihl + bpf_ntohs(udp->length) > total))
				f.problem = FIND_BAD_LENGTH;
		}
	} else if (ip->protocol == PROTOCOL_ICMP && !is_fragment(ip)) {
		f.owner = quoted_holder(l4, data_end, ip->dst);
	}
	if (!f.owner) {
		f.owner = addr_holder(ip->dst);
		/* Its owner judges what is inside its packets. */
		if (f.owner)
			f.problem = FIND_OK;
	}
	if (f.owner && (total < ihl || !holds(ctx, ip, total)))
		f.problem = FIND_BAD_LENGTH;
	return f;
}

/* find_arp: ARP for a whole address is its owner's, all other ARP the kernel's. */
static __always_inline struct found find_arp(struct arp_packet *arp, void *data_end)
{
	struct found f = {};

	if ((void *)(arp + 1) > data_end)
		f.problem = FIND_TRUNCATED;
	else if (is_arp(arp))
		f.owner = addr_holder(arp->target);
	return f;
}

static __always_inline struct found find_message(struct xdp_md *ctx, struct message_header *m, void *data_end)
{
	struct found f = {};

	if ((void *)(m + 1) > data_end) {
		f.problem = FIND_TRUNCATED;
		return f;
	}
	if (m->version != MESSAGE_VERSION)
		return f;
	f.owner = message_holder(m->dst);
	if (f.owner && !holds(ctx, m, sizeof(*m) + bpf_ntohs(m->length)))
		f.problem = FIND_BAD_LENGTH;
	return f;
}

#endif
