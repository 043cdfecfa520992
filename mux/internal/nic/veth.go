//go:build linux

package nic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

// Requests to rtnetlink that package netlink does not have, each on a given socket. For the
// same requests package netlink would open several sockets for each port, and it cannot create
// the inner end with a given ifindex and flags.

// PortMTU is the largest MTU of a veth. A super-frame of the kernel is up to 64 KiB long, and a
// device with a smaller MTU drops it without an error. The port program checks the length of
// frames that leave by the uplink.
const PortMTU = 65535

// innerName is the name of each inner end, in its own namespace.
const innerName = "port"

// OpenRoute opens an rtnetlink socket in a namespace. The namespace exists as long as the socket.
func OpenRoute(ns netns.NsHandle) (*nl.SocketHandle, error) {
	sock, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &nl.SocketHandle{Socket: sock}, nil
}

func routeRequest(sock *nl.SocketHandle, kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: sock}
	return req
}

// AddVeth makes a port's pair. The inner end is in the namespace of the socket, has the ifindex
// innerIndex, and is up. The outer end is in outerNS, is down, and has the MAC address outerLink. ARP is
// off on both. It returns the ifindex of the outer end.
//
// A request can give an ifindex only to the device that it creates first: the inner end.
func AddVeth(inner *nl.SocketHandle, innerIndex int, outerName string, outerLink wire.LinkAddr, outerNS netns.NsHandle) (outerIndex int, err error) {
	req := routeRequest(inner, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK|unix.NLM_F_ECHO)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(innerIndex)
	head.Flags = unix.IFF_UP | unix.IFF_NOARP
	head.Change = head.Flags
	req.AddData(head)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(innerName)))
	one := nl.Uint32Attr(1) // a redirect into a device of several queues chooses one by CPU number
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(PortMTU)))
	req.AddData(nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, one))
	req.AddData(nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, one))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	peerHead := nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peerHead.Flags = unix.IFF_NOARP
	peerHead.Change = peerHead.Flags
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(outerName))
	peer.AddRtAttr(unix.IFLA_ADDRESS, outerLink[:])
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(PortMTU))
	peer.AddRtAttr(unix.IFLA_NUM_TX_QUEUES, one)
	peer.AddRtAttr(unix.IFLA_NUM_RX_QUEUES, one)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(outerNS)))
	req.AddData(info)
	// NLM_F_ECHO: the answer is the event of the new device (Linux 6.1).
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		if len(m) < unix.SizeofIfInfomsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_LINK && len(a.Value) == 4 { // the other end
				return int(nl.NativeEndian().Uint32(a.Value)), nil
			}
		}
	}
	return 0, fmt.Errorf("BUG: no IFLA_LINK in the kernel's answer about %s", innerName)
}

// SetXDP attaches a program, by its descriptor, to a device of the socket's namespace, until the
// device is deleted; -1 detaches the present program.
func SetXDP(sock *nl.SocketHandle, ifindex, program, flags int) error {
	req := routeRequest(sock, unix.RTM_SETLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(ifindex)
	req.AddData(head)
	xdp := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	xdp.AddRtAttr(nl.IFLA_XDP_FD, nl.Uint32Attr(uint32(int32(program))))
	xdp.AddRtAttr(nl.IFLA_XDP_FLAGS, nl.Uint32Attr(uint32(flags)))
	req.AddData(xdp)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Deleter deletes ports. The kernel waits for an RCU grace period before it frees a device (16
// ms measured), once for all devices that one request deletes. So the ports of all calls that
// come during a request are deleted by the next one. It names them by a device group (ip link
// group) that no other device is in.
type Deleter struct {
	nl    *netlink.Handle
	rt    *nl.SocketHandle
	group int

	request sync.Mutex // held during a request

	mu      sync.Mutex
	linkDel func(netlink.Link) error // nl.LinkDel, except after replaceLinkDel
	queue   []*deletion
}

// deletion is a port to be deleted.
type deletion struct {
	ifindex uint32
	name    string
	done    chan error // of capacity 1
}

// NewDeleter is for ports in the namespace of h and rt. It finds a device group that no other device is in.
func NewDeleter(h *netlink.Handle, rt *nl.SocketHandle) (*Deleter, error) {
	links, err := route.Dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	taken := map[uint32]bool{}
	for _, l := range links {
		taken[l.Attrs().Group] = true
	}
	r := &Deleter{nl: h, rt: rt, linkDel: h.LinkDel}
	for r.group == 0 || taken[uint32(r.group)] {
		r.group = 1<<30 + rand.IntN(1<<30)
	}
	return r, nil
}

// ReplaceLinkDel replaces the function that deletes one device, for a test, and returns the one before.
func (r *Deleter) ReplaceLinkDel(del func(netlink.Link) error) (before func(netlink.Link) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.linkDel = r.linkDel, del
	return before
}

// Delete deletes a port and waits until that is done. The first of the callers that wait for the
// end of a request deletes the ports of all of them.
func (r *Deleter) Delete(ifindex uint32, name string) error {
	me := &deletion{ifindex: ifindex, name: name, done: make(chan error, 1)}
	r.mu.Lock()
	r.queue = append(r.queue, me)
	r.mu.Unlock()
	r.request.Lock()
	defer r.request.Unlock()
	if len(me.done) == 0 {
		r.mu.Lock()
		list := r.queue
		r.queue = nil
		r.mu.Unlock()
		r.run(list)
	}
	return <-me.done
}

// DeleteAll deletes ports, by ifindex.
func (r *Deleter) DeleteAll(ports map[uint32]string) error {
	var list []*deletion
	for ifindex, name := range ports {
		list = append(list, &deletion{ifindex: ifindex, name: name, done: make(chan error, 1)})
	}
	r.run(list)
	var err error
	for _, d := range list {
		err = errors.Join(err, <-d.done)
	}
	return err
}

// run deletes ports and sends the results.
func (r *Deleter) run(list []*deletion) {
	r.mu.Lock()
	one := r.linkDel
	r.mu.Unlock()
	if len(list) > 1 && r.deleteGroup(list) == nil {
		for _, d := range list {
			d.done <- nil
		}
		return
	}
	for _, d := range list {
		err := AbsentDeviceIsFine(one(d.device()))
		if err != nil {
			err = fmt.Errorf("delete port %s: %w", d.name, err)
		}
		d.done <- err
	}
}

func (d *deletion) device() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: d.name, Index: int(d.ifindex)}}
}

// deleteGroup deletes ports by one request.
func (r *Deleter) deleteGroup(list []*deletion) error {
	for _, d := range list {
		if err := AbsentDeviceIsFine(r.nl.LinkSetGroup(d.device(), r.group)); err != nil {
			return err
		}
	}
	req := routeRequest(r.rt, unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(uint32(r.group))))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return AbsentDeviceIsFine(err)
}

// AbsentDeviceIsFine ignores that a device does not exist. Its rules are deleted with it, and the
// kernel deletes a port when the last descriptor of its socket is closed.
func AbsentDeviceIsFine(err error) error {
	if IsAbsent(err) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
