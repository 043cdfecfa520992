/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * The uplink in tcx mode: unet_uplink_tcx, at traffic control ingress, decides about each frame
 * as unet_uplink does in native mode. The kernel's frames are neither copied nor made
 * linear for it, as they are for generic XDP. bpf_redirect_peer() moves a frame from the
 * uplink to the inner end of a port in the same softirq, past the processor's backlog; the
 * generic XDP program there runs as ever.
 *
 * A super-frame that is too long for its owner is received again on the cutter, which has
 * two programs (cut.h): unet_uplink marks it and unet_cut has it segmented. The cutter receives the parts, and unet_uplink sends them to the
 * port. They do not come back to the uplink, because traffic control skips what an ifb
 * injects.
 *
 * Endpoints on queues need XDP on the uplink itself: unet_queue in uplink.h. A frame of such
 * an endpoint that gets here was not for its socket.
 */
#ifndef UNET_TCX_H
#define UNET_TCX_H

#include "cut.h"
#include "uplink.h"

/* The most that the look-up reads: an ICMP error, with options in both IPv4 headers. */
#define HEADERS_MAX (sizeof(struct eth_header) + 60 + sizeof(struct icmp_header) + 60 + sizeof(struct quoted_ports))

/*
 * has_headers: the linear part of the skb has all that the look-up reads. The third case is
 * that of a sender or driver that puts only the headers there.
 */
static __always_inline bool has_headers(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end, *l4;
	struct eth_header *eth = data;
	struct ipv4_header *ip = (void *)(eth + 1);
	struct ipv6_header *ip6 = (void *)(eth + 1);
	__u8 protocol;

	if (data + HEADERS_MAX <= data_end || data_end - data == skb->len)
		return true;
	if ((void *)(ip + 1) > data_end)
		return false;
	if (eth->type == bpf_htons(ETHERTYPE_IPV4)) {
		protocol = ip->protocol;
		l4 = (void *)ip + header_len(ip);
	} else if (eth->type == bpf_htons(ETHERTYPE_IPV6)) {
		protocol = ip6->next_header;
		l4 = ip6 + 1;
	} else {
		return false;
	}
	if (!has_ports(protocol))
		return false;
	return l4 + (protocol == PROTOCOL_UDP ? sizeof(struct udp_header) : sizeof(struct tcp_header)) <= data_end;
}

/* is_live: the tag has an owner, whose port exists. Under the tag of a process that has died the kernel answers (rx_pass_port_gone). */
static __always_inline bool is_live(const struct unet_owner *owner)
{
	__u32 port;

	if (!owner)
		return false;
	port = owner->port;
	return !port || bpf_map_lookup_elem(&devices, &port);
}

/* forges_ports is forges for a packet from addr or addr6, of which only the one is used that is not NULL. */
static __always_inline enum unet_counter forges_ports(__u8 protocol, const __be32 *addr, const __be32 *addr6, const struct udp_header *l4)
{
	if (any_port(l4->src) && is_live(addr ? port_holder(protocol, *addr, l4->src) : port_holder6(protocol, addr6, l4->src)))
		return UNET_RX_FORGED_TAG;
	if (l4->dst == RDMA_PORT && protocol == PROTOCOL_UDP && any_port(RDMA_PORT) &&
	    is_live(addr ? port_holder(PROTOCOL_UDP, *addr, RDMA_PORT) : port_holder6(PROTOCOL_UDP, addr6, RDMA_PORT)))
		return UNET_RX_FORGED_RDMA;
	return UNET_RX_PASS;
}

/*
 * forges returns the counter of a packet that a program sends by the kernel of this host under the tag of an
 * endpoint, or as the RDMA device that an endpoint is (tags.h); UNET_RX_PASS: it is none. This needs no privilege: a UDP socket bound to
 * the port of another address takes the source from IP_PKTINFO or IPV6_PKTINFO, and after IPV6_FREEBIND any
 * source. ICMPv6 from an owned address passes: unetd announces it. An address whose port 4791 no endpoint holds can be
 * that of an RDMA device of the kernel.
 */
static __always_inline enum unet_counter forges(struct eth_header *eth, void *data_end)
{
	struct ipv4_header *ip = (void *)(eth + 1);
	struct ipv6_header *ip6 = (void *)(eth + 1);
	struct udp_header *l4;
	__u8 next;

	if (eth->type == bpf_htons(ETHERTYPE_IPV4)) {
		if ((void *)(ip + 1) > data_end || !is_ipv4(ip) || !has_ports(ip->protocol) || !is_first(ip))
			return UNET_RX_PASS;
		l4 = (void *)ip + header_len(ip);
		return (void *)(l4 + 1) <= data_end ? forges_ports(ip->protocol, &ip->src, NULL, l4) : UNET_RX_PASS;
	}
	l4 = (void *)(ip6 + 1);
	if (eth->type != bpf_htons(ETHERTYPE_IPV6) || (void *)(l4 + 1) > data_end || !is_ipv6(ip6))
		return UNET_RX_PASS;
	next = ip6->next_header;
	if (next != PROTOCOL_ICMPV6 && any_addr() && is_live(addr_holder6(ip6->src)))
		return UNET_RX_FORGED_TAG;
	if (next == PROTOCOL_ROUTING) { /* the only one that a program without privilege adds (IPV6_RTHDR), before a fragment header */
		struct ipv6_extension *r = (void *)l4;

		next = r->next_header;
		l4 = (void *)l4 + (r->length + 1) * 8;
		if ((void *)(l4 + 1) > data_end)
			return UNET_RX_PASS;
	}
	if (next == PROTOCOL_FRAGMENT) {
		struct ipv6_fragment *f = (void *)l4++;

		if ((void *)(l4 + 1) > data_end || f->offset & bpf_htons(IPV6_OFFSET))
			return UNET_RX_PASS;
		next = f->next_header;
	}
	return has_ports(next) ? forges_ports(next, NULL, ip6->src, l4) : UNET_RX_PASS;
}

static __always_inline int tcx_verdict(int xdp)
{
	return xdp == XDP_PASS ? TCX_NEXT : TCX_DROP;
}

/* tcx_to_queue: the same frame in unet_queue had another queue, or no socket was there. */
static __always_inline int tcx_to_queue(struct __sk_buff *skb, struct unet_owner *owner)
{
	__u32 queue = skb->queue_mapping; /* plus 1; 0: not recorded */

	if (owner->queue != (queue ? queue - 1 : 0))
		return count(UNET_RX_PASS_OTHER_QUEUE, TCX_NEXT);
	return count(UNET_RX_QUEUE_GONE, TCX_DROP);
}

static __always_inline int tcx_to_port(struct __sk_buff *skb, struct unet_owner *owner, enum unet_counter counter)
{
	__u32 port = owner->port;

	if (!bpf_map_lookup_elem(&devices, &port))
		return count(UNET_RX_PASS_PORT_GONE, TCX_NEXT);
	if (owner->room && skb->len > owner->room && skb->gso_size && config.cutter)
		return bpf_redirect(config.cutter, BPF_F_INGRESS); /* counted there */
	add(counter, 1);
	return config.generic ? bpf_redirect_peer(port, 0) : bpf_redirect(port, 0);
}

SEC("tcx/ingress")
int unet_uplink_tcx(struct __sk_buff *skb)
{
	void *data, *data_end;
	struct eth_header *eth;
	struct found f;

	/* Endpoint tags are for frames without a VLAN tag. The kernel has moved the tag to the skb. */
	if (skb->vlan_tci & VLAN_ID)
		return count(UNET_RX_PASS_VLAN, TCX_NEXT);
	if (!put_link_header(skb))
		return count(UNET_RX_PASS_TRUNCATED, TCX_NEXT);
	if (!has_headers(skb) && bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX))
		return count(UNET_RX_PASS_TRUNCATED, TCX_NEXT);
	eth = data = (void *)(long)skb->data;
	data_end = (void *)(long)skb->data_end;
	if ((void *)(eth + 1) > data_end)
		return count(UNET_RX_PASS_TRUNCATED, TCX_NEXT);
	if (is_vlan(eth->type)) { /* a second tag, behind one of VLAN 0 */
		struct vlan_tag *tag = (void *)&eth->type;

		if ((void *)(tag + 1) > data_end)
			return count(UNET_RX_PASS_TRUNCATED, TCX_NEXT);
		if (is_of_vlan(tag))
			return count(UNET_RX_PASS_VLAN, TCX_NEXT);
		return count(UNET_RX_TAGGED_TWICE, TCX_DROP);
	}

	if (is_link(eth->dst, config.link_head, config.link_tail))
		f = find_unicast(of_skb(skb), eth, data_end);
	else
		f = find_asked(of_skb(skb), eth->dst, eth, data_end);
	if (!f.owner)
		return tcx_verdict(of_nobody(f.problem));
	if (f.problem)
		return count(UNET_RX_BAD_LENGTH, TCX_DROP);
	if (is_martian(eth, eth->src, data_end))
		return count(UNET_RX_MARTIAN, TCX_DROP);
	if (!f.owner->port)
		return tcx_to_queue(skb, f.owner);
	return tcx_to_port(skb, f.owner, UNET_RX_PORT);
}

#endif
