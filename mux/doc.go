// Package mux is the privileged part of unet: it attaches the programs of
// package bpf to an interface, the uplink, and makes endpoints behind them.
//
//	                   uplink's namespace          a namespace per port
//	wire --- uplink ==[unet_uplink]==> outer end ------ inner end ==[unet_deliver]==> XSK
//	               <==[unet_port]=====                  (only the XSK holds it)
//
// [Open] attaches, or takes over what another process has pinned for the interface.
// [Mux.OpenEndpointFor] makes a communication segment, a socket bound to a port (or to a
// queue of the uplink) and enters the endpoint's tags. It returns an endpoint.Grant and a
// [Lease], by which tags are claimed and everything is given back. A [Policy] says who may
// have what; the mux counts the endpoints, memory and tags of each user.
//
// Read endpoints.go, port.go and leases.go for the life of an endpoint, claims.go for
// that of a tag, and mux.go, programs.go, pins.go and adopt.go for that of the mux.
//
// A port is a veth pair. Its inner end is in a namespace that only the socket bound there
// holds, so the kernel removes the port when the last descriptor and mapping of the socket
// are closed. The programs of a port are attached by netlink and stay as long as the device
// does: what an endpoint sends is checked also when no process serves the mux. The mux
// keeps neither the socket nor a mapping of the segment.
//
// With [Config].Pin set, maps, links and programs are pinned in a bpffs, and the tables say
// all that the next process needs (ADR 14). It takes over what is whole, of the same
// compiled programs, MAC address and attach mode, and takes the rest down. Owners come
// back with their sockets ([Mux.Present]); what nobody presents within [Config].Grace is
// taken back. Without pins the programs end with the process: endpoints receive nothing
// then, and can still send under their tags.
//
// A UDP or TCP port is also bound in the kernel, by a socket that is never read, so no
// other program gets it (ADR 5). Ports that network address translation uses are refused
// (ADR 27). A whole address must be nobody else's: the kernel's tables and the network are
// asked first, which takes half a second (ADR 12). Tags follow the addresses of the host
// (ADR 28).
//
// A frame can be redirected only to a socket on the queue that it came in on. On an uplink
// with several receive queues an endpoint on one of them gets the frames that the hardware
// puts there (ethtool -N, -X); the others are the kernel's (rx_pass_other_queue). Ports do
// not have this limit.
//
// What this host sends to the uplink's own addresses goes over lo, past the mux. 802.1Q
// tags that stand beside a frame are invisible to XDP; ADR 7 says what is done.
package mux
