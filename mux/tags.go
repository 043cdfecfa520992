package mux

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
)

// The kernel's tag table is two maps, one of tags with an IPv6 address and one
// of all others. Here is the only place that knows their keys.

// putTag makes a tag effective: from now on its frames are o's.
func (m *Mux) putTag(t endpoint.Tag, o bpf.Owner) error {
	key, table := m.tableOf(t)
	err := table.Update(key, o, ebpf.UpdateNoExist)
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: it has room for %d", ErrTableFull, table.MaxEntries())
	}
	if err == nil && t.Kind == endpoint.TagAddr {
		m.moved.add(t.Addr) // it is behind the uplink's own link address now
	}
	return err
}

// setEffect suspends a tag that stands in the table, or puts it into effect. Either is one
// write, so a process that dies meanwhile leaves the one or the other.
func (m *Mux) setEffect(t endpoint.Tag, o bpf.Owner, effective bool) error {
	key, table := m.tableOf(t)
	return table.Update(key, o.WithEffect(effective), ebpf.UpdateExist)
}

// deleteTag takes a tag out. One that is not there is no error.
func (m *Mux) deleteTag(t endpoint.Tag) error {
	key, table := m.tableOf(t)
	if err := absentIsFine(table.Delete(key)); err != nil {
		return err
	}
	if t.Kind == endpoint.TagAddr {
		m.moved.add(t.Addr)
	}
	return nil
}

// tableOf is where a tag stands in the kernel's table. Its address is unmapped.
func (m *Mux) tableOf(t endpoint.Tag) (key any, table *ebpf.Map) {
	if t.Kind == endpoint.TagMessage {
		return bpf.MessageKey(t.Message), m.progs.objs.Tags
	}
	if t.Addr.Is4() {
		return bpf.Key(kindOf(t), t.Addr.As4(), t.Port), m.progs.objs.Tags
	}
	return bpf.Key6(kindOf(t), t.Addr.As16(), t.Port), m.progs.objs.Tags6
}

// kindOf is the kind in the key of a tag that has an address.
func kindOf(t endpoint.Tag) bpf.TagKind {
	switch {
	case t.Kind == endpoint.TagUDP && t.Block:
		return bpf.TagUDPBlock
	case t.Kind == endpoint.TagUDP:
		return bpf.TagUDP
	case t.Kind == endpoint.TagTCP && t.Block:
		return bpf.TagTCPBlock
	case t.Kind == endpoint.TagTCP:
		return bpf.TagTCP
	}
	return bpf.TagAddr
}

// tagOf is the inverse of kindOf, for the address and port of the key.
func tagOf(kind bpf.TagKind, addr netip.Addr, port uint16) endpoint.Tag {
	ap := netip.AddrPortFrom(addr, port)
	switch kind {
	case bpf.TagUDP:
		return endpoint.UDPTag(ap)
	case bpf.TagUDPBlock:
		return endpoint.UDPTag(ap).AsBlock()
	case bpf.TagTCP:
		return endpoint.TCPTag(ap)
	case bpf.TagTCPBlock:
		return endpoint.TCPTag(ap).AsBlock()
	}
	return endpoint.AddrTag(addr)
}

// tagsInKernel reads the whole table, suspended tags included. Nobody may change it
// meanwhile.
func tagsInKernel(objs *bpf.MuxObjects) (map[endpoint.Tag]bpf.Owner, error) {
	list := map[endpoint.Tag]bpf.Owner{}
	var key bpf.Tag
	var key6 bpf.Tag6
	var owner bpf.Owner
	entries := objs.Tags.Iterate()
	for entries.Next(&key, &owner) {
		if key.Kind == bpf.TagMessage {
			list[endpoint.MessageTag(key.Message())] = owner
			continue
		}
		addr, port := key.AddrPort()
		list[tagOf(key.Kind, netip.AddrFrom4(addr), port)] = owner
	}
	entries6 := objs.Tags6.Iterate()
	for entries6.Next(&key6, &owner) {
		addr, port := key6.AddrPort()
		list[tagOf(key6.Kind, netip.AddrFrom16(addr), port)] = owner
	}
	if err := errors.Join(entries.Err(), entries6.Err()); err != nil {
		return nil, fmt.Errorf("read the tag table: %w", err)
	}
	return list, nil
}
