//go:build linux

package tables

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
)

// The kernel's tag table is two maps, one of tags with an IPv6 address and one of all others.
// Only this file uses their keys.

// PutTag puts a tag into the table: from now on its frames go to o.
func (b *Tables) PutTag(t endpoint.Tag, o bpf.Owner) error {
	if t.Kind == endpoint.TagAddr {
		if err := b.putOwned(t.Addr); err != nil {
			return err
		}
	}
	if err := b.CountTag(t, 1); err != nil {
		return err
	}
	key, table := b.tableOf(t)
	err := table.Update(key, o, ebpf.UpdateNoExist)
	if err != nil {
		err = errors.Join(err, b.CountTag(t, -1))
		if t.Kind == endpoint.TagAddr {
			err = errors.Join(err, b.deleteOwned(t.Addr))
		}
	}
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: it has room for %d", ErrFull, table.MaxEntries())
	}
	return err
}

// SetEffect suspends a tag that is in the table, or puts it into effect, by one write.
func (b *Tables) SetEffect(t endpoint.Tag, o bpf.Owner, effective bool) error {
	key, table := b.tableOf(t)
	return table.Update(key, o.WithEffect(effective), ebpf.UpdateExist)
}

// DeleteTag deletes a tag. A tag that is not in the table is not an error. deleted is true if this call has deleted
// it, also if what belongs to it could not be brought up to date.
func (b *Tables) DeleteTag(t endpoint.Tag) (deleted bool, err error) {
	key, table := b.tableOf(t)
	if err := table.Delete(key); errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	err = b.CountTag(t, -1)
	if t.Kind == endpoint.TagAddr {
		err = errors.Join(err, b.deleteOwned(t.Addr))
	}
	return true, err
}

// CountTag adds n to the tag count of t. A count that is too large costs the kernel's frames a look-up; one
// that is too small would hide tags from the programs.
func (b *Tables) CountTag(t endpoint.Tag, n int) error {
	if t.Kind == endpoint.TagMessage {
		return nil
	}
	index, counts := bpf.CountOf(KindOf(t), t.Port), b.TagCounts
	var count uint32
	err := counts.Lookup(index, &count)
	if err == nil {
		err = counts.Put(index, count+uint32(n))
	}
	if err != nil {
		return fmt.Errorf("tag count %d: %w", index, err)
	}
	return nil
}

// Recount sets all tag counts to those of the tags, which are all in the tables.
func (b *Tables) Recount(lists ...iter.Seq[endpoint.Tag]) error {
	counts := make([]uint32, bpf.TagCounts)
	for _, tags := range lists {
		for t := range tags {
			if t.Kind != endpoint.TagMessage {
				counts[bpf.CountOf(KindOf(t), t.Port)]++
			}
		}
	}
	for i, n := range counts {
		var old uint32
		err := b.TagCounts.Lookup(uint32(i), &old)
		if err == nil && old != n {
			err = b.TagCounts.Put(uint32(i), n)
		}
		if err != nil {
			return fmt.Errorf("tag count %d: %w", i, err)
		}
	}
	return nil
}

// tableOf is the map and the key of a tag, whose address is unmapped.
func (b *Tables) tableOf(t endpoint.Tag) (key any, table *ebpf.Map) {
	if t.Kind == endpoint.TagMessage {
		return bpf.MessageKey(t.Message), b.Tags
	}
	if t.Addr.Is4() {
		return bpf.Key(KindOf(t), t.Addr.As4(), t.Port), b.Tags
	}
	return bpf.Key6(KindOf(t), t.Addr.As16(), t.Port), b.Tags6
}

// kinds are the tags with an address by the kind in their key; their other fields are left out.
var kinds = map[bpf.TagKind]endpoint.Tag{
	bpf.TagUDP:      {Kind: endpoint.TagUDP},
	bpf.TagUDPBlock: {Kind: endpoint.TagUDP, Block: true},
	bpf.TagTCP:      {Kind: endpoint.TagTCP},
	bpf.TagTCPBlock: {Kind: endpoint.TagTCP, Block: true},
	bpf.TagAddr:     {Kind: endpoint.TagAddr},
}

// KindOf is the kind in the key of a tag with an address.
func KindOf(t endpoint.Tag) bpf.TagKind {
	for kind, like := range kinds {
		if t.Kind == like.Kind && t.Block == like.Block {
			return kind
		}
	}
	panic(fmt.Sprintf("BUG: no key for %v", t))
}

// tagOf is the inverse of KindOf, for the address and port of the key. The table may be one that
// another program has written.
func tagOf(kind bpf.TagKind, addr netip.Addr, port uint16) (endpoint.Tag, error) {
	t, known := kinds[kind]
	if !known {
		return t, fmt.Errorf("the tag table has a tag of the unknown kind %d: remove it (unetd cleanup --force)", kind)
	}
	t.Addr, t.Port = addr, port
	return t, nil
}

// AllTags reads the whole table, with suspended tags. The table must not change during
// the call.
func (b *Tables) AllTags() (map[endpoint.Tag]bpf.Owner, error) {
	list := map[endpoint.Tag]bpf.Owner{}
	var key bpf.Tag
	var key6 bpf.Tag6
	var owner bpf.Owner
	entries := b.Tags.Iterate()
	for entries.Next(&key, &owner) {
		if key.Kind == bpf.TagMessage {
			list[endpoint.MessageTag(key.Message())] = owner
			continue
		}
		addr, port := key.AddrPort()
		t, err := tagOf(key.Kind, netip.AddrFrom4(addr), port)
		if err != nil {
			return nil, err
		}
		list[t] = owner
	}
	entries6 := b.Tags6.Iterate()
	for entries6.Next(&key6, &owner) {
		addr, port := key6.AddrPort()
		t, err := tagOf(key6.Kind, netip.AddrFrom16(addr), port)
		if err != nil {
			return nil, err
		}
		list[t] = owner
	}
	if err := errors.Join(entries.Err(), entries6.Err()); err != nil {
		return nil, fmt.Errorf("read the tag table: %w", err)
	}
	return list, nil
}
