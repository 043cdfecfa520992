//go:build linux

package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/tables"
)

// QueuePrograms are the programs of queues in tcx mode, in the order in which they are detached.
func QueuePrograms(u *nic.Uplink) []string {
	if u.Kind == "vlan" { // the kernel has removed the VLAN tag of its frames
		return []string{bpf.MuxProgUnetQueue}
	}
	return []string{bpf.MuxProgUnetQueue, bpf.MuxProgUnetNoteVlan}
}

// AttachQueue loads the programs of queues over the tables of the mux, and attaches them. The
// calling thread is in the uplink's namespace.
func (p *Programs) AttachQueue(u *nic.Uplink, types *btf.Cache) (links []link.Link, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, p.DetachQueue(links))
			links = nil
		}
	}()
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, err
	}
	notes := len(QueuePrograms(u)) > 1
	config := bpf.Config(u.Addr, u.Index, u.Netns, p.MTU, true, notes)
	if err := spec.Variables["config"].Set(config); err != nil {
		return nil, err
	}
	tables := map[string]*ebpf.Map{
		bpf.MuxMapCounters:   p.Maps.Counters,
		bpf.MuxMapDevices:    p.Maps.Devices,
		bpf.MuxMapOwn:        p.Maps.Own,
		bpf.MuxMapOwnFilters: p.Maps.OwnFilters,
		bpf.MuxMapSockets:    p.Maps.Sockets,
		bpf.MuxMapTags:       p.Maps.Tags,
		bpf.MuxMapTags6:      p.Maps.Tags6,
		bpf.MuxMapTagCounts:  p.Maps.TagCounts,
	}
	spec.Maps[bpf.MuxMapSockets].MaxEntries = p.Maps.Sockets.MaxEntries()
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
	if left != 0 { // the kernel would warn (netdev_WARN in dev_disable_gro_hw), which is a panic with panic_on_warn
		unsupported := fmt.Errorf("%w: the driver of %s does not turn %v off, and the kernel warns of generic XDP with it: attach to a port", errors.ErrUnsupported, name, left)
		if err != nil {
			return links, fmt.Errorf("%w (%w)", unsupported, err)
		}
		return links, unsupported
	}
	if err != nil {
		return links, err
	}
	queue, err := link.AttachXDP(link.XDPOptions{Program: progs.Queue, Interface: u.Index, Flags: link.XDPGenericMode})
	if err != nil {
		return links, foreign(err)
	}
	links = append([]link.Link{queue}, links...)
	return links, p.pinLink(queue, bpf.MuxProgUnetQueue)
}

// DetachQueue undoes AttachQueue. unet_queue is detached at once; by closing the last descriptor
// of its link it would be detached later. The calling thread is in the uplink's namespace.
func (p *Programs) DetachQueue(links []link.Link) (err error) {
	for _, l := range links {
		info, ierr := l.Info()
		if ierr == nil && info.XDP() != nil {
			ierr = errors.Join(l.Detach(), tables.AbsentIsFine(p.Maps.Losses.Delete(uint32(info.Program))))
		}
		err = errors.Join(err, ierr)
	}
	if p.Pins != nil {
		for _, name := range []string{bpf.MuxProgUnetQueue, bpf.MuxProgUnetNoteVlan} {
			if rerr := os.Remove(p.Pins.at(pinLink + name)); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("unpin: %w", rerr))
			}
		}
	}
	return errors.Join(err, CloseLinks(links), p.restoreOffloads(nic.MergesFrames))
}

// pinLink pins the link of a program, if the mux is pinned.
func (p *Programs) pinLink(l link.Link, prog string) error {
	if p.Pins == nil {
		return nil
	}
	return l.Pin(p.Pins.at(pinLink + prog))
}

// CloseLinks closes the descriptors of links. Pinned programs stay attached.
func CloseLinks(links []link.Link) (err error) {
	for _, l := range links {
		err = errors.Join(err, l.Close())
	}
	return err
}

// PinnedQueue opens the links of the programs of queues, of those that are pinned.
func PinnedQueue(keep *Pins) (links []link.Link, err error) {
	if keep == nil {
		return nil, nil
	}
	for _, name := range []string{bpf.MuxProgUnetQueue, bpf.MuxProgUnetNoteVlan} {
		l, err := link.LoadPinnedLink(keep.at(pinLink+name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return links, errors.Join(fmt.Errorf("pinned link of %s: %w", name, err), CloseLinks(links))
		}
		links = append(links, l)
	}
	return links, nil
}
