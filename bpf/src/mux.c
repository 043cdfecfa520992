// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

/*
 * One mux: an uplink, its tag table, and the programs that share them.
 *
 *            wire                       endpoint      endpoint
 *              |                           |             |
 *        +-----v------+  tags, devices  +--v---+      +--v---+   inner ends:
 *        |   uplink   | --------------> | port |      | port |   deliver.c
 *        | unet_uplink| <-------------- | unet_port   | unet_port
 *        +------------+                 +------+ <--> +------+   outer ends
 *              |
 *           kernel (no tag)
 */
#include "unet.h"

volatile const struct unet_config config = {};

/* Where frames leave: the uplink and the outer ends of the ports, by ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

/* Queue attachments, by queue of the uplink. User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

#include "uplink.h"
#include "port.h"
#include "trace.h"

/* The kernel demands the GPL of programs that call its functions. */
char _license[] SEC("license") = "GPL";
