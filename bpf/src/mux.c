// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

/*
 * One mux: an uplink, its tag tables, and the programs that share them.
 *
 *            wire                          endpoint        endpoint
 *              |                              |               |
 *   noted by   |                              |   sockets:    |
 *   unet_note_vlan                            |  port_sockets |
 *              |                         +----v----+     +----v----+
 *              |                         | unet_   |     | unet_   |  inner ends
 *              |                         | deliver |     | deliver |  (alarms)
 *        +-----v-------+  tags, tags6,   +---------+     +---------+
 *        |   uplink    |  devices        |  port   |     |  port   |  outer ends
 *        | unet_uplink | --------------> |  unet_  | <-> |  unet_  |
 *        |             | <-------------- |  port   |     |  port   |
 *        +-------------+                 +---------+     +---------+
 *          |         |
 *       kernel     queue attachments: sockets
 *      (no tag; unet_cut takes super-frames out, to be cut)
 *
 * This is native mode. In tcx mode the uplink has unet_uplink_tcx (tcx.h).
 * host.h has the paths between ports and the kernel, group.h those of multicast and broadcast.
 */
#include "unet.h"

volatile const struct unet_config config = {};

/*
 * Maps of devices, of sockets and of maps have sizes of keys and values, not types: the kernel refuses the
 * types for them after it has made the map, and the loader then makes it again, which takes up to 10 ms.
 */

/* Where frames leave: the uplink, up (host.h) and the outer ends of the ports, by ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, UNET_MAX_PORTS + 2);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} devices SEC(".maps");

/* Queue attachments, by queue of the uplink. User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

/*
 * The sockets of the ports, by slot. The inner end of a port has the ifindex
 * slot + UNET_FIRST_IFINDEX in its namespace, so unet_deliver finds its socket by
 * ingress_ifindex. The kernel delivers to a socket only frames that came in on the
 * device that the socket is bound to, so a wrong slot would deliver nothing.
 */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, UNET_MAX_PORTS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} port_sockets SEC(".maps");

/* All endpoints. No program reads it; see struct unet_endpoint. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNET_MAX_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct unet_owner);
	__type(value, struct unet_endpoint);
} endpoints SEC(".maps");

/* The state of the mux. No program reads it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct unet_state);
} state SEC(".maps");

/*
 * Alarms for user space. An alarm has a slot, so a process that takes over from one
 * that died empties this before it gives slots to new endpoints.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
	__type(value, struct unet_alarm);
} alarms SEC(".maps");

#include "uplink.h"
#include "tcx.h"
#include "group.h"
#include "port.h"
#include "deliver.h"
#include "trace.h"

/* Programs that call functions of the kernel must be under the GPL. */
char _license[] SEC("license") = "GPL";
