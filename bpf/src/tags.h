/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The tag tables: the owner of each tag. A port is looked up as a port, and if that is
 * not there, as part of a block: at most two look-ups. The tag counts spare most frames of the
 * kernel these look-ups.
 */
#ifndef UNET_TAGS_H
#define UNET_TAGS_H

#include "headers.h"

/* The tables have room for all tags that unetd gives to all users together. Only entries take memory. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNET_TAGS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct unet_tag);
	__type(value, struct unet_owner);
} tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNET_TAGS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct unet_tag6);
	__type(value, struct unet_owner);
} tags6 SEC(".maps");

/*
 * How many tags there are, of all addresses: by block of 64 ports, those of the block and of ports in it,
 * UDP and TCP; and those of owned addresses. A tag is counted before it is entered, and
 * until it has been deleted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNET_TAG_COUNTS);
	__type(key, __u32);
	__type(value, __u32);
} tag_counts SEC(".maps");

static __always_inline bool has_tags(__u32 index)
{
	__u32 *n = bpf_map_lookup_elem(&tag_counts, &index);

	return n && *n;
}

/*
 * tag_word is the first four bytes of a key. A key is stored in words of at least this size:
 * the kernel reads it so, and a load that spans several stores waits for them.
 */
static __always_inline __u32 tag_word(enum unet_tag_kind kind, __be16 port)
{
	return kind | (__u32)port << 16;
}

static __always_inline struct unet_owner *holder(enum unet_tag_kind kind, __be16 port, __be32 value)
{
	union {
		struct unet_tag tag;
		__u64 word;
	} key = { .word = tag_word(kind, port) | (__u64)value << 32 };

	return bpf_map_lookup_elem(&tags, &key);
}

static __always_inline struct unet_owner *holder6(enum unet_tag_kind kind, __be16 port, const __be32 *addr)
{
	union {
		struct unet_tag6 tag;
		__u32 words[5];
	} key = { .words = { tag_word(kind, port), addr[0], addr[1], addr[2], addr[3] } };

	return bpf_map_lookup_elem(&tags6, &key);
}

/* first_of_block is the first port of the block that port is in. */
static __always_inline __be16 first_of_block(__be16 port)
{
	return port & bpf_htons((__u16)~(UNET_BLOCK_PORTS - 1));
}

/* port_holder is the holder of a port or of its block. The protocol is UDP or TCP. */
static __always_inline struct unet_owner *port_holder(__u8 protocol, __be32 addr, __be16 port)
{
	bool udp = protocol == PROTOCOL_UDP;
	struct unet_owner *owner = holder(udp ? UNET_TAG_UDP : UNET_TAG_TCP, port, addr);

	if (!owner)
		owner = holder(udp ? UNET_TAG_UDP_BLOCK : UNET_TAG_TCP_BLOCK, first_of_block(port), addr);
	return owner;
}

static __always_inline struct unet_owner *port_holder6(__u8 protocol, const __be32 *addr, __be16 port)
{
	bool udp = protocol == PROTOCOL_UDP;
	struct unet_owner *owner = holder6(udp ? UNET_TAG_UDP : UNET_TAG_TCP, port, addr);

	if (!owner)
		owner = holder6(udp ? UNET_TAG_UDP_BLOCK : UNET_TAG_TCP_BLOCK, first_of_block(port), addr);
	return owner;
}

static __always_inline struct unet_owner *addr_holder(__be32 addr)
{
	return holder(UNET_TAG_ADDR, 0, addr);
}

static __always_inline struct unet_owner *addr_holder6(const __be32 *addr)
{
	return holder6(UNET_TAG_ADDR, 0, addr);
}

/*
 * The RDMA device of an address is the holder of its UDP port 4791 (RoCEv2, IBTA A17). Receivers take a
 * packet to that port as sent by the device, whatever its source port is: switches spread flows by it. So only the
 * holder may send there from the address.
 */
#define RDMA_PORT bpf_htons(4791)

static __always_inline struct unet_owner *rdma_device(__be32 addr)
{
	struct unet_owner *owner = port_holder(PROTOCOL_UDP, addr, RDMA_PORT);

	return owner ? owner : addr_holder(addr);
}

static __always_inline struct unet_owner *rdma_device6(const __be32 *addr)
{
	struct unet_owner *owner = port_holder6(PROTOCOL_UDP, addr, RDMA_PORT);

	return owner ? owner : addr_holder6(addr);
}

/* any_port and any_addr: there may be a holder of the UDP or TCP port at some address, or of some owned address. */
static __always_inline bool any_port(__be16 port)
{
	return has_tags(bpf_ntohs(port) / UNET_BLOCK_PORTS);
}

static __always_inline bool any_addr(void)
{
	return has_tags(UNET_TAG_COUNTS_ADDR);
}

static __always_inline struct unet_owner *message_holder(__be32 tag)
{
	return holder(UNET_TAG_MESSAGE, 0, tag);
}

#endif
