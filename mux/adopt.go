//go:build linux

package mux

import (
	"fmt"
	"maps"
	"time"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/attach"
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

// adopt takes over the endpoints in the kernel's tables. It completes or undoes what the
// earlier process had begun. The calling thread is in the uplink's namespace.
func (m *Mux) adopt() error {
	ports, err := attach.PortsOf(m.nl, m.progs.Loaded[bpf.MuxProgUnetPort], m.progs.Loaded[bpf.MuxProgUnetPortLimited])
	if err != nil {
		return err
	}
	endpoints, err := m.progs.Maps.AllEndpoints()
	if err != nil {
		return err
	}
	tags, err := m.progs.Maps.AllTags()
	if err != nil {
		return err
	}
	groups, err := m.progs.Maps.AllGroups()
	if err != nil {
		return err
	}
	alive, onPort := map[bpf.Owner]*Lease{}, map[uint32]*Lease{}
	lingers := map[bpf.Owner]bool{}
	for owner, e := range endpoints {
		name, there := ports[owner.Port]
		if owner.Port == 0 {
			name = m.up.Name
			if there, err = tables.SocketThere(m.progs.Maps.Sockets, uint32(owner.Queue), m.unbound); err != nil {
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
	if err := m.steering.Drop(attach.OnQueuesOf(dead), attach.OnQueuesOf(tags)); err != nil {
		m.log.Warn("classification rules of ended endpoints cannot be removed (ethtool -n)", "interface", m.up.Name, "error", err)
	}
	if err := m.deleteDead(dead); err != nil {
		return err
	}
	if err := m.progs.Maps.Recount(maps.Keys(tags), maps.Keys(groups)); err != nil {
		return err
	}
	for owner, e := range endpoints {
		if alive[owner] == nil && !lingers[owner] {
			m.log.Info("endpoint reclaimed, its socket is closed", "endpoint", e.Id, "uid", e.Uid, "pid", e.Pid)
			if err := m.progs.Maps.DeleteEndpoint(owner); err != nil {
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
	if err := m.rates.sweep(alive); err != nil {
		return err
	}
	onQueues := 0
	for owner := range alive {
		if owner.Port == 0 {
			onQueues++
		}
	}
	if err := m.queueing.adopt(onQueues); err != nil {
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
			if err := l.readmit(t, owner.Suspended()); err != nil { // +checklocksignore: a lease of this mux
				m.log.Warn("a claimed port cannot be reserved again: another program that has bound it receives nothing there", "tag", t, "endpoint", l.id, "error", err)
			}
		}
	}
	delete(onPort, 0) // queues
	r, err := m.newReserver()
	if err != nil {
		return err
	}
	for t, ports := range groups {
		if err := m.groups.readmit(t, ports, onPort, r); err != nil {
			m.log.Warn("a group cannot be joined again: its datagrams may not arrive", "tag", t, "error", err)
		}
	}
	return nil
}

// deleteDead deletes the tags of endpoints that are gone from the kernel's table.
func (m *Mux) deleteDead(dead map[endpoint.Tag]bpf.Owner) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t := range dead {
		if _, err := m.deleteFromKernel(t); err != nil {
			return fmt.Errorf("tag of a dead endpoint: %v: %w", t, err)
		}
	}
	return nil
}

// adopted makes the lease of an endpoint that its owner has not presented yet.
func (m *Mux) adopted(owner bpf.Owner, e bpf.Endpoint, device string) (*Lease, error) {
	l := newLease(m, Owner{PID: int(e.Pid), UID: e.Uid})
	l.id, l.cookie, l.segmentBytes, l.counted = e.Id, e.Cookie, int64(e.SegmentBytes), int64(e.CountedBytes)
	l.fillSize = e.FillSize
	l.at = &attachment{owner: owner, device: device}
	l.granted = true
	if owner.Port != 0 {
		if err := m.rates.adopt(l); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if owner.Port != 0 {
		l.attach, l.bound = endpoint.AttachPort, nic.PortBinding
		l.at.slot, l.at.hasSlot, l.at.port = e.Slot, true, true
		m.slots.adopt(e.Slot)
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
	there, err = tables.SocketThere(m.progs.Maps.PortSockets, e.Slot, m.unbound)
	if !there || err != nil {
		return false, err
	}
	m.mu.Lock()
	m.slots.adopt(e.Slot)
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
	m.lingers.add(&lingering{info: info, counted: int64(e.CountedBytes), at: &attachment{owner: owner, slot: e.Slot, hasSlot: true}, granted: true})
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
		l.reclaim(fmt.Sprintf("not presented within %v", grace))
	}
}

// reclaim ends an endpoint, unless it was presented or has ended.
func (l *Lease) reclaim(why string) {
	m := l.m
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
