/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The port program runs on each frame that an endpoint sends, at the outer end of
 * its port. XDP runs only on received frames, so this is the place where the frames
 * of an endpoint can be checked. Nothing in the frame is trusted. The device that it
 * came in on (ingress_ifindex) identifies the endpoint.
 */
#ifndef UNET_PORT_H
#define UNET_PORT_H

#include "check6.h"
#include "count.h"

/* check: len is that of the frame. */
static __always_inline int check(struct eth_header *eth, void *data_end, __u32 len, __u32 port)
{
	void *l3 = eth + 1;
	__u32 room = len - sizeof(*eth);

	if (l3 > data_end)
		return UNET_TX_TRUNCATED;
	if (len > config.max_frame)
		return UNET_TX_OVERSIZE;
	if (!is_link(eth->src, config.link_head, config.link_tail))
		return UNET_TX_FORGED_LINK;
	if (eth->type == bpf_htons(ETHERTYPE_IPV4))
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

SEC("xdp.frags")
int unet_port(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 port = ctx->ingress_ifindex;
	struct eth_header *eth = data;
	struct found f;
	int problem;

	problem = check(eth, data_end, bpf_xdp_get_buff_len(ctx), port);
	if (problem != ALLOWED)
		return count(problem, XDP_DROP);

	/* The wire does not return a frame: frames for this host are redirected here. */
	if (is_link(eth->dst, config.link_head, config.link_tail)) {
		f = find_unicast(of_xdp(ctx), eth, data_end);
		if (!f.owner)
			return count(UNET_TX_NO_OWNER, XDP_DROP);
		return send_local(f.owner);
	}
	f = find_asked(of_xdp(ctx), eth->dst, eth, data_end);
	/* An endpoint's probes and announcements of its own address go to the wire (RFC 5227, RFC 4862). */
	if (f.owner && f.owner->port != port)
		return send_local(f.owner);
	if (bpf_redirect_map(&devices, config.uplink, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_TX_UPLINK_GONE, XDP_DROP);
	return count(UNET_TX_UPLINK, XDP_REDIRECT);
}

#endif
