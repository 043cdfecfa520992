//go:build linux

package tables

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
)

func groupKey(t endpoint.Tag) bpf.Tag6 { return bpf.GroupKey(netip.AddrPortFrom(t.Addr, t.Port)) }

// PutGroup makes the entries of a tag without members, which countTag has counted. uplink is its ifindex.
func (b *Tables) PutGroup(t endpoint.Tag, uplink uint32) error {
	for _, sets := range []*ebpf.Map{b.GroupPorts, b.GroupDevices} {
		set, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.DevMapHash, KeySize: 4, ValueSize: 4, MaxEntries: bpf.GroupPorts + 1})
		if err != nil {
			return fmt.Errorf("devices of a group: %w", err)
		}
		if sets == b.GroupDevices {
			err = set.Put(uplink, uplink)
		}
		if err = errors.Join(err, sets.Put(groupKey(t), uint32(set.FD())), set.Close()); err != nil {
			return fmt.Errorf("devices of a group: %w", err)
		}
	}
	return b.Groups.Put(groupKey(t), uint32(0))
}

// DeleteGroup undoes PutGroup and the count of the tag.
func (b *Tables) DeleteGroup(t endpoint.Tag) error {
	key := groupKey(t)
	return errors.Join(
		AbsentIsFine(b.Groups.Delete(key)),
		AbsentIsFine(b.GroupDevices.Delete(key)),
		AbsentIsFine(b.GroupPorts.Delete(key)),
		b.CountTag(t, -1),
	)
}

// inSet calls f with one of the sets of devices of a tag.
func inSet(sets *ebpf.Map, t endpoint.Tag, f func(*ebpf.Map) error) error {
	var set *ebpf.Map
	if err := sets.Lookup(groupKey(t), &set); err != nil {
		return fmt.Errorf("devices of a group: %w", err)
	}
	return errors.Join(f(set), set.Close())
}

// PutMember puts a port into both sets, first in that of the ports, and DeleteMember deletes it there last: a
// process that takes over reads that set.
func (b *Tables) PutMember(t endpoint.Tag, port uint32) error {
	put := func(set *ebpf.Map) error { return set.Put(port, port) }
	if err := inSet(b.GroupPorts, t, put); err != nil {
		return err
	}
	return inSet(b.GroupDevices, t, put)
}

// DeleteMember deletes a port from both sets.
func (b *Tables) DeleteMember(t endpoint.Tag, port uint32) error {
	erase := func(set *ebpf.Map) error { return AbsentIsFine(set.Delete(port)) }
	if err := inSet(b.GroupDevices, t, erase); err != nil {
		return err
	}
	return inSet(b.GroupPorts, t, erase)
}

// CountMembers tells the programs how many members, n, a group has.
func (b *Tables) CountMembers(t endpoint.Tag, n int) error {
	return b.Groups.Put(groupKey(t), uint32(n))
}

// AllGroups reads the tags of groups, with the ports that hold each.
func (b *Tables) AllGroups() (map[endpoint.Tag][]uint32, error) {
	list := map[endpoint.Tag][]uint32{}
	var key bpf.Tag6
	var id ebpf.MapID
	entries := b.GroupPorts.Iterate()
	for entries.Next(&key, &id) {
		addr, port := key.AddrPort()
		t := endpoint.UDPTag(netip.AddrPortFrom(netip.AddrFrom16(addr), port))
		list[t] = nil
		set, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, fmt.Errorf("devices of a group: %w", err)
		}
		var member, value uint32
		members := set.Iterate()
		for members.Next(&member, &value) {
			list[t] = append(list[t], member)
		}
		if err := errors.Join(members.Err(), set.Close()); err != nil {
			return nil, fmt.Errorf("devices of a group: %w", err)
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read the groups: %w", err)
	}
	return list, nil
}
