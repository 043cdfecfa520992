/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The uplink program: a frame comes in from the wire. A tag claims it, and
 * it goes to the tag's owner; or none does, and it is the kernel's.
 */
#ifndef UNET_UPLINK_H
#define UNET_UPLINK_H

#include "count.h"
#include "cut.h"
#include "find.h"
#include "meta.h"
#include "vlan.h"

static __always_inline int to_cut(struct xdp_md *ctx, __u32 port)
{
	if (!bpf_map_lookup_elem(&devices, &port))
		return count(UNET_RX_PASS_PORT_GONE, XDP_PASS);
	if (!leave_to_cut(ctx))
		return count(UNET_RX_NO_METADATA, XDP_DROP);
	return count(UNET_RX_CUT, XDP_PASS);
}

static __always_inline int to_owner(struct xdp_md *ctx, struct unet_owner *owner)
{
	__u32 queue = ctx->rx_queue_index;

	if (owner->port) {
		if (owner->room && is_super_frame(ctx, owner->room))
			return to_cut(ctx, owner->port);
		/* A tag whose owner has died claims nothing. */
		if (bpf_redirect_map(&devices, owner->port, XDP_PASS) != XDP_REDIRECT)
			return count(UNET_RX_PASS_PORT_GONE, XDP_PASS);
		return count(UNET_RX_PORT, XDP_REDIRECT);
	}
	/* A frame can be redirected only to a socket bound to the queue it came in on. */
	if (owner->queue != queue)
		return count(UNET_RX_PASS_OTHER_QUEUE, XDP_PASS);
	if (!prepend_meta(ctx, config.generic))
		return count(UNET_RX_NO_METADATA, XDP_DROP);
	if (bpf_redirect_map(&sockets, queue, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_RX_QUEUE_GONE, XDP_DROP);
	return count(UNET_RX_QUEUE, XDP_REDIRECT);
}

SEC("xdp.frags")
int unet_uplink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct eth_header *eth = data;
	struct found f;

	if ((void *)(eth + 1) > data_end)
		return count(UNET_RX_PASS_TRUNCATED, XDP_PASS);
	/* Tags are about the untagged network. */
	if (is_vlan(eth->type) || (config.notes_vlan && vlan_was_noted()))
		return count(UNET_RX_PASS_VLAN, XDP_PASS);

	if (is_link(eth->dst, config.link_head, config.link_tail))
		f = find_unicast(ctx, eth, data_end);
	else
		f = find_asked(ctx, eth, data_end);
	if (!f.owner)
		return count(f.problem ? UNET_RX_PASS_TRUNCATED : UNET_RX_PASS, XDP_PASS);
	if (f.problem)
		return count(UNET_RX_BAD_LENGTH, XDP_DROP);
	return to_owner(ctx, f.owner);
}

#endif
