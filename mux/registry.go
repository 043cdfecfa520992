package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
)

// info is the lease's endpoint, without its tags. m.mu is held.
func (l *Lease) info() endpoint.Info {
	return endpoint.Info{
		ID:           l.id,
		UID:          l.owner.UID,
		PID:          l.owner.PID,
		Attach:       l.attach,
		Device:       l.at.device,
		Queue:        l.queue,
		SegmentBytes: l.segmentBytes,
		Leased:       l.leased,
	}
}

// infoWithTags is info with the tags. m.mu is held.
func (l *Lease) infoWithTags() endpoint.Info {
	info := l.info()
	info.Tags = sorted(l.tags)
	info.TagsTotal = len(info.Tags)
	return info
}

// Endpoints lists all endpoints by ID.
func (m *Mux) Endpoints() []endpoint.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]endpoint.Info, 0, len(m.leases))
	for _, l := range m.leases {
		list = append(list, l.infoWithTags())
	}
	slices.SortFunc(list, func(a, b endpoint.Info) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Present gives the lease of an endpoint that was taken over to its owner, who
// proves to be that by its socket. connections is as in [endpoint.Request]; the caller
// keeps both. endpoint.ErrNotPresentable says that there is no such endpoint, endpoint.ErrLeased that it
// has a lease already; another user's is os.ErrPermission.
func (m *Mux) Present(ctx context.Context, o Owner, sock, connections *os.File) (_ endpoint.Info, _ *Lease, err error) {
	if err := m.enter(); err != nil {
		return endpoint.Info{}, nil, known(err)
	}
	defer m.leave()
	if err := ctx.Err(); err != nil {
		return endpoint.Info{}, nil, err
	}
	cookie, err := xsk.Cookie(sock)
	if err != nil {
		return endpoint.Info{}, nil, fmt.Errorf("%w: %w", endpoint.ErrNotPresentable, err)
	}
	var table *os.File
	if connections != nil {
		if table, err = xsk.AcceptTable(connections); err != nil {
			return endpoint.Info{}, nil, err
		}
		defer func() {
			if err != nil {
				table.Close()
			}
		}()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.cookie != cookie {
			continue
		}
		switch {
		case l.owner.UID != o.UID:
			return endpoint.Info{}, nil, fmt.Errorf("endpoint %d: %w: it is of another user", l.id, os.ErrPermission)
		case l.leased:
			return endpoint.Info{}, nil, fmt.Errorf("endpoint %d: %w", l.id, endpoint.ErrLeased)
		}
		before := l.owner
		l.owner = o
		if err := m.putEndpoint(l); err != nil {
			l.owner = before
			return endpoint.Info{}, nil, err
		}
		if l.at.owner.Port != 0 {
			if err := m.fills.add(l, sock); err != nil {
				return endpoint.Info{}, nil, err
			}
		}
		l.leased, l.connections = true, table
		m.log.Info("endpoint presented", "endpoint", l.id, "uid", o.UID, "pid", o.PID)
		return l.infoWithTags(), l, nil
	}
	return endpoint.Info{}, nil, fmt.Errorf("%w: it may have been reclaimed; open another", endpoint.ErrNotPresentable)
}

// putEndpoint writes an endpoint down for a successor of this process.
func (m *Mux) putEndpoint(l *Lease) error {
	err := m.progs.objs.Endpoints.Put(l.at.owner, bpf.Endpoint{
		Id:           l.id,
		Cookie:       l.cookie,
		SegmentBytes: uint64(l.segmentBytes),
		Uid:          l.owner.UID,
		Pid:          uint32(l.owner.PID),
		Slot:         l.at.slot,
		FillSize:     l.fillSize,
	})
	if err != nil {
		return fmt.Errorf("endpoint into the table: %w", err)
	}
	return nil
}

// forgetEndpoint is the inverse.
func (m *Mux) forgetEndpoint(owner bpf.Owner) error {
	if err := absentIsFine(m.progs.objs.Endpoints.Delete(owner)); err != nil {
		return fmt.Errorf("endpoint out of the table: %w", err)
	}
	return nil
}

// endpointsInKernel reads the whole table. Nobody may change it meanwhile.
func endpointsInKernel(objs *bpf.MuxObjects) (map[bpf.Owner]bpf.Endpoint, error) {
	list := map[bpf.Owner]bpf.Endpoint{}
	var owner bpf.Owner
	var e bpf.Endpoint
	entries := objs.Endpoints.Iterate()
	for entries.Next(&owner, &e) {
		list[owner] = e
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read the table of endpoints: %w", err)
	}
	return list, nil
}

// newID gives out the number of an endpoint. A successor goes on after it.
func (m *Mux) newID() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.NextId = m.lastID + 2
	if err := m.progs.putState(m.state); err != nil {
		return 0, err
	}
	m.lastID++
	return m.lastID, nil
}

// takeSlot reserves a slot for the socket of a port. Slots are given out in turn,
// from a random one on, so that one that was left is not another's for long.
func (m *Mux) takeSlot() (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range bpf.MaxPorts {
		slot := m.nextSlot
		m.nextSlot = (slot + 1) % bpf.MaxPorts
		if !m.slots[slot] {
			m.slots[slot] = true
			return slot, nil
		}
	}
	return 0, fmt.Errorf("%w: %d", ErrTooManyPorts, bpf.MaxPorts)
}

func (m *Mux) giveSlot(slot uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.slots, slot)
}

// socketThere reports whether a map of sockets has one at key. Such a map cannot
// be read, but it refuses another socket where there is one; the kernel takes a
// socket out when its last descriptor and mapping are gone. other is any socket.
// Nobody else may use the key meanwhile.
func socketThere(sockets *ebpf.Map, key uint32, other *os.File) (bool, error) {
	err := sockets.Update(key, uint32(other.Fd()), ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return true, nil
	}
	if err == nil {
		err = absentIsFine(sockets.Delete(key))
	}
	if err != nil {
		return false, fmt.Errorf("ask for a socket: %w", err)
	}
	return false, nil
}
