/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The uplink program runs on each frame from the wire. If a tag claims the frame it
 * is redirected to the tag's owner; otherwise it is passed to the kernel.
 *
 *   unet_uplink  native mode; in tcx mode (tcx.h) it runs on the cutter
 *   unet_queue   tcx mode, while there are endpoints on queues: it acts only on frames for their
 *                sockets, and leaves all others, uncounted, to unet_uplink_tcx
 */
#ifndef UNET_UPLINK_H
#define UNET_UPLINK_H

#include "count.h"
#include "cut.h"
#include "find.h"
#include "own.h"
#include "super.h"
#include "vlan.h"

/* to_port: the frames of a tag whose owner has died are passed to the kernel. */
static __always_inline int to_port(__u32 port)
{
	if (bpf_redirect_map(&devices, port, XDP_PASS) != XDP_REDIRECT)
		return count(UNET_RX_PASS_PORT_GONE, XDP_PASS);
	return count(UNET_RX_PORT, XDP_REDIRECT);
}

static __always_inline int to_cut(struct xdp_md *ctx, __u32 port, __u32 parts)
{
	int place;

	if (!bpf_map_lookup_elem(&devices, &port))
		return count(UNET_RX_PASS_PORT_GONE, XDP_PASS);
	if (parts > CUT_MAX_PARTS)
		return count(UNET_RX_MANY_PARTS, XDP_DROP);
	place = enter_line(port, parts);
	if (place < 0)
		return count(UNET_RX_CUTTER_BUSY, XDP_DROP);
	mark(ctx, port, place);
	return count(UNET_RX_CUT, XDP_PASS);
}

/* part_to_owner: a part that is still too long is not cut again; the deliver program drops it. */
static __always_inline int part_to_owner(struct eth_header *eth, struct unet_owner *owner)
{
	if (!part_of(eth, owner->port))
		return count(UNET_RX_STALE_PART, XDP_DROP);
	return to_port(owner->port);
}

static __always_inline int to_owner(struct xdp_md *ctx, struct unet_owner *owner)
{
	__u32 queue = ctx->rx_queue_index;

	if (owner->port) {
		__u32 parts = owner->room ? super_frame_parts(ctx, owner->room) : 0;

		if (parts)
			return to_cut(ctx, owner->port, parts);
		return to_port(owner->port);
	}
	/* A frame can be redirected only to a socket bound to the queue it came in on. */
	if (owner->queue != queue)
		return count(UNET_RX_PASS_OTHER_QUEUE, XDP_PASS);
	describe_super_frame(ctx);
	if (bpf_redirect_map(&sockets, queue, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_RX_QUEUE_GONE, XDP_DROP);
	return count(UNET_RX_QUEUE, XDP_REDIRECT);
}

/* of_nobody: frames without an owner go to the kernel, except those that it would answer in place of a port's holder. */
static __always_inline int of_nobody(enum find_problem problem)
{
	if (!problem)
		return count(UNET_RX_PASS, XDP_PASS);
	if (problem == FIND_FRAGMENT)
		return count(UNET_RX_FRAGMENT, XDP_DROP);
	if (problem == FIND_EXTENSION)
		return count(UNET_RX_EXTENSION, XDP_DROP);
	return count(UNET_RX_PASS_TRUNCATED, XDP_PASS);
}

/* leave: a frame that unet_queue leaves to unet_uplink_tcx is judged and counted there. */
static __always_inline int leave(bool queues, enum unet_counter counter, int verdict)
{
	return queues ? XDP_PASS : count(counter, verdict);
}

/* queues: this is unet_queue. */
static __always_inline int uplink(struct xdp_md *ctx, bool queues)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct eth_header *eth = data, *counts = eth; /* whose type counts, and what follows */
	bool tagged = false;
	struct found f;

	if ((void *)(eth + 1) > data_end)
		return leave(queues, UNET_RX_PASS_TRUNCATED, XDP_PASS);
	if (!queues && is_forged(ctx, eth))
		return count(UNET_RX_STALE_PART, XDP_DROP);
	/* Endpoint tags are for frames without a VLAN tag. */
	if (config.notes_vlan && vlan_was_noted())
		return leave(queues, UNET_RX_PASS_VLAN, XDP_PASS);
	if (is_vlan(eth->type)) {
		enum tagged t = look_at_tag(eth, data_end);

		if (t == TAGGED_VLAN)
			return leave(queues, UNET_RX_PASS_VLAN, XDP_PASS);
		if (t == TAGGED_TWICE)
			return leave(queues, UNET_RX_TAGGED_TWICE, XDP_DROP);
		counts = data + sizeof(struct vlan_tag);
		if (t == TAGGED_TRUNCATED || (void *)(counts + 1) > data_end)
			return leave(queues, UNET_RX_PASS_TRUNCATED, XDP_PASS);
		tagged = true;
	}

	if (is_link(eth->dst, config.link_head, config.link_tail) || (!queues && !tagged && is_part(eth)))
		f = find_unicast(of_xdp(ctx), counts, data_end);
	else
		f = find_asked(of_xdp(ctx), eth->dst, counts, data_end);
	if (queues && (!f.owner || f.owner->port || f.owner->queue != ctx->rx_queue_index || f.problem))
		return XDP_PASS;
	if (!f.owner)
		return of_nobody(f.problem);
	if (f.problem)
		return count(UNET_RX_BAD_LENGTH, XDP_DROP);
	/* The cutter also receives what the kernel of this host sends (host.h). */
	if (is_martian(counts, eth->src, data_end) && ctx->ingress_ifindex != config.cutter)
		return count(UNET_RX_MARTIAN, XDP_DROP);
	if (!queues && !tagged && is_part(eth)) /* asked again: a variable for it would make two cases of the look-up for the verifier */
		return part_to_owner(eth, f.owner);
	if (tagged && !take_tag_out(ctx))
		return count(UNET_RX_NO_METADATA, XDP_DROP);
	return to_owner(ctx, f.owner);
}

SEC("xdp.frags")
int unet_uplink(struct xdp_md *ctx)
{
	return uplink(ctx, false);
}

SEC("xdp.frags")
int unet_queue(struct xdp_md *ctx)
{
	return uplink(ctx, true);
}

#endif
