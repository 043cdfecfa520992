// Package mux is the privileged part of unet: it attaches the programs of
// package bpf to an interface, the uplink, and makes endpoints behind them.
//
//	                   uplink's namespace          a namespace per port
//	wire --- uplink ==[unet_uplink]==> outer end ------ inner end ==[unet_deliver]==> XSK
//	               <==[unet_port]=====                  (nobody holds it but the XSK)
//
// [Open] checks the interface and attaches. [Mux.OpenEndpoint] makes a
// communication segment, a socket bound to a port (or to a queue of the
// uplink) and enters the endpoint's tags; it returns them as an
// endpoint.Grant, which is the caller's to carry or use, and as a [Lease], by
// which tags are claimed and everything is given back.
//
// # Who keeps what alive
//
// A port is a veth pair. Its inner end lives in a namespace that has no name
// and no descriptor: only the socket bound inside holds it. When the last
// descriptor and mapping of the socket are gone, because the application closed
// them or died, the kernel removes namespace, both ends, their programs and the
// port's entry in the device map. Closing the lease does the same from this
// side. The mux keeps no descriptor of socket or segment.
//
// The uplink's program is held by a bpf_link of this process and goes with it.
//
// # Tags
//
// The tag table is written by this package alone, so it decides who may send
// and receive what. A UDP tag is also bound in the kernel, by an ordinary
// socket that is never read: the kernel then refuses the port to other
// programs and the mux refuses ports that are the kernel's.
//
// Whoever holds a whole address answers ARP for it, so it must be nobody else's:
// the mux refuses addresses of the host, next hops of its routes, and
// neighbours that the kernel knows, and then asks the network by ARP probes
// (RFC 5227) before it enters the tag. That takes half a second.
//
// # A queue of several
//
// A frame can be redirected only to a socket that is bound to the queue it came
// in on. On an uplink with several receive queues an endpoint on one of them
// gets, of the frames that are for it, those which the hardware puts there; the
// others are left to the kernel (rx_pass_other_queue), where the socket that
// holds the port refuses them. Which queue a frame comes in on is for the
// operator to decide, before the endpoint is opened, for example
//
//	ethtool -N eth0 flow-type udp4 dst-ip 10.0.0.1 dst-port 7000 action 2
//
// for an endpoint on queue 2, together with
//
//	ethtool -X eth0 equal 2
//
// which spreads all else over queues 0 and 1. Messages and ARP have no flow type
// in most hardware and come in on queue 0. Ports do not have this problem.
//
// # When the uplink changes
//
// Endpoints were told the uplink's link address and MTU, and the programs check
// by them. The mux watches the uplink: [Mux.Failed] says when it was deleted or
// has another link address. A change of the MTU is logged only.
//
// # What it cannot see
//
// An 802.1Q tag that stands beside the frame (in the skb) instead of in it is
// invisible to XDP: such a frame would match a tag of untagged traffic. A
// driver puts it there when receive VLAN offload is on, so Open turns that off
// and Close restores it. On a veth it is the sender who puts it there, when
// transmit VLAN offload is on at the other end (ethtool -K IF txvlan off
// there); nothing at this end changes it, and Open says so in the log.
//
// Programs of this host that send to the uplink's own addresses go over lo,
// past the mux, and do not reach endpoints.
package mux
