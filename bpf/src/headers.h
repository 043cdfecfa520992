/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/* The headers of a frame, as far as the mux reads them. */
#ifndef UNET_HEADERS_H
#define UNET_HEADERS_H

#include "unet.h"

struct eth_header {
	__u8 dst[6];
	__u8 src[6];
	__be16 type;
};

struct ipv4_header { /* RFC 791 */
	__u8 version_ihl;
	__u8 tos;
	__be16 total_length;
	__be16 id;
	__be16 fragment; /* reserved, DF, MF, 13 bits of offset */
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__be32 src;
	__be32 dst;
};

struct udp_header { /* RFC 768 */
	__be16 src;
	__be16 dst;
	__be16 length;
	__be16 checksum;
};

struct icmp_header { /* RFC 792; the quoted packet follows an error */
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 rest;
};

struct arp_packet { /* RFC 826, for IPv4 over Ethernet */
	__be16 link_type;
	__be16 addr_type;
	__u8 link_len;
	__u8 addr_len;
	__be16 op;
	__u8 sender_link[6];
	__be32 sender;
	__u8 target_link[6];
	__be32 target;
} __attribute__((packed, aligned(2)));

struct message_header { /* docs/message-format.md */
	__u8 version;
	__u8 flags;
	__be16 length;
	__be32 dst;
	__be32 src;
};

#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_OFFSET 0x1fff
#define PROTOCOL_ICMP 1
#define PROTOCOL_UDP 17
#define ARP_REQUEST 1
#define MESSAGE_VERSION 1

static __always_inline bool is_fragment(const struct ipv4_header *ip)
{
	return ip->fragment & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET);
}

static __always_inline __u32 header_len(const struct ipv4_header *ip)
{
	return (ip->version_ihl & 0x0f) * 4;
}

static __always_inline bool is_ipv4(const struct ipv4_header *ip)
{
	return ip->version_ihl >> 4 == 4 && header_len(ip) >= sizeof(*ip);
}

/* is_arp: ARP for IPv4 over Ethernet. */
static __always_inline bool is_arp(const struct arp_packet *arp)
{
	return arp->link_type == bpf_htons(1) && arp->addr_type == bpf_htons(ETHERTYPE_IPV4) &&
	       arp->link_len == 6 && arp->addr_len == 4;
}

static __always_inline bool is_broadcast(const __u8 *link)
{
	return *(const __u32 *)link == 0xffffffff && *(const __u16 *)(link + 4) == 0xffff;
}

/* is_link compares a link address with one that is held in two words. */
static __always_inline bool is_link(const __u8 *link, __u32 head, __u16 tail)
{
	return *(const __u32 *)link == head && *(const __u16 *)(link + 4) == tail;
}

#endif
