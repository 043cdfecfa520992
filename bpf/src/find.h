/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The look-up of the owner of a frame: by the uplink program for each frame, by the
 * port program for frames to this host.
 */
#ifndef UNET_FIND_H
#define UNET_FIND_H

#include "tags.h"

enum find_problem {
	FIND_OK = 0,
	FIND_TRUNCATED,  /* the frame ends before its tag; no owner */
	FIND_BAD_LENGTH, /* there is an owner, and a length field is wrong */
	FIND_FRAGMENT,   /* no owner, but it is the first fragment of a packet to a port that is held */
	FIND_EXTENSION,  /* no owner, but a port that is, or may be, held follows IPv6 extension headers */
};

struct found {
	struct unet_owner *owner; /* NULL: there is none */
	enum find_problem problem;
};

/*
 * A frame, as the kernel gives it to an XDP program or to one of traffic control. skb is a
 * constant in each program, so the compiler keeps one of the two.
 */
struct frame {
	void *ctx; /* struct xdp_md, or with skb struct __sk_buff */
	bool skb;
};

static __always_inline struct frame of_xdp(struct xdp_md *ctx)
{
	return (struct frame){ ctx, false };
}

static __always_inline struct frame of_skb(struct __sk_buff *skb)
{
	return (struct frame){ skb, true };
}

static __always_inline void *frame_data(struct frame f)
{
	if (f.skb)
		return (void *)(long)((struct __sk_buff *)f.ctx)->data;
	return (void *)(long)((struct xdp_md *)f.ctx)->data;
}

/* frame_len is the length of the whole frame, in bytes. */
static __always_inline __u32 frame_len(struct frame f)
{
	if (f.skb)
		return ((struct __sk_buff *)f.ctx)->len;
	return bpf_xdp_get_buff_len(f.ctx);
}

/* frame_load copies bytes of the frame; false: it has fewer. */
static __always_inline bool frame_load(struct frame f, __u32 at, void *to, __u32 n)
{
	if (f.skb)
		return !bpf_skb_load_bytes(f.ctx, at, to, n);
	return !bpf_xdp_load_bytes(f.ctx, at, to, n);
}

/*
 * holds reports whether the frame has n bytes from at on. Nearly all frames are in
 * one buffer, and then this is one comparison.
 */
static __always_inline bool holds(struct frame f, void *data_end, void *at, __u32 n)
{
	__u64 before;

	if (n <= (__u64)(data_end - at))
		return true;
	before = at - frame_data(f);
	barrier_var(before); /* the verifier knows the difference of two pointers, and no other sum with them */
	return n <= frame_len(f) - before;
}

/* udp_problem: room is the length of the IP payload, in bytes. */
static __always_inline enum find_problem udp_problem(struct udp_header *udp, void *data_end, __u32 room)
{
	__u32 length;

	if ((void *)(udp + 1) > data_end)
		return FIND_TRUNCATED;
	length = bpf_ntohs(udp->length);
	return length < sizeof(*udp) || length > room ? FIND_BAD_LENGTH : FIND_OK;
}

static __always_inline enum find_problem tcp_problem(struct tcp_header *tcp, void *data_end, __u32 room)
{
	__u32 length;

	if ((void *)(tcp + 1) > data_end)
		return FIND_TRUNCATED;
	length = (tcp->offset >> 4) * 4;
	return length < sizeof(*tcp) || length > room ? FIND_BAD_LENGTH : FIND_OK;
}

/* ports_problem: unless the header is truncated, it can be read as struct udp_header afterwards. */
static __always_inline enum find_problem ports_problem(__u8 protocol, void *l4, void *data_end, __u32 room)
{
	if (protocol == PROTOCOL_UDP)
		return udp_problem(l4, data_end, room);
	return tcp_problem(l4, data_end, room);
}

/* icmp_is_error: the types that report a discarded packet (RFC 792), without the obsolete 4 (RFC 6633). */
static __always_inline bool icmp_is_error(__u8 type)
{
	return type == 3 || type == 11 || type == 12;
}

static __always_inline bool icmp6_is_error(__u8 type)
{
	return type >= 1 && type <= 4; /* RFC 4443 */
}

/*
 * quoted_holder finds the holder of the source port of the packet that an ICMP error
 * quotes, if that is UDP or TCP and its source is addr, the destination of the error.
 * The quotation must be in the error's room bytes.
 */
static __always_inline struct unet_owner *quoted_holder(struct icmp_header *icmp, void *data_end, __u32 room, __be32 addr)
{
	struct ipv4_header *quoted = (void *)(icmp + 1);
	struct quoted_ports *ports;

	if ((void *)(quoted + 1) > data_end || !icmp_is_error(icmp->type) || !is_ipv4(quoted))
		return NULL;
	if (!has_ports(quoted->protocol) || quoted->src != addr || quoted->fragment & bpf_htons(IPV4_OFFSET))
		return NULL;
	ports = (void *)quoted + header_len(quoted);
	if ((void *)(ports + 1) > data_end || (void *)(ports + 1) - (void *)icmp > room)
		return NULL;
	return port_holder(quoted->protocol, addr, ports->src);
}

/* quoted_holder6 is quoted_holder for ICMPv6. A quoted packet with extension headers has no holder. */
static __always_inline struct unet_owner *quoted_holder6(struct icmp_header *icmp, void *data_end, __u32 room, const __be32 *addr)
{
	struct ipv6_header *quoted = (void *)(icmp + 1);
	struct quoted_ports *ports = (void *)(quoted + 1);

	if ((void *)(ports + 1) > data_end || (void *)(ports + 1) - (void *)icmp > room)
		return NULL;
	if (!icmp6_is_error(icmp->type) || !is_ipv6(quoted) || !has_ports(quoted->next_header) || !same_addr(quoted->src, addr))
		return NULL;
	return port_holder6(quoted->next_header, addr, ports->src);
}

/*
 * fragment_problem is about the first fragment of an IPv4 packet. The holder of a port
 * gets no fragments, since only the first one has the port. The kernel must not get it
 * either: it would reassemble the packet and answer with port unreachable. Without the
 * first fragment the kernel sends nothing, also no time exceeded (RFC 1122, 3.3.2). A
 * fragment too short for ports does no harm: a packet cannot be completed with it, since
 * other fragments begin at 8 bytes or later, and Linux drops overlapping fragments.
 */
static __always_inline enum find_problem fragment_problem(struct ipv4_header *ip, void *l4, void *data_end)
{
	struct quoted_ports *ports = l4;

	if ((void *)(ports + 1) > data_end)
		return FIND_OK;
	return port_holder(ip->protocol, ip->dst, ports->dst) ? FIND_FRAGMENT : FIND_OK;
}

/*
 * is_unclaimed: no tag claims the port, and there are no owned addresses. So it is with most frames of
 * the kernel. A header that is truncated is checked later.
 */
static __always_inline bool is_unclaimed(struct quoted_ports *ports, void *data_end)
{
	return (void *)(ports + 1) <= data_end && !any_port(ports->dst) && !any_addr();
}

static __always_inline struct found find_ipv4(struct frame frame, struct ipv4_header *ip, void *data_end)
{
	struct found f = {};
	__u32 total, ihl, room;
	void *l4;

	if ((void *)(ip + 1) > data_end) {
		f.problem = FIND_TRUNCATED;
		return f;
	}
	if (!is_ipv4(ip))
		return f;
	ihl = header_len(ip);
	l4 = (void *)ip + ihl;
	if (has_ports(ip->protocol) && !is_fragment(ip) && is_unclaimed(l4, data_end))
		return f;
	total = bpf_ntohs(ip->total_length);
	room = total > ihl ? total - ihl : 0;

	if (has_ports(ip->protocol) && !is_fragment(ip)) {
		f.problem = ports_problem(ip->protocol, l4, data_end, room);
		if (f.problem != FIND_TRUNCATED)
			f.owner = port_holder(ip->protocol, ip->dst, ((struct udp_header *)l4)->dst);
	} else if (ip->protocol == PROTOCOL_ICMP && !is_fragment(ip)) {
		f.owner = quoted_holder(l4, data_end, room, ip->dst);
	} else if (has_ports(ip->protocol) && is_first(ip)) {
		f.problem = fragment_problem(ip, l4, data_end);
	}
	if (!f.owner) {
		if (any_addr())
			f.owner = addr_holder(ip->dst);
		/* The owner of an address checks the transport header itself. */
		if (f.owner || f.problem == FIND_BAD_LENGTH)
			f.problem = FIND_OK;
	}
	if (f.owner && (total < ihl || !holds(frame, data_end, ip, total)))
		f.problem = FIND_BAD_LENGTH;
	return f;
}

/* solicited_holder finds the holder of the target of a neighbour solicitation. */
static __always_inline struct unet_owner *solicited_holder(struct nd_message *nd, void *data_end, __u32 room)
{
	if ((void *)(nd + 1) > data_end || sizeof(*nd) > room || nd->type != ND_SOLICITATION)
		return NULL;
	return addr_holder6(nd->target);
}

/*
 * ipv6_problem: the frame must have the payload length of the fixed header. A payload
 * length of 0 is a jumbogram (RFC 2675), which is longer than any MTU here.
 */
static __always_inline enum find_problem ipv6_problem(struct frame frame, struct ipv6_header *ip, void *data_end)
{
	__u32 payload = bpf_ntohs(ip->payload_length);

	return payload && holds(frame, data_end, ip, sizeof(*ip) + payload) ? FIND_OK : FIND_BAD_LENGTH;
}

/* What is known of an IPv6 packet after some of its extension headers. */
struct extension_walk {
	__be32 dst[4];
	__u32 at; /* of the next header, in bytes from the beginning of the frame */
	__u8 next;
	bool fragment;
	__u8 zero[2];
};

#define WALK_ON (-1)

/*
 * walk_extension reads one header. It returns the problem, or WALK_ON if another header follows.
 *
 * The functions that walk are global: the verifier reads a global function once, and a static one again on
 * each path to a call and in each iteration, which took 4/5 of the time to load the programs.
 */
static __always_inline int walk_extension(struct frame frame, struct extension_walk *w)
{
	struct ipv6_extension h;

	/* An extension header, and the payload of a fragment, has at least 8 bytes. (w is never NULL; the verifier does not know.) */
	if (!w || !frame_load(frame, w->at, &h, sizeof(h)))
		return FIND_OK;
	if (has_ports(w->next)) {
		if (!port_holder6(w->next, w->dst, ((struct quoted_ports *)&h)->dst))
			return FIND_OK;
		return w->fragment ? FIND_FRAGMENT : FIND_EXTENSION;
	}
	if (w->next == PROTOCOL_FRAGMENT) {
		if (((struct ipv6_fragment *)&h)->offset & bpf_htons(IPV6_OFFSET))
			return FIND_OK;
		w->fragment = true;
		w->at += sizeof(struct ipv6_fragment);
	} else if (!is_extension(w->next) || (w->next == PROTOCOL_ROUTING && h.segments_left)) {
		return FIND_OK;
	} else {
		w->at += w->next == PROTOCOL_AH ? (h.length + 2) * 4 : (h.length + 1) * 8;
	}
	w->next = h.next_header;
	return WALK_ON;
}

__noinline int walk_extension_xdp(struct xdp_md *ctx, struct extension_walk *w)
{
	return walk_extension(of_xdp(ctx), w);
}

__noinline int walk_extension_skb(struct __sk_buff *skb, struct extension_walk *w)
{
	return walk_extension(of_skb(skb), w);
}

/*
 * walk_extensions reads the extension headers of an IPv6 packet, whose offset in the
 * frame is "at" bytes. The holder of a port gets no packets with extension headers, as none
 * may be sent from a port (check6.h). The kernel must not get them either, since it would
 * answer them in place of the holder.
 *
 * Passed to the kernel are packets with another final destination (segments left in a
 * routing header), later fragments, and packets with headers of unknown length. A packet
 * with EXTENSIONS_MAX headers or more is dropped: by RFC 8200, 4.1 each header should
 * occur at most once, and destination options at most twice.
 */
static __always_inline enum find_problem walk_extensions(struct frame frame, __u32 at)
{
	struct extension_walk w = {};
	struct ipv6_header ip;
	int i, problem;

	if (!frame_load(frame, at, &ip, sizeof(ip)))
		return FIND_OK;
	__builtin_memcpy(w.dst, ip.dst, sizeof(w.dst));
	w.at = at + sizeof(ip);
	w.next = ip.next_header;
	for (i = 0; i < EXTENSIONS_MAX; i++) {
		problem = frame.skb ? walk_extension_skb(frame.ctx, &w) : walk_extension_xdp(frame.ctx, &w);
		if (problem != WALK_ON)
			return problem;
	}
	return FIND_EXTENSION;
}

__noinline enum find_problem walk_extensions_xdp(struct xdp_md *ctx, __u32 at)
{
	return walk_extensions(of_xdp(ctx), at);
}

__noinline enum find_problem walk_extensions_skb(struct __sk_buff *skb, __u32 at)
{
	return walk_extensions(of_skb(skb), at);
}

static __always_inline enum find_problem extension_problem(struct frame frame, __u32 at)
{
	return frame.skb ? walk_extensions_skb(frame.ctx, at) : walk_extensions_xdp(frame.ctx, at);
}

/*
 * find_ipv6 reads only ports that directly follow the fixed header. A packet with extension
 * headers (also a fragment) goes to the holder of the owned address or to the kernel, or is dropped.
 */
static __always_inline struct found find_ipv6(struct frame frame, struct ipv6_header *ip, void *data_end)
{
	struct found f = {};
	void *l4 = ip + 1;
	__u32 room;

	if (l4 > data_end) {
		f.problem = FIND_TRUNCATED;
		return f;
	}
	if (!is_ipv6(ip))
		return f;
	room = bpf_ntohs(ip->payload_length);

	if (has_ports(ip->next_header)) {
		if (is_unclaimed(l4, data_end))
			return f;
		f.problem = ports_problem(ip->next_header, l4, data_end, room);
		if (f.problem != FIND_TRUNCATED)
			f.owner = port_holder6(ip->next_header, ip->dst, ((struct udp_header *)l4)->dst);
	} else if (ip->next_header == PROTOCOL_ICMPV6) {
		f.owner = quoted_holder6(l4, data_end, room, ip->dst);
		if (!f.owner)
			f.owner = solicited_holder(l4, data_end, room);
	}
	if (!f.owner) {
		if (any_addr())
			f.owner = addr_holder6(ip->dst);
		if (f.owner || f.problem == FIND_BAD_LENGTH)
			f.problem = FIND_OK;
		else if (ip->next_header == PROTOCOL_FRAGMENT || is_extension(ip->next_header))
			f.problem = extension_problem(frame, (void *)ip - frame_data(frame));
	}
	if (f.owner && !f.problem)
		f.problem = ipv6_problem(frame, ip, data_end);
	return f;
}

/* find_arp: ARP for an owned address goes to its owner, all other ARP to the kernel. */
static __always_inline struct found find_arp(struct arp_packet *arp, void *data_end)
{
	struct found f = {};

	if ((void *)(arp + 1) > data_end)
		f.problem = FIND_TRUNCATED;
	else if (is_arp(arp))
		f.owner = addr_holder(arp->target);
	return f;
}

/*
 * find_solicitation: a neighbour solicitation to the solicited-node address of its
 * target goes to the target's owner. All other multicast, and solicitations for a
 * shared address, go to the kernel.
 */
static __always_inline struct found find_solicitation(struct frame frame, const __u8 *dst, struct eth_header *eth, void *data_end)
{
	struct ipv6_header *ip = (void *)(eth + 1);
	struct nd_message *nd = (void *)(ip + 1);
	struct found f = {};

	if ((void *)(ip + 1) > data_end) {
		f.problem = FIND_TRUNCATED;
		return f;
	}
	if (!is_ipv6(ip) || ip->next_header != PROTOCOL_ICMPV6 || bpf_ntohs(ip->payload_length) < sizeof(*nd) ||
	    !is_group_of(dst, ip->dst))
		return f;
	if ((void *)(nd + 1) > data_end) {
		f.problem = FIND_TRUNCATED;
		return f;
	}
	if (is_solicited_node(ip->dst, nd->target))
		f.owner = solicited_holder(nd, data_end, bpf_ntohs(ip->payload_length));
	if (f.owner)
		f.problem = ipv6_problem(frame, ip, data_end);
	return f;
}

static __always_inline struct found find_message(struct frame frame, struct message_header *m, void *data_end)
{
	struct found f = {};

	if ((void *)(m + 1) > data_end) {
		f.problem = FIND_TRUNCATED;
		return f;
	}
	if (m->version != MESSAGE_VERSION)
		return f;
	f.owner = message_holder(m->dst);
	if (f.owner && !holds(frame, data_end, m, sizeof(*m) + bpf_ntohs(m->length)))
		f.problem = FIND_BAD_LENGTH;
	return f;
}

/* find_unicast: the owner of a frame to the uplink's MAC address. It reads eth from the type on only. */
static __always_inline struct found find_unicast(struct frame frame, struct eth_header *eth, void *data_end)
{
	struct found nobody = {};

	if (eth->type == bpf_htons(ETHERTYPE_IPV4))
		return find_ipv4(frame, (void *)(eth + 1), data_end);
	if (eth->type == bpf_htons(ETHERTYPE_IPV6))
		return find_ipv6(frame, (void *)(eth + 1), data_end);
	if (eth->type == bpf_htons(ETHERTYPE_UNET))
		return find_message(frame, (void *)(eth + 1), data_end);
	if (eth->type == bpf_htons(ETHERTYPE_ARP))
		return find_arp((void *)(eth + 1), data_end);
	return nobody;
}

/*
 * find_asked: the owner of the address for which a broadcast or multicast frame requests the MAC
 * address. dst is the destination of the frame; eth is read from the type on only.
 */
static __always_inline struct found find_asked(struct frame frame, const __u8 *dst, struct eth_header *eth, void *data_end)
{
	struct found nobody = {};

	if (eth->type == bpf_htons(ETHERTYPE_ARP) && is_broadcast(dst))
		return find_arp((void *)(eth + 1), data_end);
	if (eth->type == bpf_htons(ETHERTYPE_IPV6) && is_group(dst))
		return find_solicitation(frame, dst, eth, data_end);
	return nobody;
}

#endif
