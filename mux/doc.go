//go:build linux

// Package mux is the privileged part of unet: it attaches the programs of
// package bpf to an interface, the uplink, and makes endpoints behind them.
//
//	                   uplink's namespace          a namespace per port
//	wire --- uplink ==[unet_uplink]==> outer end ------ inner end ==[unet_deliver]==> XSK
//	               <==[unet_port]=====                  (only the XSK holds it)
//
// [Open] attaches the programs, or takes over what another process has pinned for the
// interface. [Mux.OpenEndpointFor] makes a communication segment and a socket bound to a port
// (or to a queue of the uplink), and adds the endpoint's tags. It returns an endpoint.Grant
// and a [Lease]. The lease claims further tags and gives everything back. A [Policy] decides
// what each user may have; the mux counts the endpoints, memory and tags of each user.
//
// That is native mode. In tcx mode, the default where a driver does not do XDP well,
// the uplink's program is at traffic control: unet_uplink_tcx ([ModeTCX], queue.go).
//
// Read endpoints.go, port.go and leases.go for the life of an endpoint, claims.go for
// that of a tag, paths.go for memory paths, and mux.go and adopt.go for the life of the mux. What needs no lease has packages of its own below
// internal: attach (programs and their pins), tables (maps), steer (classification rules) and nic (devices).
//
// A port is a veth pair. Its inner end is in a namespace that only the socket bound there
// holds, so the kernel removes the port when the last descriptor and mapping of the socket
// are closed. The programs of a port are attached by netlink and stay as long as the device
// exists: what an endpoint sends is checked also when no process serves the mux. The mux
// keeps no descriptor of the socket and no mapping of the segment, but until the lease ends a
// mapping of the socket's fill ring (guard.go).
//
// With [Config].Pin set, maps, links and programs are pinned in a bpffs, and the tables
// contain all that the next process needs (ADR 14). That process takes over the pins if they
// are complete and were made with the same compiled programs, MAC address and attach mode.
// Otherwise it removes them. An application presents its socket to get its lease again
// ([Mux.Present]); endpoints not presented within [Config].Grace are reclaimed. The tag table that applications
// map (tagtable.go) is a file in [Config].Dir, which outlives the process, too. Without pins
// the uplink's program ends with the process: endpoints then receive nothing from the wire,
// and can still send under their tags.
//
// The rates that the policy gives an owner are token buckets in the kernel (ADR 41, rates.go): what an
// endpoint on a port sends beyond them is dropped. They change with the policy. What the mux sends for an
// endpoint itself comes out of the same buckets (ADR 45, sent.go).
//
// A UDP or TCP port is also reserved in the kernel, by a bound socket that is never read
// (ADR 5). Ports that network address translation uses are refused (ADR 27). An owned address
// is claimed only if neither the kernel's tables nor probes on the network, which take half a
// second, show another host that has it (ADR 12). The mux then announces it (ADR 51, announce.go). A port is in effect as long as the uplink
// has its address (ADR 28).
//
// A frame can be redirected only to a socket on the queue that it came in on. On an uplink
// with several receive queues the mux inserts classification rules into the driver for the tags
// of an endpoint on a queue, and refuses tags whose frames cannot be led there (steering.go, package steer). On a
// virtual link the sender chooses the queue: frames of such tags on other queues go to the kernel
// (rx_pass_other_queue). Ports get frames from every queue.
//
// What this host sends to the uplink's own addresses goes over lo, where unet_lo moves to a port what is for its
// endpoint (ADR 37). XDP does not see an 802.1Q tag that the driver has moved from the frame to the skb (ADR 7); traffic
// control does.
package mux
