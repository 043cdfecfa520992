//go:build linux

package mux

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/steer"
)

// claim is the holder and the state of a held tag.
type claim struct {
	by *Lease
	// reserved are descriptors of sockets: one for each port of an address of the host (64
	// for a block), and one for an owned IPv6 address. A message tag, an owned IPv4 address
	// and a port of an owned address have none.
	reserved []int
	rules    []steer.Rule // that lead its frames to its endpoint's queue (steering.go)
	// suspended: the uplink does not have the tag's address now, so the tag is not in
	// effect (addresses.go).
	suspended bool
}

// sharesAddress reports whether t, the tag of the claim, is of ports of an address of the host.
func (c *claim) sharesAddress(t endpoint.Tag) bool { return hasPorts(t) && len(c.reserved) > 0 }

// letGo closes the reserving sockets.
func (c *claim) letGo() error {
	err := closeAll(c.reserved)
	c.reserved = nil
	return err
}

func closeAll(fds []int) error {
	var err error
	for _, fd := range fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// claimTable is all tags that are held. Lookups take constant time. Its zero value is ready
// for use.
type claimTable struct {
	held     map[endpoint.Tag]*claim
	onAddr   map[netip.Addr]int       // by address: number of held ports and blocks of it
	reserved map[endpoint.TagKind]int // by kind of tag: number of reserving sockets
}

// ofTCP returns the claim that covers a TCP port: of the port, its block or its owned address;
// nil: there is none.
func (ct *claimTable) ofTCP(ap netip.AddrPort) *claim {
	port := endpoint.TCPTag(ap)
	for _, t := range [...]endpoint.Tag{port, port.AsBlock(), endpoint.AddrTag(ap.Addr())} {
		if c := ct.held[t]; c != nil {
			return c
		}
	}
	return nil
}

// inEffect is the set of a lease's tags that are not suspended.
func (ct *claimTable) inEffect(l *Lease) map[endpoint.Tag]bool {
	set := map[endpoint.Tag]bool{}
	for t := range l.tags {
		if c := ct.held[t]; c != nil && !c.suspended { // nil: a group
			set[t] = true
		}
	}
	return set
}

// sorted lists tags by kind, address, port and message tag.
func sorted(tags map[endpoint.Tag]struct{}) []endpoint.Tag {
	return slices.SortedFunc(maps.Keys(tags), func(a, b endpoint.Tag) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Message, b.Message))
	})
}

// sockets is the number of reserving sockets of all tags.
func (ct *claimTable) sockets() (n int) {
	for _, of := range ct.reserved {
		n += of
	}
	return n
}

// add enters a tag that is not in the table.
func (ct *claimTable) add(t endpoint.Tag, c *claim) {
	if ct.held == nil {
		*ct = claimTable{held: map[endpoint.Tag]*claim{}, onAddr: map[netip.Addr]int{}, reserved: map[endpoint.TagKind]int{}}
	}
	ct.held[t] = c
	c.by.tags[t] = struct{}{}
	ct.reserved[t.Kind] += len(c.reserved)
	if hasPorts(t) {
		ct.onAddr[t.Addr]++
	}
}

// remove removes a tag that is in the table.
func (ct *claimTable) remove(t endpoint.Tag) {
	c := ct.held[t]
	delete(ct.held, t)
	delete(c.by.tags, t)
	ct.reserved[t.Kind] -= len(c.reserved)
	if hasPorts(t) {
		if ct.onAddr[t.Addr]--; ct.onAddr[t.Addr] == 0 {
			delete(ct.onAddr, t.Addr)
		}
	}
}

// free returns nil if neither t, a tag without wildcards, nor a port or block that overlaps
// with it is held, else endpoint.ErrTagHeld. It does not check who holds the address of t.
func (ct *claimTable) free(l *Lease, t endpoint.Tag) error {
	if c := ct.held[t]; c != nil && c.by == l {
		return held(t, "this endpoint holds it already")
	} else if c != nil && c.by.owner.UID == l.owner.UID {
		return held(t, "endpoint %d of process %d of the same user holds it, also for connections of a listener that is closed: end these, or choose another", c.by.id, c.by.owner.PID)
	} else if c != nil {
		return held(t, "an endpoint of another user holds it: choose another, or end that one")
	}
	switch {
	case !hasPorts(t):
	case t.Block:
		if n := ct.inBlock(t); n > 0 {
			return held(t, "%d of its ports are held one by one: choose another block", n)
		}
	case ct.held[t.AsBlock()] != nil:
		return held(t, "it is in the block %v, which is held: choose another port", t.AsBlock())
	}
	return nil
}

// inBlock is the number of ports of a block that are held one by one.
func (ct *claimTable) inBlock(block endpoint.Tag) (n int) {
	t := block
	t.Block = false
	for range endpoint.BlockPorts {
		if ct.held[t] != nil {
			n++
		}
		t.Port++
	}
	return n
}

// letGo closes all reserving sockets and empties the table. The kernel's tag table stays as it
// is.
func (ct *claimTable) letGo() error {
	var err error
	for _, c := range ct.held {
		clear(c.by.tags)
		err = errors.Join(err, c.letGo())
	}
	*ct = claimTable{}
	return err
}

// The kernel's tag table is two maps, one of tags with an IPv6 address and one of all others.
// Only the functions below use their keys.

// putTag enters a tag: from now on its frames go to o.
func (m *Mux) putTag(t endpoint.Tag, o bpf.Owner) error {
	if t.Kind == endpoint.TagAddr {
		if err := m.enterOwned(t.Addr); err != nil {
			return err
		}
	}
	if err := m.countTag(t, 1); err != nil {
		return err
	}
	key, table := m.tableOf(t)
	err := table.Update(key, o, ebpf.UpdateNoExist)
	if err != nil {
		err = errors.Join(err, m.countTag(t, -1))
		if t.Kind == endpoint.TagAddr {
			err = errors.Join(err, m.eraseOwned(t.Addr))
		}
	}
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: it has room for %d", ErrTableFull, table.MaxEntries())
	}
	if err == nil && t.Kind == endpoint.TagAddr {
		m.ownerChanged(t.Addr) // its MAC address is the uplink's now
	}
	return err
}

// setEffect suspends a tag that is in the table, or puts it into effect, by one write.
func (m *Mux) setEffect(t endpoint.Tag, o bpf.Owner, effective bool) error {
	key, table := m.tableOf(t)
	return table.Update(key, o.WithEffect(effective), ebpf.UpdateExist)
}

// deleteTag deletes a tag. A tag that is not in the table is not an error.
func (m *Mux) deleteTag(t endpoint.Tag) error {
	key, table := m.tableOf(t)
	if err := table.Delete(key); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := m.countTag(t, -1); err != nil {
		return err
	}
	if t.Kind == endpoint.TagAddr {
		m.ownerChanged(t.Addr)
		return m.eraseOwned(t.Addr)
	}
	return nil
}

// countTag adds n to the tag count of t. A count that is too large costs the kernel's frames a look-up; one
// that is too small would hide tags from the programs.
func (m *Mux) countTag(t endpoint.Tag, n int) error {
	if t.Kind == endpoint.TagMessage {
		return nil
	}
	index, counts := bpf.CountOf(kindOf(t), t.Port), m.progs.maps.TagCounts
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

// recount sets all tag counts to those of the tags, which are all in the tables.
func (m *Mux) recount(lists ...iter.Seq[endpoint.Tag]) error {
	counts := make([]uint32, bpf.TagCounts)
	for _, tags := range lists {
		for t := range tags {
			if t.Kind != endpoint.TagMessage {
				counts[bpf.CountOf(kindOf(t), t.Port)]++
			}
		}
	}
	for i, n := range counts {
		var old uint32
		err := m.progs.maps.TagCounts.Lookup(uint32(i), &old)
		if err == nil && old != n {
			err = m.progs.maps.TagCounts.Put(uint32(i), n)
		}
		if err != nil {
			return fmt.Errorf("tag count %d: %w", i, err)
		}
	}
	return nil
}

// tableOf is the map and the key of a tag, whose address is unmapped.
func (m *Mux) tableOf(t endpoint.Tag) (key any, table *ebpf.Map) {
	if t.Kind == endpoint.TagMessage {
		return bpf.MessageKey(t.Message), m.progs.maps.Tags
	}
	if t.Addr.Is4() {
		return bpf.Key(kindOf(t), t.Addr.As4(), t.Port), m.progs.maps.Tags
	}
	return bpf.Key6(kindOf(t), t.Addr.As16(), t.Port), m.progs.maps.Tags6
}

// kinds are the tags with an address by the kind in their key; their other fields are left out.
var kinds = map[bpf.TagKind]endpoint.Tag{
	bpf.TagUDP:      {Kind: endpoint.TagUDP},
	bpf.TagUDPBlock: {Kind: endpoint.TagUDP, Block: true},
	bpf.TagTCP:      {Kind: endpoint.TagTCP},
	bpf.TagTCPBlock: {Kind: endpoint.TagTCP, Block: true},
	bpf.TagAddr:     {Kind: endpoint.TagAddr},
}

// kindOf is the kind in the key of a tag with an address.
func kindOf(t endpoint.Tag) bpf.TagKind {
	for kind, like := range kinds {
		if t.Kind == like.Kind && t.Block == like.Block {
			return kind
		}
	}
	panic(fmt.Sprintf("BUG: no key for %v", t))
}

// tagOf is the inverse of kindOf, for the address and port of the key. The table may be one that
// another program has written.
func tagOf(kind bpf.TagKind, addr netip.Addr, port uint16) (endpoint.Tag, error) {
	t, known := kinds[kind]
	if !known {
		return t, fmt.Errorf("the tag table has a tag of the unknown kind %d: remove it (unetd cleanup --force)", kind)
	}
	t.Addr, t.Port = addr, port
	return t, nil
}

// tagsInKernel reads the whole table, with suspended tags. The table must not change during
// the call.
func tagsInKernel(tables *bpf.MuxMaps) (map[endpoint.Tag]bpf.Owner, error) {
	list := map[endpoint.Tag]bpf.Owner{}
	var key bpf.Tag
	var key6 bpf.Tag6
	var owner bpf.Owner
	entries := tables.Tags.Iterate()
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
	entries6 := tables.Tags6.Iterate()
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
