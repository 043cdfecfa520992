/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * Super-frames: one header and the payload of many segments or datagrams.
 *
 * For generic XDP a frame is an skb, and an skb from a local sender that used TSO or
 * UDP_SEGMENT is a super-frame. Only skb_shared_info has the size of its parts. struct
 * xdp_md does not give access to it, but the kernel's xdp_buff does. In native mode there
 * are no super-frames.
 */
#ifndef UNET_SUPER_H
#define UNET_SUPER_H

#include "headers.h"
#include "kernel.h"

#define SKB_GSO_UDP_L4 (1u << 17)  /* include/linux/skbuff.h */
#define SMP_CACHE_BYTES 64ul       /* amd64, arm64: what SKB_DATA_ALIGN rounds to */

/* shared_info is the kernel's skb_shared_info of the frame. Generic mode only. */
static __always_inline struct skb_shared_info *shared_info(struct xdp_md *ctx)
{
	struct xdp_buff *xdp = bpf_cast_to_kern_ctx(ctx);
	__u64 tail = (bpf_core_type_size(struct skb_shared_info) + SMP_CACHE_BYTES - 1) & ~(SMP_CACHE_BYTES - 1);
	/* xdp_get_shared_info_from_buff(), include/net/xdp.h */
	void *end = xdp->data_hard_start + xdp->frame_sz - tail;

	return bpf_rdonly_cast(end, bpf_core_type_id_kernel(struct skb_shared_info));
}

/*
 * describe_super_frame tells the endpoint the size of the datagrams in a UDP super-frame.
 * It replaces the destination MAC address, which was the uplink's, by UNET_SUPER_FRAME and
 * the size. All other frames are left as they are.
 */
static __always_inline void describe_super_frame(struct xdp_md *ctx)
{
	struct eth_header *eth = (void *)(long)ctx->data;
	struct skb_shared_info *shared;
	__u16 size;

	if (!config.generic)
		return;
	shared = shared_info(ctx);
	size = shared->gso_size;
	if (likely(!size) || !(shared->gso_type & SKB_GSO_UDP_L4) || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return;
	*(__be32 *)eth->dst = bpf_htonl(UNET_SUPER_FRAME);
	*(__u16 *)(eth->dst + 4) = size;
}

#endif
