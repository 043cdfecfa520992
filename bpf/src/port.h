/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The port program runs on each frame that an endpoint sends, at the outer end of
 * its port. XDP runs only on received frames, so this is the place where the frames
 * of an endpoint can be checked. Nothing in the frame is trusted. The device that it
 * came in on (ingress_ifindex) identifies the endpoint.
 *
 *   unet_port          endpoints without a limit of what they send
 *   unet_port_limited  those with one (limit.h)
 */
#ifndef UNET_PORT_H
#define UNET_PORT_H

#include "check6.h"
#include "count.h"
#include "group.h"
#include "kernel.h"
#include "limit.h"

/* whole_len is bpf_xdp_get_buff_len(), without the call for a frame in one buffer. */
static __always_inline __u32 whole_len(struct xdp_md *ctx)
{
	struct xdp_buff *xdp = bpf_cast_to_kern_ctx(ctx);

	return likely(!(xdp->flags & XDP_FLAGS_HAS_FRAGS)) ? ctx->data_end - ctx->data : bpf_xdp_get_buff_len(ctx);
}

/* is_to compares the destination by one load of 8 bytes, as is_from does the source. */
static __always_inline bool is_to(struct eth_header *eth, __u64 link)
{
	return *(__u64 *)eth->dst << 16 == link << 16;
}

/* check: len is that of the frame. */
static __always_inline int check(struct eth_header *eth, void *data_end, __u32 len, __u64 link, __u32 port)
{
	void *l3 = eth + 1;
	__u32 room = len - sizeof(*eth);

	if (l3 > data_end)
		return UNET_TX_TRUNCATED;
	if (len > config.max_frame)
		return UNET_TX_OVERSIZE;
	if (!is_from(eth, link))
		return UNET_TX_FORGED_LINK;
	if (likely(eth->type == bpf_htons(ETHERTYPE_IPV4)))
		return check_ipv4(l3, data_end, room, port);
	if (eth->type == bpf_htons(ETHERTYPE_IPV6))
		return check_ipv6(l3, data_end, room, port);
	if (eth->type == bpf_htons(ETHERTYPE_UNET))
		return check_message(l3, data_end, room, port);
	if (eth->type == bpf_htons(ETHERTYPE_ARP))
		return check_arp(l3, data_end, port);
	return UNET_TX_BAD_ETHERTYPE; /* so no bridge, switch or VLAN is talked to */
}

static __always_inline int send_local(struct unet_owner *owner)
{
	if (!owner->port)
		return count(UNET_TX_TO_QUEUE, XDP_DROP);
	if (bpf_redirect_map(&devices, owner->port, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_TX_PORT_GONE, XDP_DROP);
	return count(UNET_TX_LOCAL, XDP_REDIRECT);
}

/*
 * send_to_host and send_to_group are functions of their own, so that the code for frames to the
 * wire is short. The wire does not return a frame, so frames for this host are redirected here.
 */
static __noinline int send_to_host(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct eth_header *eth = data;
	struct found f;

	if ((void *)(eth + 1) > data_end)
		return count(UNET_TX_TRUNCATED, XDP_DROP);
	f = find_unicast(of_xdp(ctx), eth, data_end);
	if (f.owner)
		return send_local(f.owner);
	if (f.problem || !is_for_kernel(eth, data_end) || bpf_redirect_map(&devices, config.up, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_TX_NO_OWNER, XDP_DROP);
	return count(UNET_TX_HOST, XDP_REDIRECT);
}

static __always_inline int send_to_wire(void)
{
	if (bpf_redirect_map(&devices, config.uplink, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_TX_UPLINK_GONE, XDP_DROP);
	return count(UNET_TX_UPLINK, XDP_REDIRECT);
}

static __noinline int send_to_group(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct eth_header *eth = data;
	__u32 port = ctx->ingress_ifindex, copies;
	void *to = NULL;
	struct found f;
	int problem;

	if ((void *)(eth + 1) > data_end)
		return count(UNET_TX_TRUNCATED, XDP_DROP);
	problem = check_group(eth, data_end, port);
	if (problem != ALLOWED)
		return count(problem, XDP_DROP);
	f = find_asked(of_xdp(ctx), eth->dst, eth, data_end);
	/* An endpoint's probes and announcements of its own address go to the wire (RFC 5227, RFC 4862). */
	if (f.owner && f.owner->port != port)
		return send_local(f.owner);
	copies = group_copies(eth, data_end, port, &to);
	/* In native mode xdpf_clone() copies the first buffer of a frame only, and says that there are more. */
	if (!copies || !to || whole_len(ctx) != ctx->data_end - ctx->data)
		return send_to_wire();
	add(UNET_TX_GROUP, copies);
	add(UNET_TX_UPLINK, 1);
	return bpf_redirect_map(to, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
}

/* limited: this is unet_port_limited. */
static __always_inline int port(struct xdp_md *ctx, bool limited)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct eth_header *eth = data;
	__u64 link = uplink_link();
	__u32 len = whole_len(ctx);
	int problem;

	problem = check(eth, data_end, len, link, ctx->ingress_ifindex);
	if (problem == ALLOWED && limited)
		problem = limit(ctx->ingress_ifindex, len);
	if (problem != ALLOWED)
		return count(problem, XDP_DROP);
	if (is_to(eth, link))
		return send_to_host(ctx);
	if (eth->dst[0] & 1 || unlikely(is_to_group(eth, data_end)))
		return send_to_group(ctx);
	return send_to_wire();
}

SEC("xdp.frags")
int unet_port(struct xdp_md *ctx)
{
	return port(ctx, false);
}

SEC("xdp.frags")
int unet_port_limited(struct xdp_md *ctx)
{
	return port(ctx, true);
}

#endif
