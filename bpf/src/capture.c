// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

/*
 * Programs of `unetd capture`: they copy the frames of endpoints into a perf buffer. They are an object
 * of their own, loaded and attached only while a capture runs. They are at tracepoints of the kernel, through
 * which the frames of a mux in tcx mode go anyway:
 *
 *   netif_receive_skb   before the program of a device runs: what an endpoint sends, at the outer end of its
 *                       port; and what the uplink receives
 *   consume_skb         after a frame has been put into a socket, at the inner end of a port or on a queue
 *   kfree_skb           after a program or the kernel has dropped a frame
 *
 * In native mode there is no skb.
 *
 * Which counter has counted a dropped frame? A CPU handles one frame at a time, and frees it before the next one.
 * So it is the counter that has changed since the frame before: seen has the values of then. A
 * counter is compared only if no change of it is missed.
 */
#include "count.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define NO_COUNTER 0xffff
#define LO 1
#define LINK_MAX 32

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_prog_aux {
	__u32 id;
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	struct bpf_prog *xdp_prog; /* generic XDP */
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
	unsigned int len;
	__u32 vlan_all;
	__be16 vlan_proto;
	__u16 vlan_tci;
	__u16 queue_mapping;
	__u16 mac_header; /* offset from head */
	unsigned char *head;
	unsigned char *data;
};

#pragma clang attribute pop

/* Where a frame was captured. */
enum unet_place {
	UNET_PLACE_UPLINK = 1,
	UNET_PLACE_LO = 2,
	UNET_PLACE_PORT = 3,   /* outer end: sent by its endpoint */
	UNET_PLACE_SOCKET = 4, /* inner end: received by its endpoint */
	UNET_PLACE_QUEUE = 5,  /* received by an endpoint on a queue of the uplink */
};

/* A record of the perf buffer; caplen bytes of the frame follow. */
struct unet_record {
	__u64 time;        /* CLOCK_MONOTONIC, in ns */
	__u32 len;         /* of the frame after link, in bytes */
	__u32 caplen;
	__u32 device;      /* ifindex */
	__u32 queue;       /* of the device */
	__u16 counter;     /* enum unet_counter of a dropped frame; NO_COUNTER: it was not dropped */
	__be16 vlan_type;  /* of a VLAN tag that is not in the frame; 0: there is none */
	__u16 vlan_tag;
	__u8 place;        /* enum unet_place */
	__u8 link_len;
	__u8 link[LINK_MAX]; /* link_len bytes of the frame that come before the others */
};

struct unet_capture {
	__u64 netns;      /* cookie of the uplink's network namespace */
	__u32 uplink;     /* ifindex */
	__u32 cutter;     /* ifindex; 0: there is none */
	__u32 port;       /* capture what this outer end sends; 0: all ports */
	__u32 inner;      /* and what this inner end receives; 0: all ports */
	__u32 wire;       /* 1: capture all that the uplink receives */
	__u32 queues;     /* 1: capture what endpoints on queues receive */
	__u32 queue;      /* with one_queue: only those on this queue */
	__u32 one_queue;
	__u32 snaplen;    /* bytes */
	__u32 unet_port[2]; /* ids of unet_port and unet_port_limited */
	__u32 deliver[2]; /* ids of unet_deliver and of its variant for untrusted owners */
	__u64 drops[2];   /* the counters of dropped frames, a bit each */
};

volatile const struct unet_capture capture = {};

struct unet_record *unused_record __attribute__((unused));
enum unet_place *unused_place __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
} records SEC(".maps");

/* The values of counters when they were compared last. User space writes the first ones. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UNET_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

_Static_assert(UNET_COUNTERS <= 128, "a mask of counters has 128 bits");

static __always_inline bool has_changed(__u32 counter)
{
	__u64 *now = bpf_map_lookup_elem(&counters, &counter), *before = bpf_map_lookup_elem(&seen, &counter);

	if (!now || !before || *now == *before)
		return false;
	*before = *now;
	return true;
}

struct search {
	__u32 found;
	__u32 n;
};

static long compare(__u32 counter, struct search *s)
{
	if (capture.drops[counter / 64 & 1] >> counter % 64 & 1 && has_changed(counter)) {
		s->found = counter;
		s->n++;
	}
	return 0;
}

/* changed is the one counter of drops that has changed; NO_COUNTER: none or several. */
static __always_inline __u32 changed(void)
{
	struct search s = {};

	bpf_loop(UNET_COUNTERS, compare, &s, 0);
	return s.n == 1 ? s.found : NO_COUNTER;
}

static __always_inline bool is_ours(const struct net_device *dev)
{
	return dev->nd_net.net->net_cookie == capture.netns;
}

/* program is the id of the device's generic XDP program; 0: there is none. */
static __always_inline __u32 program(const struct net_device *dev)
{
	return dev->xdp_prog->aux->id;
}

static __always_inline bool is_port(const struct net_device *dev)
{
	__u32 ifindex = dev->ifindex;

	if (capture.port && capture.port != ifindex)
		return false;
	return (program(dev) == capture.unet_port[0] || program(dev) == capture.unet_port[1]) && is_ours(dev);
}

/* is_inner: inner ends are in namespaces of their own, but no other device has such a program. */
static __always_inline bool is_inner(const struct net_device *dev)
{
	__u32 id = program(dev);

	return id && (id == capture.deliver[0] || id == capture.deliver[1]);
}

static __always_inline bool is_wanted_inner(const struct net_device *dev)
{
	return !capture.inner || capture.inner == dev->ifindex;
}

static __always_inline void output(struct sk_buff *skb, enum unet_place place, __u32 counter)
{
	struct unet_record r = { .place = place, .counter = counter };
	unsigned char *link = skb->head + skb->mac_header;
	long link_len = skb->data - link; /* 0: data begins there */
	__u16 queue = skb->queue_mapping; /* plus 1; 0: not recorded */

	r.time = bpf_ktime_get_ns();
	r.device = skb->dev->ifindex;
	r.queue = queue ? queue - 1 : 0;
	if (link_len > 0 && link_len <= LINK_MAX) {
		r.link_len = link_len;
		bpf_probe_read_kernel(r.link, link_len & (2 * LINK_MAX - 1), link);
	}
	r.len = skb->len;
	r.caplen = r.len < capture.snaplen ? r.len : capture.snaplen;
	if (skb->vlan_all) {
		r.vlan_type = skb->vlan_proto;
		r.vlan_tag = skb->vlan_tci;
	}
	bpf_skb_output(skb, &records, BPF_F_CURRENT_CPU | (__u64)r.caplen << 32, &r, sizeof(r));
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(unet_capture_receive, struct sk_buff *skb)
{
	const struct net_device *dev = skb->dev;

	if (is_port(dev))
		output(skb, UNET_PLACE_PORT, NO_COUNTER);
	else if (capture.wire && dev->ifindex == capture.uplink && is_ours(dev))
		output(skb, UNET_PLACE_UPLINK, NO_COUNTER);
	return 0;
}

static __always_inline bool is_wanted_queue(struct sk_buff *skb)
{
	__u16 queue = skb->queue_mapping;

	return !capture.one_queue || capture.queue == (queue ? queue - 1 : 0);
}

/*
 * The kernel consumes a frame also when it copies it for a generic XDP program. A frame has been put into a socket
 * if a program has counted it just before. For some skbs dev is something else; then they are not of our devices.
 */
SEC("tp_btf/consume_skb")
int BPF_PROG(unet_capture_deliver, struct sk_buff *skb)
{
	const struct net_device *dev = skb->dev;

	if (is_inner(dev)) {
		if (has_changed(UNET_DELIVER_SOCKET) && is_wanted_inner(dev))
			output(skb, UNET_PLACE_SOCKET, NO_COUNTER);
	} else if (capture.queues && dev->ifindex == capture.uplink && is_ours(dev)) {
		if (has_changed(UNET_RX_QUEUE) && is_wanted_queue(skb))
			output(skb, UNET_PLACE_QUEUE, NO_COUNTER);
	}
	return 0;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(unet_capture_drop, struct sk_buff *skb)
{
	const struct net_device *dev = skb->dev;
	__u32 counter = changed(); /* of any endpoint */

	if (counter == NO_COUNTER)
		return 0;
	if (is_port(dev)) {
		output(skb, UNET_PLACE_PORT, counter);
	} else if (is_inner(dev)) {
		if (is_wanted_inner(dev))
			output(skb, UNET_PLACE_SOCKET, counter);
		has_changed(UNET_DELIVER_SOCKET); /* it was counted before the kernel dropped it */
	} else if (is_ours(dev)) {
		__u32 ifindex = dev->ifindex;

		if (ifindex == capture.uplink || (capture.cutter && ifindex == capture.cutter))
			output(skb, UNET_PLACE_UPLINK, counter);
		else if (ifindex == LO)
			output(skb, UNET_PLACE_LO, counter);
		if (capture.queues)
			has_changed(UNET_RX_QUEUE);
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
