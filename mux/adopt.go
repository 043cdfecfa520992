//go:build linux

package mux

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/tables"
)

// To take over from a process that died, the next one reads only the kernel's tables. The order
// of changes makes them repairable at whatever point the other process stopped: the entry of an
// endpoint on a port is written when the port is complete and before its first tag, and deleted
// after its last tag, its port, and its socket. So a port or a tag without an entry can be
// deleted, and an entry without a port belongs to an endpoint that has ended or whose process
// has died.

// defaultGrace is the default of Config.Grace.
const defaultGrace = 10 * time.Second

// errUnusable: the pins cannot be taken over.
var errUnusable = errors.New("the pins cannot be taken over")

func unusable(why string, args ...any) error {
	return fmt.Errorf("%w: %s", errUnusable, fmt.Sprintf(why, args...))
}

// loadPinned opens what another process has pinned, if it is complete and equal to what this
// process would make for the uplink.
func loadPinned(h *netlink.Handle, keep *pins, u *nic.Uplink, want Mode) (_ *programs, err error) {
	p := &programs{nl: h, ifindex: u.Index, pins: keep}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.release())
		}
	}()
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, err
	}
	state, err := readState(keep)
	if err != nil {
		return nil, err
	}
	p.state = state
	p.mode, p.mtu = Mode(state.Mode), state.Mtu
	switch {
	case state.Objects != bpf.ObjectsHash():
		return nil, unusable("it was made by another version of unet")
	case state.Netns != u.Netns || int(state.Ifindex) != u.Index:
		return nil, unusable("it belongs to another interface")
	case state.Link != u.Addr:
		return nil, unusable("the MAC address of %s was %x and is %v now", u.Name, state.Link, u.Addr)
	case p.mode != ModeNative && p.mode != ModeTCX:
		return nil, unusable("it is attached in generic mode, which there is no more")
	case want != ModeAuto && want != p.mode:
		return nil, unusable("it is attached in %v mode", p.mode)
	}
	there, err := keep.names()
	if err != nil {
		return nil, err
	}
	needed := append(mapNames(spec), pinUplink)
	needed = append(needed, portPrograms(p.mode)...)
	for _, name := range sidePrograms(p.mode) {
		needed = append(needed, pinLink+name)
	}
	for _, name := range needed {
		if !slices.Contains(there, name) {
			return nil, unusable("%s is missing", name)
		}
	}
	return p, p.load(spec, u)
}

// load opens complete pins.
func (p *programs) load(spec *ebpf.CollectionSpec, u *nic.Uplink) (err error) {
	if p.uplink, err = link.LoadPinnedLink(p.pins.at(pinUplink), nil); err != nil {
		return fmt.Errorf("pinned link of the uplink: %w", err)
	}
	at, err := attachedTo(p.uplink)
	if err != nil {
		return fmt.Errorf("pinned link of the uplink: %w", err)
	}
	if at != u.Index {
		return unusable("its link is not attached to %s", u.Name)
	}
	for _, name := range sidePrograms(p.mode) {
		l, err := link.LoadPinnedLink(p.pins.at(pinLink+name), nil)
		if err != nil {
			return fmt.Errorf("pinned link of %s: %w", name, err)
		}
		p.sideLinks = append(p.sideLinks, l)
	}
	if _, err := net.InterfaceByName(upName(u.Index)); err != nil {
		return unusable("%s is missing", upName(u.Index))
	}
	// The number of queues of the uplink may have changed.
	queues, err := ebpf.LoadPinnedMap(p.pins.at(bpf.MuxMapSockets), nil)
	if err != nil {
		return fmt.Errorf("pinned map: %w", err)
	}
	spec.Maps[bpf.MuxMapSockets].MaxEntries = queues.MaxEntries()
	queues.Close()
	if err := spec.LoadAndAssign(&p.maps.MuxMaps, pinMaps(spec, p.pins)); err != nil {
		return fmt.Errorf("pinned maps: %w", err)
	}
	refuse, err := loadRefuse(p.maps.Counters)
	if err != nil {
		return err
	}
	p.loaded = map[string]*ebpf.Program{refuseProgram: refuse}
	for _, name := range portPrograms(p.mode) {
		if p.loaded[name], err = ebpf.LoadPinnedProgram(p.pins.at(name), nil); err != nil {
			return fmt.Errorf("pinned program: %w", err)
		}
	}
	return p.acceptLocal() // it may have been changed meanwhile
}

// readState reads the pinned state.
func readState(keep *pins) (s bpf.State, err error) {
	spec, err := bpf.LoadMux()
	if err != nil {
		return s, err
	}
	m, err := ebpf.LoadPinnedMap(keep.at(pinState), nil)
	if errors.Is(err, os.ErrNotExist) {
		return s, unusable("%s is missing", pinState)
	}
	if err != nil {
		return s, fmt.Errorf("pinned state: %w", err)
	}
	defer m.Close()
	if m.ValueSize() != spec.Maps[bpf.MuxMapState].ValueSize {
		return s, unusable("it was made by another version of unet")
	}
	if err := m.Lookup(uint32(0), &s); err != nil {
		return s, fmt.Errorf("pinned state: %w", err)
	}
	return s, nil
}

// portsOf are the names of the ports of a mux by ifindex: the devices in the namespace of h
// that have one of its port programs.
func portsOf(h *netlink.Handle, progs ...*ebpf.Program) (map[uint32]string, error) {
	var ids []uint32
	for _, prog := range progs {
		id, err := programID(prog)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	links, err := route.Dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	ports := map[uint32]string{}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "veth" && a.Xdp != nil && a.Xdp.Attached && slices.Contains(ids, a.Xdp.ProgId) {
			ports[uint32(a.Index)] = a.Name
		}
	}
	return ports, nil
}

// pinnedPorts is portsOf for pins; os.ErrNotExist: the port program is not there.
func pinnedPorts(h *netlink.Handle, keep *pins) (map[uint32]string, error) {
	var progs []*ebpf.Program
	for _, name := range []string{bpf.MuxProgUnetPort, bpf.MuxProgUnetPortLimited} {
		prog, err := ebpf.LoadPinnedProgram(keep.at(name), nil)
		if errors.Is(err, os.ErrNotExist) && name == bpf.MuxProgUnetPortLimited {
			continue // a version without it
		}
		if err != nil {
			return nil, fmt.Errorf("pinned program: %w", err)
		}
		defer prog.Close()
		progs = append(progs, prog)
	}
	return portsOf(h, progs...)
}

// adopt takes over the endpoints in the kernel's tables. It completes or undoes what the
// earlier process had begun. The calling thread is in the uplink's namespace.
func (m *Mux) adopt() error {
	ports, err := portsOf(m.nl, m.progs.loaded[bpf.MuxProgUnetPort], m.progs.loaded[bpf.MuxProgUnetPortLimited])
	if err != nil {
		return err
	}
	endpoints, err := m.progs.maps.AllEndpoints()
	if err != nil {
		return err
	}
	tags, err := m.progs.maps.AllTags()
	if err != nil {
		return err
	}
	groups, err := m.progs.maps.AllGroups()
	if err != nil {
		return err
	}
	alive, onPort := map[bpf.Owner]*Lease{}, map[uint32]*Lease{}
	lingers := map[bpf.Owner]bool{}
	for owner, e := range endpoints {
		name, there := ports[owner.Port]
		if owner.Port == 0 {
			name = m.up.Name
			if there, err = tables.SocketThere(m.progs.maps.Sockets, uint32(owner.Queue), m.unbound); err != nil {
				return err
			}
		}
		delete(ports, owner.Port)
		if there {
			if alive[owner], err = m.adopted(owner, e, name); err != nil {
				return err
			}
			onPort[owner.Port] = alive[owner]
			continue
		}
		if owner.Port != 0 {
			if lingers[owner], err = m.adoptRest(owner, e); err != nil {
				return err
			}
		}
	}
	dead := map[endpoint.Tag]bpf.Owner{}
	for t, owner := range tags {
		if alive[owner.WithEffect(true)] == nil {
			dead[t] = owner
			delete(tags, t)
		}
	}
	if err := m.steering.Drop(onQueuesOf(dead), onQueuesOf(tags)); err != nil {
		m.log.Warn("classification rules of ended endpoints cannot be removed (ethtool -n)", "interface", m.up.Name, "error", err)
	}
	for t := range dead {
		if err := m.deleteTag(t); err != nil {
			return fmt.Errorf("tag of a dead endpoint: %v: %w", t, err)
		}
	}
	if err := m.progs.maps.Recount(maps.Keys(tags), maps.Keys(groups)); err != nil {
		return err
	}
	for owner, e := range endpoints {
		if alive[owner] == nil && !lingers[owner] {
			m.log.Info("endpoint reclaimed, its socket is closed", "endpoint", e.Id, "uid", e.Uid, "pid", e.Pid)
			if err := m.progs.maps.DeleteEndpoint(owner); err != nil {
				return err
			}
		}
	}
	for _, name := range ports {
		m.log.Info("incomplete port removed", "port", name)
	}
	if err := m.deleter.DeleteAll(ports); err != nil {
		return err
	}
	if err := m.sweepLimits(alive); err != nil {
		return err
	}
	onQueues := 0
	for owner := range alive {
		if owner.Port == 0 {
			onQueues++
		}
	}
	if err := m.adoptQueues(onQueues); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, owned := range []bool{true, false} {
		for t, owner := range tags {
			l := alive[owner.WithEffect(true)]
			if owned != (t.Kind == endpoint.TagAddr) {
				continue
			}
			if err := m.readmit(l, t, owner.Suspended()); err != nil {
				m.log.Warn("a claimed port cannot be reserved again: another program that has bound it receives nothing there", "tag", t, "endpoint", l.id, "error", err)
			}
		}
	}
	delete(onPort, 0) // queues
	for t, ports := range groups {
		if err := m.readmitGroup(t, ports, onPort); err != nil {
			m.log.Warn("a group cannot be joined again: its datagrams may not arrive", "tag", t, "error", err)
		}
	}
	return nil
}

// adopted makes the lease of an endpoint that its owner has not presented yet.
func (m *Mux) adopted(owner bpf.Owner, e bpf.Endpoint, device string) (*Lease, error) {
	l := newLease(m)
	l.id, l.cookie, l.segmentBytes, l.counted = e.Id, e.Cookie, int64(e.SegmentBytes), int64(e.CountedBytes)
	l.fillSize = e.FillSize
	l.owner = Owner{PID: int(e.Pid), UID: e.Uid}
	l.at = &attachment{owner: owner, device: device}
	l.granted = true
	if owner.Port != 0 {
		if err := m.adoptRates(l); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if owner.Port != 0 {
		l.attach, l.bound = endpoint.AttachPort, nic.PortBinding
		l.at.slot, l.at.hasSlot, l.at.port = e.Slot, true, true
		m.slots[e.Slot] = true
	} else {
		l.attach, l.bound = endpoint.AttachQueue, nic.Binding{Why: "not known until its application presents it"}
		l.queue, l.holdsQueue = uint32(owner.Queue), true
		m.queues[l.queue] = true
	}
	m.leases[l.id] = l
	m.users.count(e.Uid, Usage{Endpoints: 1, Memory: l.counted})
	return l, nil
}

// adoptRest reports whether the socket of an endpoint without a port exists. If so, its slot
// stays taken, and the endpoint counts, until the socket is closed.
func (m *Mux) adoptRest(owner bpf.Owner, e bpf.Endpoint) (there bool, err error) {
	there, err = tables.SocketThere(m.progs.maps.PortSockets, e.Slot, m.unbound)
	if !there || err != nil {
		return false, err
	}
	m.mu.Lock()
	m.slots[e.Slot] = true
	m.users.count(e.Uid, Usage{Endpoints: 1, Memory: int64(e.CountedBytes)})
	m.mu.Unlock()
	info := endpoint.Info{
		ID:           e.Id,
		UID:          e.Uid,
		PID:          int(e.Pid),
		Attach:       endpoint.AttachPort,
		SegmentBytes: int64(e.SegmentBytes),
	}
	m.log.Info("endpoint has ended, and its socket is open", "endpoint", e.Id, "uid", e.Uid, "pid", e.Pid)
	m.linger(&lingering{info: info, counted: int64(e.CountedBytes), at: &attachment{owner: owner, slot: e.Slot, hasSlot: true}, granted: true})
	return true, nil
}

// reclaimAfterGrace ends the endpoints that were not presented in time.
func (m *Mux) reclaimAfterGrace(grace time.Duration) {
	select {
	case <-time.After(grace):
	case <-m.ctx.Done():
		return
	}
	for _, l := range m.all() {
		m.reclaim(l, fmt.Sprintf("not presented within %v", grace))
	}
}

// reclaim ends an endpoint, unless it was presented or has ended.
func (m *Mux) reclaim(l *Lease, why string) {
	m.mu.Lock()
	o, waits := l.owner, !l.leased && !l.closed
	if waits {
		l.closed = true // from now on Present fails
	}
	m.mu.Unlock()
	if !waits {
		return
	}
	err := l.close(nil)
	m.log.Info("endpoint reclaimed", "endpoint", l.id, "uid", o.UID, "pid", o.PID, "why", why, "error", err)
}
