/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * Losses that no XDP program can see. bpf_redirect_map() only notes the
 * destination of a frame; the kernel moves the frame after the program has ended,
 * and may fail. Then it calls a tracepoint:
 *
 *   xdp_redirect_err   the move failed: frame longer than the device's MTU, device
 *                      down or without ndo_xdp_xmit, socket's queue full
 *   xdp_exception      generic XDP: the device's transmit queue was stopped. The tracepoint
 *                      has the device that the frame was redirected to
 *   kfree_skb          generic XDP: a frame that comes out of a veth waits in the
 *                      backlog of the processor for the program of that end, and the
 *                      backlog was full (net.core.netdev_max_backlog). In tcx mode: the inner
 *                      end of a port was down
 *   xdp_devmap_xmit    native mode: the device did not accept all of a bulk
 *
 * The first two run only after a failure; kfree_skb runs for each packet that the
 * machine drops. xdp_devmap_xmit runs for each bulk, so it is attached in native mode
 * only.
 *
 * Tracepoints run for the whole system. The uplink is identified by its ifindex and network
 * namespace, since in tcx mode it has no XDP program; the others by the id of their program.
 *
 * Not seen here: packets for which the kernel has no memory. Then the counters do not add up
 * (package internal/account).
 */
#ifndef UNET_TRACE_H
#define UNET_TRACE_H

#include "count.h"
#include "host.h"
#include "kernel.h"
#include <bpf/bpf_tracing.h>

/* The counter of frames lost after a redirect, by the id of the XDP program. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} losses SEC(".maps");

/* count_loss: to is the ifindex of the device that the frame was redirected to, or TO_SOCKET. */
#define TO_SOCKET 0

static __always_inline void count_loss(const struct bpf_prog *xdp, __u32 to)
{
	__u32 id = xdp->aux->id;
	__u32 *found = bpf_map_lookup_elem(&losses, &id), counter;

	if (!found)
		return;
	counter = *found;
	if (counter == UNET_LOST_UPLINK_REDIRECT && to == TO_SOCKET)
		counter = UNET_LOST_QUEUE_REDIRECT;
	if (counter == UNET_LOST_PORT_REDIRECT && to != config.uplink)
		counter = to == config.up ? UNET_LOST_HOST : UNET_LOST_LOCAL_REDIRECT;
	add(counter, 1);
}

SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(unet_redirect_err, const struct net_device *dev, const struct bpf_prog *xdp, const void *target, int err, enum bpf_map_type map, __u32 map_id,
	     __u32 index)
{
	count_loss(xdp, map == BPF_MAP_TYPE_XSKMAP ? TO_SOCKET : index);
	return 0;
}

SEC("tp_btf/xdp_exception")
int BPF_PROG(unet_exception, const struct net_device *dev, const struct bpf_prog *xdp)
{
	count_loss(xdp, dev->ifindex);
	return 0;
}

/*
 * was_to_port: bpf_redirect_peer() could not move the frame, and skb_do_redirect() has freed it. This
 * is the only place at ingress of the uplink or lo that frees a frame with its link header and without
 * a reason.
 */
static __always_inline bool was_to_port(struct sk_buff *skb)
{
	if (skb->dev->nd_net.net->net_cookie != config.netns || (skb->dev->ifindex != config.uplink && skb->dev->ifindex != LO))
		return false;
	return BPF_CORE_READ_BITFIELD(skb, tc_at_ingress) && skb->data == skb->head + skb->mac_header;
}

/* was_of_kernel: see UNET_KERNEL_LINK. */
static __always_inline bool was_of_kernel(struct sk_buff *skb)
{
	__u64 src = 0;

	bpf_probe_read_kernel(&src, 6, skb->head + skb->mac_header + 6);
	return src == UNET_KERNEL_LINK;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(unet_backlog_full, struct sk_buff *skb, void *location, enum skb_drop_reason reason)
{
	__u32 id, *counter;

	if (reason == bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_NOT_SPECIFIED) && skb->dev && was_to_port(skb))
		add(UNET_LOST_PORT_DOWN, 1);
	if (reason != bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_CPU_BACKLOG))
		return 0;
	if (skb->dev->nd_net.net->net_cookie == config.netns) {
		if (skb->dev->ifindex == config.cutter)
			return 0; /* the device counts it: lost_cut */
		if (skb->dev->ifindex == config.uplink) {
			add(UNET_LOST_UPLINK_BACKLOG, 1);
			return 0;
		}
		if (skb->dev->ifindex == config.top || skb->dev->ifindex == LO) {
			add(UNET_LOST_HOST, 1);
			return 0;
		}
	}
	id = skb->dev->xdp_prog->aux->id; /* 0 if there is none */
	counter = bpf_map_lookup_elem(&losses, &id);
	if (counter && was_of_kernel(skb))
		add(UNET_DELIVER_KERNEL, 1);
	else if (counter)
		add(*counter + UNET_LOST_UPLINK_BACKLOG - UNET_LOST_UPLINK_REDIRECT, 1);
	return 0;
}

SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(unet_devmap_xmit, const struct net_device *from, const struct net_device *to, int sent, int drops)
{
	__u32 ifindex;

	if (drops <= 0)
		return 0;
	ifindex = to->ifindex;
	if (to->nd_net.net->net_cookie != config.netns || !bpf_map_lookup_elem(&devices, &ifindex))
		return 0;
	if (ifindex == config.uplink)
		add(UNET_LOST_DEVICE_FULL, drops);
	else
		add(ifindex == config.up ? UNET_LOST_HOST : UNET_LOST_PORT_FULL, drops);
	return 0;
}

#endif
