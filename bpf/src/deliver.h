/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * A deliver program is attached to the inner end of a port, in the port's own network
 * namespace. Frames that reach it have passed the mux and belong to the endpoint, except those that the
 * kernel itself sends out of the outer end, which are dropped.
 *
 * There are three; the owner and the mode of the port decide which is attached. For a
 * frame of several buffers the kernel uses entries of the fill ring that the socket's
 * owner can change at the same time (fill.h), and can crash. So only trusted owners get
 * such frames. For others the socket is bound without XDP_USE_SG: a frame that does not
 * fit one buffer is dropped.
 *
 *   unet_deliver         trusted owners
 *   unet_deliver_linear  others, generic XDP: no xdp.frags, so the kernel copies the
 *                        frame into one buffer before it runs the program. Among
 *                        its frames are parts of super-frames (cut.h)
 *   unet_deliver_whole   others, native mode: a veth with the MTU of a port accepts only
 *                        xdp.frags programs, and gives them frames of several buffers
 */
#ifndef UNET_DELIVER_H
#define UNET_DELIVER_H

#include "count.h"
#include "cut.h"
#include "fill.h"
#include "super.h"

static __always_inline void raise_alarm(enum unet_alarm_kind kind, __u32 slot)
{
	struct unet_alarm alarm = { .kind = kind, .slot = slot };

	/* If the ring is full the alarm is lost; the next frame raises it again. */
	bpf_ringbuf_output(&alarms, &alarm, sizeof(alarm), 0);
}

/* is_of_kernel: the frame has not passed the mux. The kernel itself has sent it out of the outer end. */
static __always_inline bool is_of_kernel(struct xdp_md *ctx)
{
	struct eth_header *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) <= (void *)(long)ctx->data_end && is_from(eth, UNET_KERNEL_LINK);
}

static __always_inline int deliver(struct xdp_md *ctx, bool several_buffers)
{
	__u32 slot = ctx->ingress_ifindex - UNET_FIRST_IFINDEX;
	struct xsk_buff_pool *pool = shown_pool(ctx);
	bool whole = is_whole(ctx, pool);
	enum fill fill;

	if (unlikely(is_of_kernel(ctx)))
		return count(UNET_DELIVER_KERNEL, XDP_DROP);
	if (unlikely(!whole && !several_buffers))
		return count(UNET_DELIVER_TOO_LONG, XDP_DROP);
	fill = look_at_fill(ctx, pool, whole);
	if (unlikely(fill != FILL_SOUND)) {
		if (fill == FILL_UNSOUND)
			raise_alarm(UNET_ALARM_FILL, slot);
		return count(UNET_DELIVER_BAD_FILL, XDP_DROP);
	}
	describe_super_frame(ctx);
	if (bpf_redirect_map(&port_sockets, slot, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_DELIVER_NO_SOCKET, XDP_DROP);
	return count(UNET_DELIVER_SOCKET, XDP_REDIRECT);
}

SEC("xdp.frags")
int unet_deliver(struct xdp_md *ctx)
{
	return deliver(ctx, true);
}

SEC("xdp")
int unet_deliver_linear(struct xdp_md *ctx)
{
	end_part(ctx);
	return deliver(ctx, false);
}

SEC("xdp.frags")
int unet_deliver_whole(struct xdp_md *ctx)
{
	return deliver(ctx, false);
}

#endif
