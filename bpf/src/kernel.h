/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/* The fields of the kernel's types that the programs read. At load time CO-RE sets their offsets. */
#ifndef UNET_KERNEL_H
#define UNET_KERNEL_H

#include <linux/types.h>
#include <bpf/bpf_core_read.h>

/* The compiler puts the code for the other case out of the way: fewer lines of the instruction cache. */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_prog_aux {
	__u32 id;
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

/* net/xdp/xsk_queue.h: the kernel's state of a ring, and the memory that it shares with the socket's owner. */
struct xdp_ring {
	__u32 producer;
};

struct xdp_umem_ring {
	__u64 desc[0];
};

struct xdp_desc { /* include/uapi/linux/if_xdp.h */
	__u64 addr;
};

struct xsk_queue {
	__u32 ring_mask;
	__u32 cached_prod;
	__u32 cached_cons;
	struct xdp_ring *ring;
	__u64 invalid_descs;
};

struct xsk_buff_pool {
	struct xsk_queue *fq;
	__u64 addrs_cnt;
	__u32 frame_len;
};

struct netdev_rx_queue {
	struct xsk_buff_pool *pool;
};

struct net_device {
	int ifindex;
	struct bpf_prog *xdp_prog; /* generic XDP */
	possible_net_t nd_net;
	struct netdev_rx_queue *_rx;
};

struct xdp_rxq_info {
	struct net_device *dev;
};

struct xdp_buff {
	void *data_hard_start;
	struct xdp_rxq_info *rxq;
	__u32 frame_sz;
	__u32 flags;
};

struct skb_shared_info {
	__u16 gso_size;
	__u32 gso_type;
};

struct sk_buff {
	struct net_device *dev;
	unsigned char *head;
	__u16 mac_header; /* offset from head */
	__u32 vlan_all;  /* protocol and tag of a VLAN, both 0: none */
	__u16 vlan_tci;  /* the tag, in host byte order */
	__be16 protocol;
	__u8 tc_at_ingress : 1;
	unsigned char *data;
};

#define XDP_FLAGS_HAS_FRAGS 1 /* include/net/xdp.h: in flags of xdp_buff, the frame is in several buffers */

enum skb_drop_reason { /* include/net/dropreason-core.h; the kernel's own numbers are found by the names */
	SKB_DROP_REASON_CPU_BACKLOG = 1,
	SKB_DROP_REASON_NOT_SPECIFIED = 2,
};

#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *) __ksym;
extern void *bpf_rdonly_cast(const void *, __u32) __ksym;

#endif
