/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/* The headers of a frame that the mux reads. */
#ifndef UNET_HEADERS_H
#define UNET_HEADERS_H

#include "unet.h"

struct eth_header {
	__u8 dst[6];
	__u8 src[6];
	__be16 type;
};

struct vlan_tag { /* IEEE 802.1Q, after the MAC addresses */
	__be16 type;
	__be16 control; /* priority, drop eligibility, 12 bits of VLAN */
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

struct ipv6_header { /* RFC 8200 */
	__be32 version_class_flow;
	__be16 payload_length; /* of what follows this header */
	__u8 next_header;
	__u8 hop_limit;
	__be32 src[4];
	__be32 dst[4];
};

struct ipv6_fragment { /* RFC 8200, 4.5 */
	__u8 next_header;
	__u8 reserved;
	__be16 offset; /* 13 bits of offset, 2 reserved, M */
	__be32 id;
};

struct ipv6_extension { /* RFC 8200, 4 and RFC 6564; of AH (RFC 4302) the first two members */
	__u8 next_header;
	__u8 length; /* without the first 8 bytes, in units of 8 bytes; of AH in units of 4 bytes */
	__u8 type;   /* of a routing header, as is the next */
	__u8 segments_left;
	__be32 rest;
};

struct udp_header { /* RFC 768 */
	__be16 src;
	__be16 dst;
	__be16 length;
	__be16 checksum;
};

struct tcp_header { /* RFC 9293 */
	__be16 src;
	__be16 dst;
	__be32 sequence;
	__be32 ack;
	__u8 offset; /* of the data, in words; 4 bits reserved */
	__u8 flags;
	__be16 window;
	__be16 checksum;
	__be16 urgent;
};

/* The first 8 bytes of a UDP header or a TCP header. An ICMP error quotes at least these (RFC 792). */
struct quoted_ports {
	__be16 src;
	__be16 dst;
	__be32 rest;
};

struct icmp_header { /* RFC 792 and 4443; the quoted packet follows an error */
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 rest;
};

struct nd_message { /* RFC 4861, 4.3 and 4.4: neighbour solicitation and advertisement */
	__u8 type;
	__u8 code;
	__be16 checksum;
	__u8 flags; /* of an advertisement: router, solicited, override */
	__u8 reserved[3];
	__be32 target[4];
};

struct nd_link_option { /* RFC 4861, 4.6.1 */
	__u8 type;
	__u8 length; /* in units of 8 bytes */
	__u8 link[6];
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

#define VLAN_ID 0x0fff
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_OFFSET 0x1fff
#define IPV6_OFFSET 0xfff8
#define EXTENSIONS_MAX 16
#define PROTOCOL_HOP_BY_HOP 0
#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_ROUTING 43
#define PROTOCOL_FRAGMENT 44
#define PROTOCOL_AH 51
#define PROTOCOL_ICMPV6 58
#define PROTOCOL_DEST_OPTIONS 60
#define PROTOCOL_MOBILITY 135
#define PROTOCOL_HIP 139
#define PROTOCOL_SHIM6 140
#define PROTOCOL_EXPERIMENT_1 253
#define PROTOCOL_EXPERIMENT_2 254
#define ND_ROUTER_SOLICITATION 133 /* the first type of RFC 4861 */
#define ND_SOLICITATION 135
#define ND_ADVERTISEMENT 136
#define ND_REDIRECT 137 /* the last */
#define ND_ROUTER_FLAG 0x80
#define ND_SOURCE_LINK 1
#define ND_TARGET_LINK 2
#define ND_HOP_LIMIT 255 /* a packet that was forwarded by a router has a smaller one (RFC 4861, 3.1) */
#define ARP_REQUEST 1
#define MESSAGE_VERSION 1

static __always_inline bool is_fragment(const struct ipv4_header *ip)
{
	return ip->fragment & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET);
}

/* is_first: the fragment offset is 0, so ip is followed by the beginning of the packet's payload. */
static __always_inline bool is_first(const struct ipv4_header *ip)
{
	return !(ip->fragment & bpf_htons(IPV4_OFFSET));
}

static __always_inline __u32 header_len(const struct ipv4_header *ip)
{
	return (ip->version_ihl & 0x0f) * 4;
}

static __always_inline bool is_ipv4(const struct ipv4_header *ip)
{
	return ip->version_ihl >> 4 == 4 && header_len(ip) >= sizeof(*ip);
}

static __always_inline bool is_ipv6(const struct ipv6_header *ip)
{
	return (ip->version_class_flow & bpf_htonl(0xf0000000)) == bpf_htonl(0x60000000);
}

/* has_ports: the protocols that have tags with ports. */
static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == PROTOCOL_UDP || protocol == PROTOCOL_TCP;
}

/* is_extension: an IPv6 extension header (not fragment), which another header follows. */
static __always_inline bool is_extension(__u8 next_header)
{
	switch (next_header) {
	case PROTOCOL_HOP_BY_HOP:
	case PROTOCOL_ROUTING:
	case PROTOCOL_AH:
	case PROTOCOL_DEST_OPTIONS:
	case PROTOCOL_MOBILITY:
	case PROTOCOL_HIP:
	case PROTOCOL_SHIM6:
	case PROTOCOL_EXPERIMENT_1:
	case PROTOCOL_EXPERIMENT_2:
		return true;
	}
	return false;
}

/* is_nd: router and neighbour discovery and redirects. */
static __always_inline bool is_nd(__u8 icmp_type)
{
	return icmp_type >= ND_ROUTER_SOLICITATION && icmp_type <= ND_REDIRECT;
}

/* is_arp: ARP for IPv4 over Ethernet. */
static __always_inline bool is_arp(const struct arp_packet *arp)
{
	return arp->link_type == bpf_htons(1) && arp->addr_type == bpf_htons(ETHERTYPE_IPV4) &&
	       arp->link_len == 6 && arp->addr_len == 4;
}

static __always_inline bool is_vlan(__be16 type)
{
	return type == bpf_htons(ETHERTYPE_VLAN) || type == bpf_htons(ETHERTYPE_SERVICE_VLAN);
}

static __always_inline bool is_broadcast(const __u8 *link)
{
	return *(const __u32 *)link == 0xffffffff && *(const __u16 *)(link + 4) == 0xffff;
}

/* is_link compares a MAC address with one that is held in two words. */
static __always_inline bool is_link(const __u8 *link, __u32 head, __u16 tail)
{
	return *(const __u32 *)link == head && *(const __u16 *)(link + 4) == tail;
}

/* is_from compares the source with a MAC address in the lower 48 bits, by one load of 8 bytes. */
static __always_inline bool is_from(const struct eth_header *eth, __u64 link)
{
	return *(const __u64 *)(eth->src - 2) >> 16 == link;
}

/* is_group: a MAC address of IPv6 multicast (RFC 2464, 7). */
static __always_inline bool is_group(const __u8 *link)
{
	return *(const __be16 *)link == bpf_htons(0x3333);
}

/* is_group_of: the multicast MAC address of an IPv6 multicast address. */
static __always_inline bool is_group_of(const __u8 *link, const __be32 *addr)
{
	return is_group(link) && *(const __be32 *)(link + 2) == addr[3];
}

/* is_solicited_node: group is the solicited-node multicast address of addr (RFC 4291, 2.7.1). */
static __always_inline bool is_solicited_node(const __be32 *group, const __be32 *addr)
{
	return group[0] == bpf_htonl(0xff020000) && !group[1] && group[2] == bpf_htonl(1) &&
	       group[3] == (addr[3] | bpf_htonl(0xff000000));
}

static __always_inline bool is_unspecified(const __be32 *addr)
{
	return !(addr[0] | addr[1] | addr[2] | addr[3]);
}

static __always_inline bool same_addr(const __be32 *a, const __be32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

#endif
