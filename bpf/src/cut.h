/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * Super-frames for ports that accept only frames of one buffer (deliver.h).
 *
 * A sender at the other end of a virtual link that leaves segmentation to its device
 * (TSO) sends up to 64 KiB under one header; generic receive offload makes such frames
 * of several received ones. Generic XDP programs get these. For an untrusted owner they
 * must be segmented, as a device does. The kernel segments a packet when it leaves by a
 * device without segmentation offload.
 *
 *   uplink --> unet_uplink: too long --> unet_cut --> cutter: cut, and back to the
 *   uplink --> unet_uplink: each part as if it had just come in --> port
 *
 * The cutter is an ifb device of the mux that accepts packets of one segment: a packet
 * sent there is received again on the device that it came in on first. unet_uplink marks
 * the super-frame in its destination MAC address and passes it. By the mark unet_cut, at
 * traffic control ingress, distinguishes it from frames for the kernel.
 * In tcx mode the cutter is in the place of the uplink in all of this: see tcx.h.
 *
 * The work is limited. The peer decides the length of the parts, and one frame of 60 kB
 * can have 60,000. So a frame of more than CUT_MAX_PARTS is dropped, and so is one for
 * an owner who would have more than CUT_LINE parts on the way. So an owner waits for at
 * most CUT_LINE parts of each other owner, and the kernel's backlog, through which all
 * frames reach the ports, has room for others. The device has no queueing discipline
 * that could fill, and drops nothing.
 *
 * The mark has the owner's port, and is in each part as well: unet_uplink replaces the
 * destination MAC address of a super-frame (it was the uplink's) by these bytes, and
 * unet_deliver_linear restores it in each part:
 *
 *   byte 0      part_head
 *   byte 1      place: number of parts sent to the owner before, in units of CUT_PLACE, modulo 256
 *   bytes 2..5  the port's ifindex, xor part_tail
 *
 * A part whose tag has another holder by now is dropped. A part that no tag claims is
 * passed to the kernel, which ignores it as a frame to another host. Hosts on the wire do
 * not know the two secrets, so they cannot forge parts and their places. A host that
 * guesses a mark gets nothing cut by it: unet_uplink drops super-frames that come in marked.
 *
 * (After a redirect from traffic control to the port the kernel would segment as well. But
 * it does not run generic XDP on frames that traffic control has redirected, so the deliver
 * program would not run. An ifb clears that mark, skb->redirected.)
 *
 * Native XDP needs none of this: it runs before generic receive offload, and a native
 * program on a veth turns the segmentation offload of its peer off.
 */
#ifndef UNET_CUT_H
#define UNET_CUT_H

#include "count.h"
#include "headers.h"
#include "super.h"

#define TCX_NEXT (-1) /* include/uapi/linux/bpf.h, Linux 6.6: continue as without this program */
#define TCX_DROP 2

/*
 * CUT_MAX_PARTS permits 64 KiB in segments of 536 bytes, of which 24 are TCP options. TCP
 * uses 536 if the peer has not sent an MSS (RFC 9293, 3.7.1). 128 is also the largest number
 * of datagrams of UDP_SEGMENT on Linux.
 */
#define CUT_MAX_PARTS 128
#define CUT_LINE 512             /* parts; the backlog of a processor holds 1,000 (net.core.netdev_max_backlog) */
#define CUT_PLACE 16             /* parts; 256 of these units, the range of a place, exceed CUT_LINE */
#define CUT_LOST_NS 100000000ull /* parts that have not arrived by then are lost */

/* A line is the parts on the way to an owner. */
struct cut_line {
	__u32 sent; /* parts of all super-frames so far */
	__u32 done; /* of these, those that are known to have arrived or to be lost */
	__u64 last; /* when the last super-frame was sent, in ns */
};

/* The lines by ifindex of the owner's port (LRU). An evicted line starts from zero. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UNET_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct cut_line);
} lines SEC(".maps");

#define CUT_HEADERS (sizeof(struct eth_header) + sizeof(struct ipv4_header) + sizeof(struct udp_header)) /* at least */

/*
 * super_frame_parts is the number of parts of a super-frame that is longer than the port
 * accepts; 0: it is not. Headers beyond CUT_HEADERS count as payload. room is the length of
 * a frame of the segment, so it is longer than the headers.
 */
static __always_inline __u32 super_frame_parts(struct xdp_md *ctx, __u32 room)
{
	__u32 len = bpf_xdp_get_buff_len(ctx), size;

	if (len <= room || !config.cutter)
		return 0;
	size = shared_info(ctx)->gso_size;
	return size ? (len - CUT_HEADERS - 1) / size + 1 : 0;
}

/*
 * enter_line adds a super-frame to the owner's line. It returns the frame's place, or -1 if
 * there is no room.
 */
static __always_inline int enter_line(__u32 port, __u32 parts)
{
	struct cut_line *line = bpf_map_lookup_elem(&lines, &port), fresh = {};
	__u64 now = bpf_ktime_get_ns();
	__u32 sent;

	if (!line) {
		bpf_map_update_elem(&lines, &port, &fresh, BPF_NOEXIST);
		line = bpf_map_lookup_elem(&lines, &port);
		if (!line)
			return -1;
	}
	if (now - line->last > CUT_LOST_NS)
		line->done = line->sent;
	if (line->sent - line->done + parts > CUT_LINE)
		return -1;
	sent = line->sent;
	__sync_fetch_and_add(&line->sent, parts);
	line->last = now;
	return sent / CUT_PLACE & 0xff;
}

/* leave_line: a part of the frame with this place has arrived, so no parts of earlier frames are on the way. */
static __always_inline void leave_line(__u32 port, __u8 place)
{
	struct cut_line *line = bpf_map_lookup_elem(&lines, &port);
	__u32 units, done;

	if (!line)
		return;
	units = line->sent / CUT_PLACE;
	done = (units - (__u8)(units - place)) * CUT_PLACE;
	if ((__s32)(done - line->done) > 0)
		line->done = done;
}

/*
 * is_part: the frame has come out of the cutter, or its destination is another host whose
 * MAC address has the same first byte. That of the uplink does not.
 */
static __always_inline bool is_part(const struct eth_header *eth)
{
	return config.cutter && eth->dst[0] == config.part_head;
}

/* part_of: the frame is a part for the owner of a port. */
static __always_inline bool part_of(const struct eth_header *eth, __u32 port)
{
	return *(const __u32 *)(eth->dst + 2) == (port ^ config.part_tail);
}

/* is_mark: a destination of this first byte and these last four is a mark for a port. */
static __always_inline bool is_mark(__u8 head, __u32 tail)
{
	__u32 port = tail ^ config.part_tail;

	return head == config.part_head && bpf_map_lookup_elem(&devices, &port);
}

/* is_forged: a marked super-frame that another program than unet_uplink has marked. Parts are no super-frames. */
static __always_inline bool is_forged(struct xdp_md *ctx, const struct eth_header *eth)
{
	return unlikely(is_part(eth)) && shared_info(ctx)->gso_size && is_mark(eth->dst[0], *(const __u32 *)(eth->dst + 2));
}

/* mark writes the port and the place to a super-frame, for unet_cut and for its parts. */
static __always_inline void mark(struct xdp_md *ctx, __u32 port, __u8 place)
{
	struct eth_header *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return;
	eth->dst[0] = config.part_head;
	eth->dst[1] = place;
	*(__u32 *)(eth->dst + 2) = port ^ config.part_tail;
}

/*
 * end_part restores the destination MAC address of a part. No other frame that reaches a
 * port has such an address.
 */
static __always_inline void end_part(struct xdp_md *ctx)
{
	struct eth_header *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end || !is_part(eth))
		return;
	leave_line(*(__u32 *)(eth->dst + 2) ^ config.part_tail, eth->dst[1]);
	*(__u32 *)eth->dst = config.link_head;
	*(__u16 *)(eth->dst + 4) = config.link_tail;
}

/*
 * put_link_header: when the kernel copies an skb for generic XDP, as it does with each
 * super-frame, it does not copy mac_len (6.18), and then an skb begins behind its link
 * header here. This function puts the header back; false: the kernel could not, or another
 * XDP program has put metadata in front of the header. The kernel takes metadata to be in
 * front of the data, and warns if it is not (skb_data_move() in include/linux/skbuff.h, 6.19).
 */
static __always_inline bool put_link_header(struct __sk_buff *skb)
{
	void *meta = (void *)(long)skb->data_meta, *data = (void *)(long)skb->data;
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct eth_header eth;

	if (k->data == k->head + k->mac_header)
		return true;
	if (meta + 1 <= data)
		return false;
	return !bpf_skb_load_bytes_relative(skb, 0, &eth, sizeof(eth), BPF_HDR_START_MAC) &&
	       !bpf_skb_change_head(skb, sizeof(eth), 0) && !bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0);
}

SEC("tcx/ingress")
int unet_cut(struct __sk_buff *skb)
{
	struct {
		__u8 align[2], head, place;
		__u32 tail;
	} dst;

	if (!skb->gso_size || bpf_skb_load_bytes_relative(skb, 0, &dst.head, sizeof(dst) - sizeof(dst.align), BPF_HDR_START_MAC) || !is_mark(dst.head, dst.tail))
		return TCX_NEXT;
	if (!put_link_header(skb))
		return count(UNET_LOST_CUT, TCX_DROP);
	return bpf_redirect(config.cutter, 0);
}

#endif
