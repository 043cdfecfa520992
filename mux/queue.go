//go:build linux

package mux

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netns"

	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/nic"
)

// A device can have more queues than it uses. In native mode virtio_net adds queues for redirected
// frames, one for each processor: these receive, and a socket on one sends nothing
// (xsk_generic_xmit in net/xdp/xsk.c compares with real_num_tx_queues, virtnet_poll_tx in
// drivers/net/virtio_net.c leaves is_xdp_raw_buffer_queue).

// usableQueues is the number of queues of the uplink that receive and send now.
func (m *Mux) usableQueues() (n uint32, err error) {
	err = route.Within(m.ns, func() error {
		name, err := nic.NameOf(m.nl, m.up.Index)()
		if err != nil {
			return err
		}
		n, err = nic.ActiveQueues(name, m.up.Queues)
		n = min(n, nic.SendingQueues(m.up.Index, m.up.Queues))
		return err
	})
	return n, err
}

// checkQueue returns ErrNoQueue if a queue of the uplink does not receive and send now. As long as a
// socket is bound to a queue, the kernel does not let ethtool turn it off (ethtool_set_channels).
func (m *Mux) checkQueue(queue uint32) error {
	n, err := m.usableQueues()
	if err == nil && queue >= n {
		err = fmt.Errorf("%w: %d of the %d queues of %s receive and send now, and queue %d is none of them: see ethtool -L %s (virtio_net takes it only before unetd is started, and has queues for XDP that cannot send)",
			ErrNoQueue, n, m.up.Queues, m.up.Name, queue, m.up.Name)
	}
	return err
}

// In tcx mode an XDP program on the uplink, unet_queue, redirects frames to the sockets of
// endpoints on queues. It makes the kernel copy each frame, so it is attached only while there
// are such endpoints. unet_note_vlan notes VLAN tags for unet_queue (ADR 7), so it is attached first
// and detached last.

// queueHold is the links of these two, and how many endpoints need them. It has nothing to do in native mode.
type queueHold struct {
	ns    netns.NsHandle
	up    *nic.Uplink
	progs *attach.Programs

	mu    sync.Mutex
	users int // +checklocks:mu
	// links are in the order in which they are detached.
	// +checklocks:mu
	links []link.Link
}

// hold attaches unet_queue for one more endpoint on a queue. Errors: ErrForeignProgram.
func (q *queueHold) hold() error {
	if q.progs.Mode != ModeTCX {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.users == 0 {
		var links []link.Link
		err := route.Within(q.ns, func() (err error) {
			links, err = q.progs.AttachQueue(q.up, newTypes())
			return err
		})
		if err != nil {
			return err
		}
		q.links = links
	}
	q.users++
	return nil
}

// release undoes hold.
func (q *queueHold) release() error {
	if q.progs.Mode != ModeTCX {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.users--; q.users > 0 {
		return nil
	}
	links := q.links
	q.links = nil
	return route.Within(q.ns, func() error { return q.progs.DetachQueue(links) })
}

// close closes the descriptors of the links. Pinned programs stay attached.
func (q *queueHold) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return attach.CloseLinks(q.links)
}

// adopt takes over unet_queue for a number of endpoints, or what an earlier process has
// left of it. The calling thread is in the uplink's namespace.
func (q *queueHold) adopt(users int) error {
	if q.progs.Mode != ModeTCX {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	links, err := attach.PinnedQueue(q.progs.Pins)
	if err != nil {
		return err
	}
	q.users = users
	if users > 0 && len(links) == len(attach.QueuePrograms(q.up)) {
		q.links = links
		return nil
	}
	if err = q.progs.DetachQueue(links); err == nil && users > 0 {
		q.links, err = q.progs.AttachQueue(q.up, newTypes())
	}
	return err
}
