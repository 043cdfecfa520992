/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * VLAN tags in the frame and in the skb. With VLAN offload a driver moves the tag from
 * the frame to the skb, and the sender at the other end of a veth never writes it into
 * the frame. Generic XDP sees the frame without it: a frame of VLAN 100 looks untagged,
 * and an endpoint's tag would claim it.
 *
 * __netif_receive_skb_core() calls the tracepoint netif_receive_skb and then runs
 * generic XDP, in the same softirq, with nothing received in between. So the note that
 * unet_note_vlan writes for its CPU is about the frame that unet_queue sees next on
 * that CPU. config.notes_vlan is 0 for the other programs: native XDP runs before there is
 * an skb, and traffic control sees the tag there.
 *
 * If the uplink is on top of another device (a bond, a macvlan), the tracepoint ran
 * for the frame on that device, and the kernel may have moved a tag from the frame to
 * the skb since. So a tag in the frame is noted too.
 */
#ifndef UNET_VLAN_H
#define UNET_VLAN_H

#include "headers.h"
#include "kernel.h"
#include <bpf/bpf_tracing.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} vlan_note SEC(".maps");

/* vlan_of: the VLAN of a frame with a VLAN tag, in the skb or in the frame; 0: the tag has a priority only. */
static __always_inline __u16 vlan_of(struct sk_buff *skb)
{
	__be16 control = 0;

	if (skb->vlan_all)
		return skb->vlan_tci & VLAN_ID;
	bpf_probe_read_kernel(&control, sizeof(control), skb->data); /* behind the type */
	return bpf_ntohs(control) & VLAN_ID;
}

/* Runs for every frame that the machine receives, so it does as little as possible. */
SEC("tp_btf/netif_receive_skb")
int BPF_PROG(unet_note_vlan, struct sk_buff *skb)
{
	__u32 zero = 0, *note = bpf_map_lookup_elem(&vlan_note, &zero);

	if (!note)
		return 0;
	if (skb->vlan_all || is_vlan(skb->protocol))
		*note = vlan_of(skb);
	else
		*note = 0;
	return 0;
}

static __always_inline bool vlan_was_noted(void)
{
	__u32 zero = 0, *note = bpf_map_lookup_elem(&vlan_note, &zero);

	return note && *note;
}

/*
 * A tag of VLAN 0 is a priority only: its frame belongs to the untagged network (IEEE
 * 802.1Q), for the kernel and for these programs. Its headers begin after the tag, and
 * the tag is removed before the frame is delivered. A frame with two such tags is dropped,
 * since no host sends that. (The kernel would remove both.)
 */
enum tagged {
	TAGGED_PRIORITY,
	TAGGED_TRUNCATED,
	TAGGED_VLAN,
	TAGGED_TWICE,
};

static __always_inline bool is_of_vlan(const struct vlan_tag *tag)
{
	return tag->control & bpf_htons(VLAN_ID);
}

/* look_at_tag: the type of the frame is that of a tag. */
static __always_inline enum tagged look_at_tag(struct eth_header *eth, void *data_end)
{
	struct vlan_tag *tag = (void *)&eth->type, *second = tag + 1;

	if ((void *)&second->type + sizeof(second->type) > data_end)
		return TAGGED_TRUNCATED;
	if (is_of_vlan(tag))
		return TAGGED_VLAN;
	if (!is_vlan(second->type))
		return TAGGED_PRIORITY;
	if ((void *)(second + 1) > data_end)
		return TAGGED_TRUNCATED;
	return is_of_vlan(second) ? TAGGED_VLAN : TAGGED_TWICE;
}

/* take_tag_out moves the MAC addresses over the tag; false: the kernel could not adjust the head. */
static __always_inline bool take_tag_out(struct xdp_md *ctx)
{
	__u32 *words = (void *)(long)ctx->data; /* three of addresses, and the tag */

	if ((void *)(words + 4) > (void *)(long)ctx->data_end)
		return false;
	words[3] = words[2];
	words[2] = words[1];
	words[1] = words[0];
	return !bpf_xdp_adjust_head(ctx, sizeof(struct vlan_tag));
}

#endif
