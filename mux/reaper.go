package mux

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/route"
)

// reaper deletes ports. The kernel waits for everybody who may still use a device
// before it lets it go, 16 ms each time that was measured, and as long for many that are
// deleted by one request. So whoever comes while a request is under way waits for the
// next one together with the others.
//
// One request names many devices by their group, which is a number that nobody else
// uses.
type reaper struct {
	nl    *netlink.Handle
	rt    *nl.SocketHandle
	group int

	mu      sync.Mutex
	linkDel func(netlink.Link) error // nl.LinkDel; a test replaces it
	queue   []*doomed
	busy    bool // somebody will look at the queue
}

// doomed is a port that somebody waits to see deleted.
type doomed struct {
	ifindex uint32
	name    string
	done    chan error // of capacity 1
}

func newReaper(h *netlink.Handle, rt *nl.SocketHandle) (*reaper, error) {
	links, err := route.Dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	taken := map[uint32]bool{}
	for _, l := range links {
		taken[l.Attrs().Group] = true
	}
	r := &reaper{nl: h, rt: rt, linkDel: h.LinkDel}
	for r.group == 0 || taken[uint32(r.group)] {
		r.group = 1<<30 + rand.IntN(1<<30)
	}
	return r, nil
}

// delete returns when a port is no more.
func (r *reaper) delete(ifindex uint32, name string) error {
	me := &doomed{ifindex: ifindex, name: name, done: make(chan error, 1)}
	r.mu.Lock()
	r.queue = append(r.queue, me)
	lead := !r.busy
	r.busy = true
	r.mu.Unlock()
	if lead {
		r.next()
	}
	return <-me.done
}

// deleteAll deletes ports, by ifindex.
func (r *reaper) deleteAll(ports map[uint32]string) error {
	var list []*doomed
	for ifindex, name := range ports {
		list = append(list, &doomed{ifindex: ifindex, name: name, done: make(chan error, 1)})
	}
	r.reap(list)
	var err error
	for _, d := range list {
		err = errors.Join(err, <-d.done)
	}
	return err
}

// next deletes all that is in the queue, and has another goroutine go on if more has come.
func (r *reaper) next() {
	r.mu.Lock()
	list := r.queue
	r.queue = nil
	r.mu.Unlock()
	r.reap(list)
	r.mu.Lock()
	r.busy = len(r.queue) > 0
	more := r.busy
	r.mu.Unlock()
	if more {
		go r.next()
	}
}

// reap deletes ports and tells those who wait for it.
func (r *reaper) reap(list []*doomed) {
	r.mu.Lock()
	one := r.linkDel
	r.mu.Unlock()
	if len(list) > 1 && r.reapGroup(list) == nil {
		for _, d := range list {
			d.done <- nil
		}
		return
	}
	for _, d := range list {
		err := gone(one(d.device()))
		if err != nil {
			err = fmt.Errorf("delete port %s: %w", d.name, err)
		}
		d.done <- err
	}
}

func (d *doomed) device() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: d.name, Index: int(d.ifindex)}}
}

// reapGroup deletes ports together.
func (r *reaper) reapGroup(list []*doomed) error {
	for _, d := range list {
		if err := gone(r.nl.LinkSetGroup(d.device(), r.group)); err != nil {
			return err
		}
	}
	req := routeRequest(r.rt, unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(uint32(r.group))))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return gone(err)
}

// gone: the kernel may have deleted a port before, when its endpoint's last
// descriptor was closed.
func gone(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
