/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * VLAN tags that stand beside the frame. A driver may take the tag out of the
 * frame and note it in the skb, and the sender at the other end of a veth never
 * puts it in. Generic XDP is shown the frame without it: a frame of VLAN 100 looks
 * like an untagged one, and a tag of ours would claim it.
 *
 * __netif_receive_skb_core() calls the tracepoint netif_receive_skb and then runs
 * generic XDP, in the same softirq, with nothing received in between. So what
 * unet_note_vlan writes down for its CPU is about the frame that unet_uplink meets
 * next there. Native XDP runs before there is an skb; then config.notes_vlan is 0.
 *
 * When the uplink stands on another device (a bond, a macvlan), the tracepoint
 * saw the frame on that one, and the kernel may have moved a tag from the frame to
 * its side since. So a tag inside the frame is noted too.
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

/* It meets every frame of the machine, so it asks nothing about it that it could do without. */
SEC("tp_btf/netif_receive_skb")
int BPF_PROG(unet_note_vlan, struct sk_buff *skb)
{
	__u32 zero = 0, *note = bpf_map_lookup_elem(&vlan_note, &zero);

	if (note)
		*note = skb->vlan_all || is_vlan(skb->protocol);
	return 0;
}

static __always_inline bool vlan_was_noted(void)
{
	__u32 zero = 0, *note = bpf_map_lookup_elem(&vlan_note, &zero);

	return note && *note;
}

#endif
