/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The metadata in front of a received frame.
 *
 * In generic mode a frame is an skb, and an skb from a local sender that used
 * UDP_SEGMENT is a super-frame: one header and the payload of many datagrams. Only
 * skb_shared_info has their size. struct xdp_md does not give access to it, but the
 * kernel's xdp_buff does.
 */
#ifndef UNET_META_H
#define UNET_META_H

#include "kernel.h"
#include "unet.h"

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

/* udp_gso_size is the gso_size of a UDP super-frame, 0 for any other frame. Generic mode only. */
static __always_inline __u16 udp_gso_size(struct xdp_md *ctx)
{
	struct skb_shared_info *shared = shared_info(ctx);

	return shared->gso_type & SKB_GSO_UDP_L4 ? shared->gso_size : 0;
}

/* prepend_meta writes struct unet_rx_meta in front of the frame; false: no room. */
static __always_inline bool prepend_meta(struct xdp_md *ctx, bool generic)
{
	struct unet_rx_meta *meta;
	/* Before the adjustment, which invalidates all pointers from ctx. */
	__u16 gso_size = generic ? udp_gso_size(ctx) : 0;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*meta)))
		return false;
	meta = (void *)(long)ctx->data_meta;
	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return false;
	meta->gso_size = gso_size;
	meta->flags = 0;
	return true;
}

#endif
