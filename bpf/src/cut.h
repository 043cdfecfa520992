/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * Super-frames for ports that take only what fits one buffer (deliver.h).
 *
 * A sender that leaves segmentation to its device (TSO), and is met at the other end
 * of a virtual link, hands over up to 64 KiB under one header; and generic receive
 * offload makes such a frame of what came in many. Generic XDP is shown these. For an
 * owner who is not trusted they have to be cut into what would have been on a wire,
 * and the kernel can: it does so whenever a packet leaves by a device that cannot.
 *
 *   uplink --> unet_uplink: too long --> unet_cut --> cutter: cut, and back to the
 *   uplink --> unet_uplink: each part as if it had just come in --> port
 *
 * The cutter is an ifb device of the mux, made with room for one segment (gso_max_segs):
 * what is sent there comes in again by the device that it came in by first. unet_uplink
 * lets the super-frame pass with metadata of XDP in front of it, which the kernel keeps
 * beside the skb; by that unet_cut, which stands where packets enter traffic control,
 * knows it from the kernel's own. Nobody else can write metadata: it is no part of the
 * packet.
 *
 * (To redirect to the port at once would cut as well, but the kernel runs no generic
 * XDP on what traffic control has redirected, so no deliver program. An ifb takes that
 * mark off.)
 *
 * Native XDP needs none of this: it comes before receive offload, and a veth with a
 * native program makes its peer cut.
 */
#ifndef UNET_CUT_H
#define UNET_CUT_H

#include "count.h"
#include "headers.h"
#include "meta.h"

#define TCX_NEXT (-1) /* include/uapi/linux/bpf.h, Linux 6.6: none of ours, go on */
#define TCX_DROP 2
#define CUT_NOTE 4 /* bytes of metadata */

/*
 * is_super_frame: longer than what the port takes, and made of parts. (A part that is
 * too long itself does not come here again.)
 */
static __always_inline bool is_super_frame(struct xdp_md *ctx, __u32 room)
{
	return config.cutter && bpf_xdp_get_buff_len(ctx) > room && shared_info(ctx)->gso_size;
}

/* leave_to_cut writes the metadata; false: no room. */
static __always_inline bool leave_to_cut(struct xdp_md *ctx)
{
	return !bpf_xdp_adjust_meta(ctx, -CUT_NOTE);
}

/*
 * put_link_header: when the kernel copies an skb for generic XDP, as it does with every
 * super-frame, it forgets how long its link header is (mac_len; 6.18), and takes it for
 * gone when the packet gets here.
 */
static __always_inline int put_link_header(struct __sk_buff *skb)
{
	struct eth_header eth, first;
	int err;

	err = bpf_skb_load_bytes_relative(skb, 0, &eth, sizeof(eth), BPF_HDR_START_MAC);
	if (err)
		return err;
	err = bpf_skb_load_bytes(skb, 0, &first, sizeof(first));
	if (err || (is_link(first.dst, config.link_head, config.link_tail) && first.type == eth.type))
		return err;
	err = bpf_skb_change_head(skb, sizeof(eth), 0);
	if (err)
		return err;
	return bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0);
}

SEC("tcx/ingress")
int unet_cut(struct __sk_buff *skb)
{
	void *note = (void *)(long)skb->data_meta, *data = (void *)(long)skb->data;

	if (note + CUT_NOTE > data)
		return TCX_NEXT;
	if (put_link_header(skb))
		return count(UNET_LOST_CUT, TCX_DROP);
	return bpf_redirect(config.cutter, 0);
}

#endif
