/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The interface between the programs and user space: tags, their owners, the
 * description of a super-frame, and the counters. bpf2go generates the
 * Go types of package bpf from these.
 */
#ifndef UNET_H
#define UNET_H

#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* The kind of a tag. One byte, as in a key. */
enum unet_tag_kind {
	UNET_TAG_UDP = 1,       /* one UDP address and port */
	UNET_TAG_TCP = 2,       /* one TCP address and port */
	UNET_TAG_UDP_BLOCK = 3, /* UNET_BLOCK_PORTS UDP ports of an address, by the first of them */
	UNET_TAG_TCP_BLOCK = 4,
	UNET_TAG_ADDR = 5,      /* an owned address */
	UNET_TAG_MESSAGE = 6,   /* a U-Net message tag */
} __attribute__((packed));

#define UNET_MAX_PORTS 4096
#define UNET_FIRST_IFINDEX 2 /* of an inner end; 1 is lo */
#define UNET_BLOCK_PORTS 64 /* a block begins at a multiple of it */
#define UNET_TAG_COUNTS_ADDR (65536 / UNET_BLOCK_PORTS)
#define UNET_TAG_COUNTS (UNET_TAG_COUNTS_ADDR + 1)
#define UNET_TAGS 131072 /* of each address family, and of all users together */
#define UNET_OWN_MAX (2 * UNET_TAGS) /* owned addresses, each a tag, and as many of the host */
#define UNET_GROUPS 4096 /* tags of groups */
#define UNET_GROUP_PORTS 128 /* that hold one */

/* A key of the tag table: 8 bytes, so that it is hashed in one round. */
struct unet_tag {
	enum unet_tag_kind kind;
	__u8 zero;    /* padding, always 0: it is part of the key */
	__be16 port;  /* of UDP and TCP, else 0 */
	__be32 value; /* IPv4 address, or message tag */
};

/* A key of the table of IPv6 tags: 20 bytes. */
struct unet_tag6 {
	enum unet_tag_kind kind;
	__u8 zero;
	__be16 port;
	__be32 addr[4];
};

/*
 * In an owner: from an owned address it may send what only the infrastructure of a
 * network sends (check.h).
 */
#define UNET_INFRASTRUCTURE 1

/* The owner of a tag: an endpoint on a port, or one on a queue of the uplink. */
struct unet_owner {
	__u32 port;  /* ifindex of the port's outer end; 0: a queue attachment */
	__u16 queue; /* of the uplink, when port is 0; else UNET_INFRASTRUCTURE, or 0 */
	__u16 room;  /* bytes of the longest frame that a port takes, in one buffer (deliver.h); 0: any */
};

/*
 * The data of an endpoint that the control plane needs to take it over from a
 * process that died. It exists at least as long as the tags and the socket of the
 * endpoint. No program reads it.
 */
struct unet_endpoint {
	__u64 id;
	__u64 cookie;        /* of its socket (SO_COOKIE) */
	__u64 segment_bytes;
	__u64 counted_bytes; /* for its owner's user: segment and rings */
	__u32 uid;           /* of its owner */
	__u32 pid;           /* of the process that opened or presented it; 0: not known */
	__u32 slot;          /* of its socket in port_sockets; ports only */
	__u32 fill_size;     /* entries of its fill ring */
};

/*
 * A token bucket (limit.h). User space writes it, and the programs change level. In units of 10^-9
 * of a packet or byte: a rate of n a second is then n units a nanosecond.
 */
struct unet_bucket {
	__u64 rate;    /* packets or bytes a second; 0: no limit */
	__u64 full;    /* the most that the bucket holds, in units */
	__u64 fill_ns; /* in which an empty bucket fills, rounded up */
	__u64 level;   /* what it has, in units */
};

#define UNET_NO_USER 0xffffffffu /* (uid_t)-1 is no user */

/* The limit of what an endpoint sends, or all endpoints of a user together. */
struct unet_limit {
	struct bpf_spin_lock lock;
	__u32 uid;          /* of an endpoint: the user whose limit applies too, or UNET_NO_USER */
	__u64 last;         /* when the buckets were filled last, in ns since boot (bpf_ktime_get_ns) */
	struct unet_bucket packets;
	struct unet_bucket bytes;
	__u64 refused;      /* of an endpoint: frames that this limit has refused */
	__u64 refused_user; /* of an endpoint: frames that the limit of its user has refused */
};

/* The data of the mux that the control plane needs to take it over. */
struct unet_state {
	__u8 objects[32];   /* SHA-256 of the compiled programs; if it differs, the layout of all tables can differ */
	__u64 netns;        /* cookie of the uplink's namespace */
	__u64 next_id;      /* of endpoints */
	__u32 ifindex;      /* of the uplink */
	__u32 mtu;
	__u8 link[6];       /* the uplink's MAC address */
	__u16 mode;         /* 2: native, 3: tcx */
	__u32 restore_offloads; /* a set (package nic): the offloads that were on before, and are to be turned on again */
	__u32 accept_local; /* 1: the setting of lo was 0, and is to be restored */
};

/* The kind of an alarm for user space, in the ring buffer alarms. */
enum unet_alarm_kind {
	UNET_ALARM_FILL = 1, /* an endpoint's fill ring is not sound; see fill.h */
};

struct unet_alarm {
	enum unet_alarm_kind kind;
	__u32 slot; /* of the endpoint */
};

/*
 * The destination MAC address of a UDP super-frame that an endpoint receives: these four
 * bytes, then the payload bytes of each datagram but the last in host byte order. A group
 * address, so no interface has it; and no frame with it is delivered as it was sent, since
 * of group addresses only broadcast and those of IPv6 (33:33) are.
 */
#define UNET_SUPER_FRAME 0x01000000

/*
 * 02:75:6e:65:74:00, the MAC address of the outer ends of ports and of the devices up and top (host.h), as the
 * lower 48 bits of a load. The kernel sends frames of its own from it if a program binds a socket to such a
 * device. Frames from ports have the uplink's as their source. A host on the wire can send from this address; it
 * only loses its own frames by that.
 */
#define UNET_KERNEL_LINK 0x0074656e7502ull

/* The constants of the programs of a mux, set before they are loaded. */
struct unet_config {
	__u32 link_head;  /* first four bytes of the uplink's MAC address, in the order of a frame */
	__u16 link_tail;  /* and the last two */
	__u16 generic;    /* 1: the programs of ports are attached in generic (skb) mode, 0: native */
	__u32 uplink;     /* ifindex */
	__u32 max_frame;  /* bytes that fit the uplink: its MTU and an Ethernet header */
	__u64 netns;      /* cookie of the uplink's network namespace */
	__u32 notes_vlan; /* 1: unet_note_vlan is attached; see vlan.h */
	__u32 cutter;     /* ifindex of the device that cuts super-frames; 0: none; see cut.h */
	__u32 part_tail;  /* this and the next: secrets that identify parts of super-frames; see cut.h */
	__u32 up;         /* ifindex of the device by which ports send to the kernel; see host.h */
	__u32 top;        /* and of its other end */
	__u8 part_head;   /* first byte of a MAC address, not of the uplink's: unicast, locally administered */
	__u8 zero[3];
};

/*
 * Counters. Each frame counts once as rx_* in the uplink program, once as tx_* in
 * the port program, once as deliver_* in a deliver program; rx_group and tx_group count
 * copies, each in addition to its frame. mux_* counts what user space sends for endpoints. The lost_* counters are
 * frames that the kernel dropped where no program could see it: after a program had
 * redirected and counted them, or on the way from an endpoint or the wire to their
 * first program.
 *
 * Package bpf has the same list with names (counters.go); a test compares them.
 */
enum unet_counter {
	/* uplink: left to the kernel */
	UNET_RX_PASS,             /* no tag claims it */
	UNET_RX_PASS_TRUNCATED,   /* headers end too early to read a tag */
	UNET_RX_PASS_VLAN,        /* it is of a VLAN other than 0: the VLAN tag is in the frame or in the skb */
	UNET_RX_PASS_PORT_GONE,   /* the owner's port no longer exists: its process has died */
	UNET_RX_PASS_OTHER_QUEUE, /* its owner is bound to another queue of the uplink */
	/* uplink: delivered */
	UNET_RX_PORT,
	UNET_RX_QUEUE,
	UNET_RX_HOST, /* from the kernel of this host, to a port: see host.h */
	UNET_RX_GROUP, /* a copy to a port of what the kernel has received from the wire, or sends, to a group: see group.h */
	/* uplink: a tag claims it, dropped */
	UNET_RX_BAD_LENGTH,  /* a length field exceeds the frame */
	UNET_RX_TAGGED_TWICE, /* two VLAN tags of VLAN 0; dropped also if no endpoint's tag claims it */
	UNET_RX_MARTIAN,     /* no other host can have its source address: see own.h */
	UNET_RX_FRAGMENT,    /* the first fragment of a packet to a port: ports accept whole packets only */
	UNET_RX_EXTENSION,   /* to a port, after IPv6 extension headers; or there are EXTENSIONS_MAX or more of them */
	UNET_RX_QUEUE_GONE,  /* the owner's socket is no longer on its queue */
	UNET_RX_NO_METADATA, /* the VLAN tag cannot be removed */
	UNET_RX_CUT,         /* not dropped: it comes back in parts, which count again; see cut.h */
	UNET_RX_MANY_PARTS,  /* a super-frame of more than CUT_MAX_PARTS parts */
	UNET_RX_CUTTER_BUSY, /* a super-frame, and CUT_LINE allows its owner no more parts now */
	UNET_RX_STALE_PART,  /* a part of a super-frame whose tag has another owner now, or a super-frame with a forged mark */
	UNET_RX_FORGED_TAG,  /* from the kernel of this host, under the tag of an endpoint: see tcx.h */
	UNET_RX_FORGED_RDMA, /* from the kernel of this host, as the RDMA device of an address that an endpoint is: see tags.h */
	/* port: redirected */
	UNET_TX_UPLINK,
	UNET_TX_LOCAL, /* to another endpoint of this host */
	UNET_TX_HOST,  /* to the kernel of this host */
	UNET_TX_GROUP, /* a copy to another endpoint of this host, beside tx_uplink: see group.h */
	/* port: dropped */
	UNET_TX_TRUNCATED,     /* headers end too early, or are not in the first buffer */
	UNET_TX_BAD_LENGTH,    /* a length field is wrong */
	UNET_TX_BAD_HEADER,    /* unknown IP or message version, invalid header length, IPv6 extension header */
	UNET_TX_OVERSIZE,      /* longer than the uplink's MTU and an Ethernet header */
	UNET_TX_BAD_ETHERTYPE, /* neither IP, ARP nor a U-Net message; no endpoint may send VLAN tags */
	UNET_TX_FORGED_LINK,   /* source MAC address is not the uplink's */
	UNET_TX_FORGED_ADDR,   /* the sender does not hold the source IP address, or only a port of it and needs the whole */
	UNET_TX_FORGED_TAG,    /* the sender does not hold the source tag */
	UNET_TX_FORGED_ARP,    /* ARP for an address that the sender does not hold */
	UNET_TX_FORGED_ND,     /* neighbour discovery for an address that the sender does not hold, or as a router */
	UNET_TX_FORGED_QUOTE,  /* ICMP error about a packet that was not sent to its sender, or ICMP of a router */
	UNET_TX_FORGED_GROUP,  /* the MAC address is not that of the group that is the destination IP address, or the other way */
	UNET_TX_BROADCAST,     /* a broadcast, for which the sender holds neither the tag of its source port nor the owned address */
	UNET_TX_INFRASTRUCTURE, /* traffic of network infrastructure from an owner without UNET_INFRASTRUCTURE */
	UNET_TX_FORGED_RDMA,   /* as the RDMA device of an address, which the sender is not: see tags.h */
	UNET_TX_NO_OWNER,      /* addressed to this host, no endpoint holds the tag, and it is not for the kernel: see host.h */
	UNET_TX_TO_QUEUE,      /* the owner is on a queue, and receives frames of the uplink only */
	UNET_TX_PORT_GONE,     /* the local owner's port no longer exists */
	UNET_TX_UPLINK_GONE,
	UNET_TX_RATE_ENDPOINT, /* beyond the rate of the endpoint: see limit.h */
	UNET_TX_RATE_USER,     /* beyond the rate of its user */
	/* deliver */
	UNET_DELIVER_SOCKET,
	UNET_DELIVER_NO_SOCKET,
	UNET_DELIVER_BAD_FILL, /* the fill ring's indices are further apart than its size, or entries are not frames */
	UNET_DELIVER_TOO_LONG, /* the owner is not trusted, and it is in several buffers or longer than a frame of the segment */
	UNET_DELIVER_KERNEL,   /* the kernel itself has sent it out of a device of the mux: see UNET_KERNEL_LINK */
	/* lost after a program had redirected or passed it; see trace.h */
	UNET_LOST_CUT,              /* rx_cut, but the kernel did not segment it; in tcx mode also before rx_cut */
	UNET_LOST_UPLINK_REDIRECT,  /* rx_port */
	UNET_LOST_PORT_REDIRECT,    /* tx_uplink */
	UNET_LOST_DELIVER_REDIRECT, /* the endpoint's receive queue was full or its fill queue empty */
	/* dropped before a program saw it, in the same order */
	UNET_LOST_UPLINK_BACKLOG,
	UNET_LOST_PORT_BACKLOG,
	UNET_LOST_DELIVER_BACKLOG,
	UNET_LOST_DEVICE_FULL,      /* native mode: tx_uplink, the queue of the uplink was full */
	UNET_LOST_PORT_FULL,        /* native mode: rx_port or tx_local, the queue of the port was full */
	UNET_LOST_PORT_DOWN,        /* tcx mode: rx_port or rx_host, the inner end of the port was down or gone */
	UNET_LOST_QUEUE_REDIRECT,   /* rx_queue, the socket's receive queue was full or its fill queue empty */
	UNET_LOST_LOCAL_REDIRECT,   /* tx_local */
	UNET_LOST_RESERVED,         /* a packet to a claimed port, by another interface or queue: dropped by the socket that reserves it (mux/reserve.go) */
	UNET_LOST_HOST,             /* tx_host, or before rx_host: on the way between a port and the kernel; see host.h */
	/* sent by the mux itself for an endpoint, or not sent; counted by package mux, not by a program */
	UNET_MUX_UPLINK,
	UNET_MUX_LOCAL, /* to an endpoint of this host */
	UNET_MUX_HOST,  /* to the kernel of this host */
	UNET_MUX_RATE,  /* beyond what the endpoint or its user may send */
	UNET_COUNTERS,
};

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define ETHERTYPE_ARP 0x0806
#define ETHERTYPE_VLAN 0x8100         /* 802.1Q */
#define ETHERTYPE_SERVICE_VLAN 0x88a8 /* 802.1ad, the outer one of two */
#define ETHERTYPE_UNET 0x88b5

#endif
