//go:build linux

package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/mux"
)

// target is a mux, as unetd has pinned it, and the endpoint of it that is captured.
type target struct {
	dir   string
	name  string // of the uplink
	state bpf.State
	maps  bpf.MuxMaps

	all      bool // endpoints
	endpoint uint64
	owner    bpf.Owner // of the endpoint: its port, or its queue
	slot     uint32    // of the endpoint
}

// find opens the mux of an interface, or of an endpoint if iface is "". The interface is in the network
// namespace of this process.
func find(bpffs, iface string, id uint64) (*target, error) {
	paths, err := mux.PinsHere(bpffs)
	if err != nil {
		return nil, fmt.Errorf("--bpffs %s: %w", bpffs, err)
	}
	var names, there []string
	for _, path := range paths {
		t, err := open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed meanwhile, or is not complete yet
		}
		if err != nil {
			return nil, err
		}
		names = append(names, t.name)
		if iface != "" && iface == t.name {
			t.all = true
			return t, nil
		}
		if iface == "" {
			found, ids, err := t.lookFor(id)
			if err != nil {
				return nil, errors.Join(err, t.Close())
			}
			if found {
				return t, nil
			}
			there = append(there, ids...)
		}
		t.Close()
	}
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("no unetd of this network namespace has pinned anything in %s: is it running, and with the same --bpffs?", bpffs)
	case iface != "":
		return nil, fmt.Errorf("unetd does not serve %s: it serves %s", iface, strings.Join(names, ", "))
	case len(there) == 0:
		return nil, fmt.Errorf("there is no endpoint %d: there are none on %s", id, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("there is no endpoint %d: there are %s on %s", id, strings.Join(there, ", "), strings.Join(names, ", "))
}

// open opens the maps of a mux. The link of the uplink is pinned last.
func open(dir string) (_ *target, err error) {
	t := &target{dir: dir}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	l, err := link.LoadPinnedLink(filepath.Join(dir, "uplink"), nil)
	if err != nil {
		return nil, fmt.Errorf("pins of unetd: %w", err)
	}
	l.Close()
	for name, m := range map[string]**ebpf.Map{
		bpf.MuxMapState: &t.maps.State, bpf.MuxMapCounters: &t.maps.Counters, bpf.MuxMapEndpoints: &t.maps.Endpoints,
		bpf.MuxMapTags: &t.maps.Tags, bpf.MuxMapTags6: &t.maps.Tags6, bpf.MuxMapLosses: &t.maps.Losses,
	} {
		if *m, err = ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: false}); err != nil {
			return nil, fmt.Errorf("pins of unetd: %w", err)
		}
	}
	if err := t.maps.State.Lookup(uint32(0), &t.state); err != nil {
		return nil, fmt.Errorf("state of unetd: %w", err)
	}
	if t.state.Objects != bpf.ObjectsHash() {
		return nil, fmt.Errorf("%s: the unetd that runs is another version than this one, and its tables may be different: use its own command, or restart it", dir)
	}
	t.name = nameOf(int(t.state.Ifindex))
	return t, nil
}

// nameOf is the name of an interface.
func nameOf(ifindex int) string {
	if i, err := net.InterfaceByIndex(ifindex); err == nil {
		return i.Name
	}
	return "interface " + strconv.Itoa(ifindex)
}

// Close closes descriptors.
func (t *target) Close() error {
	return t.maps.Close()
}

// lookFor makes t the target of an endpoint, if that is found. ids are all endpoints, in order.
func (t *target) lookFor(id uint64) (found bool, ids []string, err error) {
	var owner bpf.Owner
	var e bpf.Endpoint
	var all []uint64
	for it := t.maps.Endpoints.Iterate(); ; {
		if !it.Next(&owner, &e) {
			err = it.Err()
			break
		}
		all = append(all, e.Id)
		if e.Id == id {
			found, t.endpoint, t.owner, t.slot = true, id, owner, e.Slot
		}
	}
	slices.Sort(all)
	for _, n := range all {
		ids = append(ids, strconv.FormatUint(n, 10))
	}
	return found, ids, err
}

// gone reports whether the endpoint has ended, or unetd has removed the mux.
func (t *target) gone() (why string) {
	if l, err := link.LoadPinnedLink(filepath.Join(t.dir, "uplink"), nil); errors.Is(err, fs.ErrNotExist) {
		return "unetd has removed its programs from " + t.name
	} else if err == nil {
		l.Close()
	}
	if t.all {
		return ""
	}
	var e bpf.Endpoint
	if err := t.maps.Endpoints.Lookup(t.owner, &e); errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && e.Id != t.endpoint {
		return fmt.Sprintf("endpoint %d has ended", t.endpoint)
	}
	return ""
}

// onQueue: the captured endpoint is on a queue of the uplink.
func (t *target) onQueue() bool { return !t.all && t.owner.Port == 0 }

// ports are the outer ends of all ports, by the ifindex of the inner end.
func (t *target) ports() map[uint32]uint32 {
	ports := map[uint32]uint32{}
	var owner bpf.Owner
	var e bpf.Endpoint
	for it := t.maps.Endpoints.Iterate(); it.Next(&owner, &e); {
		if owner.Port != 0 {
			ports[e.Slot+bpf.FirstIfindex] = owner.Port
		}
	}
	return ports
}
