/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * What the programs and user space agree on: tags, their owners, the metadata
 * in front of a received frame, and the counters. bpf2go turns these types
 * into Go (package bpf), so they are written down here only.
 */
#ifndef UNET_H
#define UNET_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* What a tag is about. One byte, as it stands in a key. */
enum unet_tag_kind {
	UNET_TAG_UDP = 1,     /* one UDP address and port */
	UNET_TAG_ADDR = 2,    /* a whole IPv4 address */
	UNET_TAG_MESSAGE = 3, /* a U-Net message tag */
} __attribute__((packed));

/* A key of the tag table: 8 bytes, so that it is hashed in one round. */
struct unet_tag {
	enum unet_tag_kind kind;
	__u8 zero;    /* no meaning; part of the key */
	__be16 port;  /* UNET_TAG_UDP only, else 0 */
	__be32 value; /* IPv4 address, or message tag */
};

/* Who holds a tag: an endpoint behind a port, or one on an uplink queue. */
struct unet_owner {
	__u32 port;  /* ifindex of the port's outer end; 0: a queue attachment */
	__u32 queue; /* of the uplink, when port is 0 */
};

/*
 * The metadata in front of every frame that an endpoint receives, in host
 * byte order.
 */
struct unet_rx_meta {
	__u16 gso_size; /* UDP super-frame: payload bytes of each datagram but the last; else 0 */
	__u16 flags;    /* reserved, 0 */
};

/* What a mux is told once, before its programs are loaded. */
struct unet_config {
	__u32 link_head; /* first four bytes of the uplink's link address, as they stand in a frame */
	__u16 link_tail; /* and the last two */
	__u16 generic;   /* 1: attached in generic (skb) mode, 0: native */
	__u32 uplink;    /* ifindex */
	__u32 max_frame; /* bytes that fit the uplink: its MTU and an Ethernet header */
	__u64 netns;     /* cookie of the uplink's network namespace */
};

/*
 * Counters. Every frame that meets the uplink program counts once as rx_*, at
 * the port program once as tx_*, at a deliver program once as deliver_*. The
 * lost_* counters are frames that were counted as on their way before and
 * were then dropped by the kernel where no program could see it.
 *
 * package bpf has the same list with its names (counters.go); a test compares.
 */
enum unet_counter {
	/* uplink: left to the kernel */
	UNET_RX_PASS,             /* no tag claims it */
	UNET_RX_PASS_TRUNCATED,   /* headers end too early to read a tag */
	UNET_RX_PASS_OTHER_QUEUE, /* its owner is bound to another queue of the uplink */
	/* uplink: delivered */
	UNET_RX_PORT,
	UNET_RX_QUEUE,
	/* uplink: a tag claims it, dropped */
	UNET_RX_BAD_LENGTH,  /* a length field promises more than arrived */
	UNET_RX_PORT_GONE,   /* the owner's port no longer exists */
	UNET_RX_QUEUE_GONE,  /* the owner's socket is no longer on its queue */
	UNET_RX_NO_METADATA, /* no room for the metadata */
	/* port: sent on */
	UNET_TX_UPLINK,
	UNET_TX_LOCAL, /* to another endpoint of this host */
	/* port: dropped */
	UNET_TX_TRUNCATED,     /* headers end too early, or do not stand in the first buffer */
	UNET_TX_BAD_LENGTH,    /* a length field lies */
	UNET_TX_BAD_HEADER,    /* unknown IP or message version, impossible header length */
	UNET_TX_OVERSIZE,      /* does not fit the uplink */
	UNET_TX_BAD_ETHERTYPE, /* neither IPv4, ARP nor a U-Net message */
	UNET_TX_FORGED_LINK,   /* source link address is not the uplink's */
	UNET_TX_FORGED_ADDR,   /* source IP address is not the sender's */
	UNET_TX_FORGED_TAG,    /* source tag is held by somebody else, or by nobody */
	UNET_TX_FORGED_ARP,    /* ARP that speaks for another address */
	UNET_TX_NO_OWNER,      /* addressed to this host, and no endpoint holds the tag */
	UNET_TX_TO_QUEUE,      /* the owner is on a queue: only the uplink's frames reach it */
	UNET_TX_PORT_GONE,     /* the local owner's port no longer exists */
	UNET_TX_UPLINK_GONE,
	/* deliver */
	UNET_DELIVER_SOCKET,
	UNET_DELIVER_NO_SOCKET,
	UNET_DELIVER_NO_METADATA,
	/* lost after a program had sent it on; see trace.h */
	UNET_LOST_UPLINK_REDIRECT,  /* redirected by the uplink program */
	UNET_LOST_PORT_REDIRECT,    /* redirected by a port program */
	UNET_LOST_DELIVER_REDIRECT, /* receive or fill queue of the endpoint was full or empty */
	UNET_LOST_DEVICE_FULL,      /* native mode: the device did not take it */
	UNET_COUNTERS,
};

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define ETHERTYPE_UNET 0x88b5

#endif
