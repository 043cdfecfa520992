// Package mux is the privileged part of unet: it attaches the programs of
// package bpf to an interface, the uplink, and makes endpoints behind them.
//
//	                   uplink's namespace          a namespace per port
//	wire --- uplink ==[unet_uplink]==> outer end ------ inner end ==[unet_deliver]==> XSK
//	               <==[unet_port]=====                  (nobody holds it but the XSK)
//
// [Open] checks the interface and attaches, or takes over what another process
// has left. [Mux.OpenEndpointFor] makes a communication segment, a socket bound to a
// port (or to a queue of the uplink) and enters the endpoint's tags; it returns
// them as an endpoint.Grant, which is the caller's to carry or use, and as a
// [Lease], by which tags are claimed and everything is given back.
//
// To follow the life of an endpoint read port.go and veth.go, then lease.go,
// then linger.go; to follow that of the mux open.go, programs.go, pins.go and adopt.go.
//
// # Who keeps what alive
//
// A port is a veth pair. Its inner end lives in a namespace that has no name
// and no descriptor: only the socket bound inside holds it. When the last
// descriptor and mapping of the socket are gone, because the application closed
// them or died, the kernel removes namespace, both ends, their programs and the
// port's entry in the device map. Closing the lease does the same from this
// side. A tag whose port is gone claims nothing: its frames are the kernel's until
// the lease is closed.
//
// The programs of a port are attached by netlink and not by a bpf_link: they stay as
// long as the device does, whatever becomes of this process, so what an endpoint
// sends never goes unchecked. The uplink's program is held by a bpf_link. The mux
// keeps neither the socket nor a mapping of the segment.
//
// # A mux that outlives its process
//
// With [Config].Pin set, maps, links and the programs for new ports are pinned in a
// bpffs, under unet/, the cookie of the network namespace and the uplink's
// number. There is no file beside them: the tables of tags, of endpoints and of the
// mux's own state are maps, so what they say is there exactly as long as what they
// are about. The process that serves the mux holds a lock (flock) on the directory; a
// second one gets [ErrInUse].
//
// When the process dies, or calls [Mux.Abandon], nothing happens to a frame. The
// next Open finds the pins and goes on from them, if they are whole and of the same
// compiled programs, link address and attach mode; otherwise it takes them down, and
// their endpoints with them. Ports whose processes have died meanwhile, and what
// was half done at the time of death, it puts right at once. The other endpoints it
// lists, and waits for their owners, who come with their sockets ([Mux.Present]):
// a socket is recognised by its cookie, and has to be the same user's. What nobody
// presents within [Config].Grace is taken back.
//
// The kernel's own sockets on claimed ports are the process's and die with it; the next one
// binds them again. If another program was faster, it is logged, and the endpoint
// goes on receiving.
//
// [Mux.Close] takes everything down and unpins. [Cleanup] does so for what nobody
// serves any more. Open and Cleanup remove the pins of interfaces that are gone.
//
// If nothing is pinned, the uplink's program goes with the process. What the process
// has given to others goes deaf then, and can still send under its tags.
//
// # After the lease
//
// A process may keep the socket and the segment for as long as it likes; no frame comes
// to them or leaves them, and they hold memory. The endpoint counts for its user until they
// are gone, which the mux learns by asking: a BPF map of sockets refuses an entry while the
// old one lives, and the kernel refuses a write lease on a file that somebody else
// has open or mapped (linger.go). A process that takes over can ask for sockets only.
//
// # Tags
//
// The tag table is written by this package alone, so it decides who may send
// and receive what. A UDP or TCP tag is also bound in the kernel, by an ordinary
// socket that is never read: the kernel then refuses the port to other
// programs and the mux refuses ports that are the kernel's.
//
// Network address translation takes ports without asking anybody (nat.go): those that it
// uses are refused, and the policy is asked about those that it may use.
//
// Whoever holds a whole address answers ARP or neighbour discovery for it, so it
// must be nobody else's: the mux refuses addresses of the host, next hops of its
// routes, and neighbours that the kernel knows, and then asks the network before it
// enters the tag. That takes half a second.
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
// # When the network changes
//
// A lease tells those who watch it ([Lease.Watch]) when a destination that it has
// resolved may be reached otherwise: its next hop has another link address or does
// not answer, routes or addresses of the host have changed, a whole address of this
// host has come or gone. It tells when the uplink goes down and up.
//
// Tags follow the addresses of the host (addresses.go). Ports on an address that the
// uplink loses are suspended until it has the address again: they are held, and nothing
// is sent or received under them. An endpoint with a whole address that the host takes
// ends, with [ErrAddrTaken] as the cause.
//
// If somebody deletes the port of an endpoint, its lease ends, with [ErrPortDeleted] as
// the cause.
//
// Endpoints were told the uplink's link address, and the programs check by it. When
// the uplink is deleted or has another one, all leases end, with [ErrUplinkChanged] as
// the cause, and [Mux.Failed] says so. The MTU may change: leases are told that
// routes have, and what Resolve answers, and new endpoints are granted, is the
// present one. The programs let out what fitted when they were loaded, so a larger MTU
// has an effect only when the mux is opened anew, after Close. A smaller one has at
// once: the device drops what is longer.
//
// # Who harms others
//
// The kernel believes what the owner of a socket says is on its fill ring, and goes
// through it in the name of whoever sends to that socket. unet_deliver looks before and
// drops a frame for a ring that does not hold what it claims; the mux hears of it
// and revokes the endpoint: its lease ends with [ErrRevoked], and its user gets none for a
// minute. What an owner is trusted with beyond that is in its [Terms].
//
// Who is not trusted receives nothing that needs several buffers. What a peer sends in
// super-frames is cut for such an owner by the kernel, on the way through the cutter, an
// ifb device that a mux in generic mode has beside its uplink (cutter.go, and cut.h of
// package bpf). How much a peer can have cut at a time is bounded for each owner.
//
// # What it cannot see
//
// An 802.1Q tag that stands beside the frame (in the skb) instead of in it is
// invisible to XDP: such a frame would match a tag of untagged traffic. A
// driver puts it there when receive VLAN offload is on, so Open turns that off
// and Close restores it. On a link made in software it is the sender who puts it there;
// in generic mode a program on a tracepoint sees it for the mux, and the frame is the
// kernel's. In native mode nothing does: there the other end has to turn transmit VLAN offload
// off (ethtool -K IF txvlan off), and Open says so in the log. VLAN 0 is no VLAN but a
// priority: such frames are of the untagged network, and endpoints get them without the tag.
//
// Programs of this host that send to the uplink's own addresses go over lo,
// past the mux, and do not reach endpoints.
package mux
