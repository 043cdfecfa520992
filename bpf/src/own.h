/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/* The addresses of the host, and the sources that no packet from the wire can have. */
#ifndef UNET_OWN_H
#define UNET_OWN_H

#include "headers.h"

#define OWN_ADDRESS 1   /* of the uplink: endpoints reach the kernel of their host there */
#define OWN_BROADCAST 2 /* of an IPv4 subnet of the uplink */
#define OWN_HOST 3      /* any other address of the host: no packet from the wire can have it as its source */
#define OWN_ENDPOINT 4  /* an endpoint owns it; the same holds for it */

/* The addresses of the host and of endpoints, IPv4 as ::ffff:a.b.c.d, and the broadcast addresses of the uplink. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNET_OWN_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u8[16]);
	__type(value, __u8);
} own SEC(".maps");

/*
 * By the last byte of an address: the kinds of which own may have such an address, 1 << OWN_ADDRESS and so on. So nearly
 * all frames need no look-up in own.
 */
struct own_filter {
	__u8 kinds[256];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct own_filter);
} own_filters SEC(".maps");

/* possible_kinds: last is the last four bytes of an address. */
static __always_inline __u8 possible_kinds(__be32 last)
{
	__u32 zero = 0;
	struct own_filter *filter = bpf_map_lookup_elem(&own_filters, &zero);

	return filter ? filter->kinds[bpf_ntohl(last) & 0xff] : 0;
}

/* own_kind is one of the above; 0: not an address of the host. */
static __always_inline __u8 own_kind(const __be32 *addr)
{
	const __u8 *kind;
	__be32 key[4];

	if (!possible_kinds(addr[3]))
		return 0;
	__builtin_memcpy(key, addr, sizeof(key));
	kind = bpf_map_lookup_elem(&own, key);
	return kind ? *kind : 0;
}

static __always_inline __u8 own_kind4(__be32 addr)
{
	const __be32 mapped[4] = { 0, 0, bpf_htonl(0xffff), addr };

	return own_kind(mapped);
}

#define BROADCAST 0xffffffff

/* is_any_broadcast: the limited broadcast address, or one of a subnet of the uplink. */
static __always_inline bool is_any_broadcast(__be32 addr)
{
	return addr == BROADCAST || (possible_kinds(addr) & 1 << OWN_BROADCAST && own_kind4(addr) == OWN_BROADCAST);
}

/* is_multicast4: in 224.0.0.0/4. */
static __always_inline bool is_multicast4(__be32 addr)
{
	return *(const __u8 *)&addr >> 4 == 14;
}

static __always_inline bool is_multicast6(const __be32 *addr)
{
	return *(const __u8 *)addr == 0xff;
}

/*
 * is_martian4 and is_martian6: no other host can have the source of the packet, so the wire must not
 * deliver it. An answer would go to this host itself: two services that answer every datagram
 * would answer each other for ever. The source is
 *
 *   an address of this host, or one that an endpoint owns
 *   a loopback, multicast or broadcast address, or in IPv6 an IPv4 address (::ffff:0:0/96)
 *   unspecified (0.0.0.0, ::), except where a host without an address sends it: to
 *   255.255.255.255 and 224.0.0.0/24 (DHCP, IGMP), and in ICMPv6 (neighbour discovery, MLD)
 *
 * Linux drops these too (ip_route_input_slow, ip_mc_validate_source, ip6_rcv_core), except in IPv6 its own addresses, :: and
 * ::ffff:0:0/96, and without rp_filter broadcast addresses of subnets (seen in 6.18).
 */
static __always_inline bool is_martian4(const struct ipv4_header *ip)
{
	if (!ip->src)
		return ip->dst != BROADCAST && (ip->dst & bpf_htonl(0xffffff00)) != bpf_htonl(0xe0000000);
	if (*(const __u8 *)&ip->src == 127 || is_multicast4(ip->src) || ip->src == BROADCAST)
		return true;
	return own_kind4(ip->src);
}

static __always_inline bool is_martian6(const struct ipv6_header *ip)
{
	const __be32 *src = ip->src;

	if (is_multicast6(src))
		return true;
	if (!(src[0] | src[1])) {
		if (!(src[2] | src[3]))
			return ip->next_header != PROTOCOL_ICMPV6;
		if (src[2] == bpf_htonl(0xffff) || (!src[2] && src[3] == bpf_htonl(1)))
			return true;
	}
	return own_kind(src);
}

/* is_martian_packet: eth is read from the type on only. */
static __always_inline bool is_martian_packet(const struct eth_header *eth, void *data_end)
{
	const struct ipv4_header *ip = (void *)(eth + 1);
	const struct ipv6_header *ip6 = (void *)(eth + 1);

	if (eth->type == bpf_htons(ETHERTYPE_IPV4))
		return (void *)(ip + 1) <= data_end && is_martian4(ip);
	if (eth->type == bpf_htons(ETHERTYPE_IPV6))
		return (void *)(ip6 + 1) <= data_end && is_martian6(ip6);
	return false;
}

/*
 * is_martian: the same for a frame with the source MAC address src. The answer to a message goes to the
 * MAC address of its sender. ARP for an owned address from another host is a conflict, which its
 * owner must see.
 */
static __always_inline bool is_martian(const struct eth_header *eth, const __u8 *src, void *data_end)
{
	if (eth->type == bpf_htons(ETHERTYPE_UNET))
		return is_link(src, config.link_head, config.link_tail);
	return is_martian_packet(eth, data_end);
}

#endif
