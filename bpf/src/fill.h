/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The check of the fill ring of a port's socket, before the kernel reads it.
 *
 * The socket's owner writes the ring, and the kernel does not check its producer
 * index: it skips entries that are not frames one by one up to the producer, in the
 * softirq of the sender. An index 100 million entries ahead costs the sender 135 ms;
 * if the owner keeps increasing the index, the time has no limit.
 * For a frame that needs several buffers the kernel counts the entries but does not
 * check whether they are frames. If they are not, it dereferences a NULL pointer
 * (__xsk_rcv(), seen in 6.18).
 *
 * So a frame is delivered only if the ring is sound: it has at most as many entries
 * as its size, and the entries that the kernel takes next are frames. An empty ring
 * is sound: the kernel drops the frame and that is counted. (For a frame of several
 * buffers the check includes entries that a correct owner may not have written yet.
 * They are old entries or 0, which are frames too.) The producer is read each time,
 * also if the kernel has read entries before: if these are not frames, the kernel
 * reads the producer again.
 *
 * The owner can change this memory at any time, also in the hundred nanoseconds between
 * this check and the kernel's read. Such a change is detected at the next frame, by the
 * kernel's own counts of entries that were announced and entries that it skipped.
 * Impact with a frame of one buffer: CPU time in softirq, as long as the owner keeps
 * changing the ring in time. With a frame of several buffers the kernel can crash:
 * only trusted owners get those (deliver.h).
 */
#ifndef UNET_FILL_H
#define UNET_FILL_H

#include "kernel.h"
#include "unet.h"

/*
 * The limit of entries that the kernel has skipped since the socket was made. With a
 * correct owner it skips none. After a mistake of the owner it skips only entries that were
 * written between this check and its own read. It takes 100 ns to skip 64 entries. An owner
 * that wins this race on purpose makes the kernel skip more than the limit at once.
 */
#define FILL_INVALID_LIMIT 64
#define FILL_MAX_BUFFERS 64   /* the longest frame, 64 KiB, in the smallest buffers takes 37 */

/* pool_is_shown: this kernel has all fields that are read here. */
static __always_inline bool pool_is_shown(void)
{
	return bpf_core_field_exists(struct net_device, _rx) && bpf_core_field_exists(struct netdev_rx_queue, pool) &&
	       bpf_core_field_exists(struct xsk_buff_pool, fq) && bpf_core_field_exists(struct xsk_buff_pool, addrs_cnt) &&
	       bpf_core_field_exists(struct xsk_buff_pool, frame_len) && bpf_core_field_exists(struct xsk_queue, ring_mask) &&
	       bpf_core_field_exists(struct xsk_queue, cached_prod) && bpf_core_field_exists(struct xsk_queue, cached_cons) && bpf_core_field_exists(struct xsk_queue, ring) &&
	       bpf_core_field_exists(struct xsk_queue, invalid_descs) && bpf_core_field_exists(struct xdp_ring, producer) &&
	       bpf_core_field_exists(struct xdp_umem_ring, desc) && bpf_core_field_exists(struct xdp_desc, addr) &&
	       bpf_core_field_exists(struct xdp_rxq_info, dev) && bpf_core_field_exists(struct xdp_buff, rxq);
}

/* shown_pool: the buffer pool of the port's socket. NULL: no socket, or the kernel does not have all fields. */
static __always_inline struct xsk_buff_pool *shown_pool(struct xdp_md *ctx)
{
	struct xdp_buff *xdp = bpf_cast_to_kern_ctx(ctx);

	if (!pool_is_shown())
		return NULL;
	return xdp->rxq->dev->_rx->pool; /* a port has one queue */
}

/* is_whole: the frame is in one buffer and fits one frame of the pool. */
static __always_inline bool is_whole(struct xdp_md *ctx, struct xsk_buff_pool *pool)
{
	struct xdp_buff *xdp = bpf_cast_to_kern_ctx(ctx);

	return !(xdp->flags & XDP_FLAGS_HAS_FRAGS) && (!pool || ctx->data_end - ctx->data <= pool->frame_len);
}

/* kernel_word reads 8 bytes of the kernel's memory, as the first member of xdp_desc, a type of the kernel that can be read. */
static __always_inline __u64 kernel_word(void *at)
{
	struct xdp_desc *word = bpf_rdonly_cast(at, bpf_core_type_id_kernel(struct xdp_desc));

	return word->addr;
}

/*
 * fill_indices reads the producer index that the kernel knows (lower half) and its consumer
 * index. They are neighbours in 6.18, and then this is one load: on amd64 the kernel checks
 * the address of each such load by nine more machine instructions.
 */
static __always_inline __u64 fill_indices(struct xsk_queue *fq)
{
	__u64 at = bpf_core_field_offset(struct xsk_queue, cached_prod);

	if (bpf_core_field_offset(struct xsk_queue, cached_cons) == at + sizeof(__u32))
		return kernel_word((void *)fq + at);
	return fq->cached_prod | (__u64)fq->cached_cons << 32;
}

/* entry_is_frame: the ring's entry number at is an address in the segment. */
static __always_inline bool entry_is_frame(struct xsk_buff_pool *pool, struct xdp_ring *ring, __u32 mask, __u32 at)
{
	__u64 offset = bpf_core_field_offset(struct xdp_umem_ring, desc) + (__u64)(at & mask) * sizeof(__u64);

	return kernel_word((void *)ring + offset) < pool->addrs_cnt;
}

enum fill {
	FILL_SOUND,
	FILL_MOVING,  /* another processor delivers here at the same time: the check has no result */
	FILL_UNSOUND, /* only the owner can have written it so */
};

/* look_at_fill checks the ring. Without a pool there is no socket, or the ring cannot be checked: FILL_SOUND. */
static __always_inline enum fill look_at_fill(struct xdp_md *ctx, struct xsk_buff_pool *pool, bool whole)
{
	__u32 i, n, cons, known, written, mask;
	struct xsk_queue *fq;
	struct xdp_ring *ring;
	__u64 indices;

	if (unlikely(!pool))
		return FILL_SOUND;
	fq = pool->fq;
	if (unlikely(fq->invalid_descs > FILL_INVALID_LIMIT))
		return FILL_UNSOUND;
	indices = fill_indices(fq);
	barrier();
	cons = indices >> 32;
	known = (__u32)indices - cons;
	ring = fq->ring;
	written = ring->producer - cons;
	mask = fq->ring_mask; /* the number of entries, less 1 */
	if (unlikely(known > mask + 1 || written > mask + 1)) {
		/* Also if a full ring was emptied and filled again since cons was read. */
		barrier();
		return fq->cached_cons == cons ? FILL_UNSOUND : FILL_MOVING;
	}
	if (likely(whole))
		return !(known | written) || entry_is_frame(pool, ring, mask, cons) ? FILL_SOUND : FILL_UNSOUND;

	n = (bpf_xdp_get_buff_len(ctx) - 1) / pool->frame_len + 1;
	if (n > FILL_MAX_BUFFERS)
		return FILL_UNSOUND;
	for (i = 0; i < FILL_MAX_BUFFERS && i < n; i++) {
		if (!entry_is_frame(pool, ring, mask, cons + i))
			return FILL_UNSOUND;
	}
	return FILL_SOUND;
}

#endif
