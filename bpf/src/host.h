/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * Frames between an endpoint and the kernel of its own host. The wire returns no frame, so
 * these never see the uplink's program.
 *
 *   kernel --> lo --> unet_lo --> port                  an address that the host has
 *   kernel --> uplink: unet_egress --> lo: unet_lo --> port   an owned address: ARP first
 *   port: unet_port --> up --> unet_up --> lo --> kernel      from a port of the host's address
 *                                      --> uplink --> kernel  from an owned address
 *
 * The kernel sends packets to its own addresses by lo. unet_lo, at the entry of lo to traffic
 * control, looks up the owner of each and moves it to the owner's port, as unet_uplink_tcx
 * does. An Ethernet header on lo has zeros for both addresses; the owner gets the uplink's.
 *
 * up is one end of a veth pair of the mux, to which the port program redirects what no tag
 * claims; the other end has unet_up. The kernel must believe the source of a packet that it
 * receives: one of its own addresses belongs on lo, so as a local program's packet does it comes
 * in there (which needs the setting accept_local of lo). An owned address is for the kernel that of
 * another host of the uplink's network, and is believed there. Both hold for rp_filter too.
 *
 * 127.0.0.0/8 and ::1 are never an endpoint's: nobody can claim them, and unet_port sends
 * nothing there, nor to addresses of other interfaces.
 */
#ifndef UNET_HOST_H
#define UNET_HOST_H

#include "own.h"
#include "tcx.h"

#define LO 1 /* the ifindex of lo, in every namespace */

/*
 * entry is the device by which the kernel receives a frame of an endpoint: see above. The address of
 * an endpoint that has ended has no tag any more.
 */
static __always_inline __u32 entry(struct eth_header *eth, void *data_end)
{
	struct ipv4_header *ip = (void *)(eth + 1);
	struct ipv6_header *ip6 = (void *)(eth + 1);

	if (eth->type == bpf_htons(ETHERTYPE_IPV4))
		return (void *)(ip + 1) <= data_end && own_kind4(ip->src) == OWN_ADDRESS ? LO : config.uplink;
	if (eth->type == bpf_htons(ETHERTYPE_IPV6))
		return (void *)(ip6 + 1) <= data_end && own_kind(ip6->src) == OWN_ADDRESS ? LO : config.uplink;
	return config.uplink; /* ARP */
}

/*
 * is_for_kernel: a frame to the uplink's MAC address is for the uplink's own address. Endpoints reach
 * no other address of the host, and the kernel forwards nothing for them.
 */
static __always_inline bool is_for_kernel(struct eth_header *eth, void *data_end)
{
	struct ipv4_header *ip = (void *)(eth + 1);
	struct ipv6_header *ip6 = (void *)(eth + 1);

	if (eth->type == bpf_htons(ETHERTYPE_ARP))
		return true;
	if (eth->type == bpf_htons(ETHERTYPE_IPV4))
		return (void *)(ip + 1) <= data_end && own_kind4(ip->dst) == OWN_ADDRESS;
	if (eth->type == bpf_htons(ETHERTYPE_IPV6))
		return (void *)(ip6 + 1) <= data_end && own_kind(ip6->dst) == OWN_ADDRESS;
	return false;
}

/* uplink_link is the uplink's MAC address in the lower 48 bits. */
static __always_inline __u64 uplink_link(void)
{
	return *(volatile const __u64 *)&config.link_head << 16 >> 16;
}

/* unet_up is at the other end of up. */
SEC("tcx/ingress")
int unet_up(struct __sk_buff *skb)
{
	struct eth_header *eth = (void *)(long)skb->data;
	void *data_end = (void *)(long)skb->data_end;
	const __u8 none[6] = {};
	__u32 device;

	if ((void *)(eth + 1) > data_end)
		return count(UNET_LOST_HOST, TCX_DROP);
	if (is_from(eth, UNET_KERNEL_LINK))
		return count(UNET_DELIVER_KERNEL, TCX_DROP);
	device = entry(eth, data_end);
	/* The MAC address of lo. With another one the kernel drops the frame there. */
	if (device == LO && bpf_skb_store_bytes(skb, 0, none, sizeof(none), 0))
		return count(UNET_LOST_HOST, TCX_DROP);
	return bpf_redirect(device, BPF_F_INGRESS);
}

/* is_for_link: to the uplink's MAC address, or to that of lo. */
static __always_inline bool is_for_link(struct eth_header *eth)
{
	return is_link(eth->dst, config.link_head, config.link_tail) || is_link(eth->dst, 0, 0);
}

SEC("tcx/ingress")
int unet_lo(struct __sk_buff *skb)
{
	struct eth_header *eth;
	enum unet_counter forged;
	struct unet_owner owner;
	bool unicast;
	void *data_end;
	struct found f;
	struct {
		__u32 dst_head;
		__u16 dst_tail, src_head;
		__u32 src_tail;
	} links;

	if (skb->vlan_tci & VLAN_ID)
		return TCX_NEXT;
	if (!has_headers(skb) && bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX))
		return TCX_NEXT;
	eth = (void *)(long)skb->data;
	data_end = (void *)(long)skb->data_end;
	if ((void *)(eth + 1) > data_end)
		return TCX_NEXT;
	unicast = is_for_link(eth);
	if (unicast)
		f = find_unicast(of_skb(skb), eth, data_end);
	else
		f = find_asked(of_skb(skb), eth->dst, eth, data_end);
	if (!f.owner) /* count nothing of the kernel's own */
		return f.problem == FIND_FRAGMENT || f.problem == FIND_EXTENSION ? tcx_verdict(of_nobody(f.problem)) : TCX_NEXT;
	if (!f.owner->port) /* a socket on a queue gets frames of the uplink only: the kernel refuses it */
		return TCX_NEXT;
	if (f.problem)
		return count(UNET_RX_BAD_LENGTH, TCX_DROP);
	forged = forges(eth, data_end);
	if (forged != UNET_RX_PASS)
		return count(forged, TCX_DROP);
	owner = *f.owner;
	if (unicast) {
		__u64 link = uplink_link();

		links.dst_head = config.link_head;
		links.dst_tail = config.link_tail;
		links.src_head = link & 0xffff;
		links.src_tail = link >> 16;
		if (bpf_skb_store_bytes(skb, 0, &links, sizeof(links), 0))
			return count(UNET_LOST_HOST, TCX_DROP);
	}
	return tcx_to_port(skb, &owner, UNET_RX_HOST);
}

#endif
