//go:build linux

package mux

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/tables"
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

// queueHold is the links of these two, and how many endpoints need them.
type queueHold struct {
	mu    sync.Mutex
	users int
	links []link.Link // in the order in which they are detached
}

// holdQueues attaches unet_queue for one more endpoint on a queue. Errors: ErrForeignProgram.
func (m *Mux) holdQueues() error {
	if m.progs.mode != ModeTCX {
		return nil
	}
	q := &m.queueing
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.users == 0 {
		err := route.Within(m.ns, func() (err error) {
			q.links, err = m.progs.attachQueue(&m.up)
			return err
		})
		if err != nil {
			return err
		}
	}
	q.users++
	return nil
}

// releaseQueues undoes holdQueues.
func (m *Mux) releaseQueues() error {
	if m.progs.mode != ModeTCX {
		return nil
	}
	q := &m.queueing
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.users--; q.users > 0 {
		return nil
	}
	links := q.links
	q.links = nil
	return route.Within(m.ns, func() error { return m.progs.detachQueue(links) })
}

// closeQueues closes the descriptors of the links. Pinned programs stay attached.
func (m *Mux) closeQueues() error { return closeLinks(m.queueing.links) }

// adoptQueues takes over unet_queue for a number of endpoints, or what an earlier process has
// left of it.
func (m *Mux) adoptQueues(users int) error {
	if m.progs.mode != ModeTCX {
		return nil
	}
	q := &m.queueing
	q.mu.Lock()
	defer q.mu.Unlock()
	links, err := pinnedQueue(m.progs.pins)
	if err != nil {
		return err
	}
	q.users = users
	if users > 0 && len(links) == len(queuePrograms(&m.up)) {
		q.links = links
		return nil
	}
	if err = m.progs.detachQueue(links); err == nil && users > 0 {
		q.links, err = m.progs.attachQueue(&m.up)
	}
	return err
}

// queuePrograms are the programs of queues in tcx mode, in the order in which they are detached.
func queuePrograms(u *nic.Uplink) []string {
	if u.Kind == "vlan" { // the kernel has removed the VLAN tag of its frames
		return []string{bpf.MuxProgUnetQueue}
	}
	return []string{bpf.MuxProgUnetQueue, bpf.MuxProgUnetNoteVlan}
}

// attachQueue loads the programs of queues over the tables of the mux, and attaches them. The
// calling thread is in the uplink's namespace.
func (p *programs) attachQueue(u *nic.Uplink) (links []link.Link, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, p.detachQueue(links))
			links = nil
		}
	}()
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, err
	}
	notes := len(queuePrograms(u)) > 1
	config := bpf.Config(u.Addr, u.Index, u.Netns, p.mtu, true, notes)
	if err := spec.Variables["config"].Set(config); err != nil {
		return nil, err
	}
	tables := map[string]*ebpf.Map{
		bpf.MuxMapCounters:   p.maps.Counters,
		bpf.MuxMapDevices:    p.maps.Devices,
		bpf.MuxMapOwn:        p.maps.Own,
		bpf.MuxMapOwnFilters: p.maps.OwnFilters,
		bpf.MuxMapSockets:    p.maps.Sockets,
		bpf.MuxMapTags:       p.maps.Tags,
		bpf.MuxMapTags6:      p.maps.Tags6,
		bpf.MuxMapTagCounts:  p.maps.TagCounts,
	}
	spec.Maps[bpf.MuxMapSockets].MaxEntries = p.maps.Sockets.MaxEntries()
	types := newTypes()
	if notes {
		note, table, err := noteVLAN(types)
		if err != nil {
			return nil, err
		}
		links = append(links, note)
		defer table.Close()
		tables[bpf.MuxMapVlanNote] = table
		if err := p.pinLink(note, bpf.MuxProgUnetNoteVlan); err != nil {
			return links, err
		}
	}
	var progs struct {
		Queue *ebpf.Program `ebpf:"unet_queue"`
	}
	if err := spec.LoadAndAssign(&progs, &ebpf.CollectionOptions{MapReplacements: tables, Cache: types}); err != nil {
		return links, err
	}
	defer progs.Queue.Close() // its link holds it
	if err := p.countLosses(progs.Queue, bpf.LostUplinkRedirect); err != nil {
		return links, err
	}
	name, err := nic.NameOf(p.nl, u.Index)() // it may have another name by now
	if err != nil {
		return links, err
	}
	left, err := p.stopMerging(name)
	if err != nil {
		return links, err
	}
	if left != 0 { // the kernel would warn (netdev_WARN in dev_disable_gro_hw), which is a panic with panic_on_warn
		return links, fmt.Errorf("%w: the driver of %s does not turn %v off, and the kernel warns of generic XDP with it: attach to a port", errors.ErrUnsupported, name, left)
	}
	queue, err := link.AttachXDP(link.XDPOptions{Program: progs.Queue, Interface: u.Index, Flags: link.XDPGenericMode})
	if err != nil {
		return links, foreign(err)
	}
	links = append([]link.Link{queue}, links...)
	return links, p.pinLink(queue, bpf.MuxProgUnetQueue)
}

// detachQueue undoes attachQueue. unet_queue is detached at once; by closing the last descriptor
// of its link it would be detached later. The calling thread is in the uplink's namespace.
func (p *programs) detachQueue(links []link.Link) (err error) {
	for _, l := range links {
		info, ierr := l.Info()
		if ierr == nil && info.XDP() != nil {
			ierr = errors.Join(l.Detach(), tables.AbsentIsFine(p.maps.Losses.Delete(uint32(info.Program))))
		}
		err = errors.Join(err, ierr)
	}
	if p.pins != nil {
		for _, name := range []string{bpf.MuxProgUnetQueue, bpf.MuxProgUnetNoteVlan} {
			if rerr := os.Remove(p.pins.at(pinLink + name)); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("unpin: %w", rerr))
			}
		}
	}
	return errors.Join(err, closeLinks(links), p.restoreOffloads(nic.MergesFrames))
}

// pinLink pins the link of a program, if the mux is pinned.
func (p *programs) pinLink(l link.Link, prog string) error {
	if p.pins == nil {
		return nil
	}
	return l.Pin(p.pins.at(pinLink + prog))
}

func closeLinks(links []link.Link) (err error) {
	for _, l := range links {
		err = errors.Join(err, l.Close())
	}
	return err
}

// pinnedQueue opens the links of the programs of queues, of those that are pinned.
func pinnedQueue(keep *pins) (links []link.Link, err error) {
	if keep == nil {
		return nil, nil
	}
	for _, name := range []string{bpf.MuxProgUnetQueue, bpf.MuxProgUnetNoteVlan} {
		l, err := link.LoadPinnedLink(keep.at(pinLink+name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return links, errors.Join(fmt.Errorf("pinned link of %s: %w", name, err), closeLinks(links))
		}
		links = append(links, l)
	}
	return links, nil
}
