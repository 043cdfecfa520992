// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

/*
 * deliver stands on the inner end of a port, in the port's own network
 * namespace. What reaches it has passed the mux and is the endpoint's.
 */
#include "unet.h"
#include "count.h"
#include "meta.h"

/* The endpoint's socket, and no other: the map is private to the port. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} socket SEC(".maps");

volatile const bool deliver_generic = false;

SEC("xdp.frags")
int unet_deliver(struct xdp_md *ctx)
{
	if (!prepend_meta(ctx, deliver_generic))
		return count(UNET_DELIVER_NO_METADATA, XDP_DROP);
	if (bpf_redirect_map(&socket, ctx->rx_queue_index, XDP_DROP) != XDP_REDIRECT)
		return count(UNET_DELIVER_NO_SOCKET, XDP_DROP);
	return count(UNET_DELIVER_SOCKET, XDP_REDIRECT);
}

/* The kernel demands the GPL of programs that call its functions. */
char _license[] SEC("license") = "GPL";
