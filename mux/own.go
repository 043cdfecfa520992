//go:build linux

package mux

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/nic"
)

// The programs know the addresses of the host (bpf/src/own.h): at those of the uplink endpoints reach the
// kernel of their own host, a broadcast needs a tag, and no packet from the wire can have one of
// them as its source.

// hostAddr is an address of an interface of the host.
type hostAddr struct {
	netip.Addr
	ifindex   int
	flags     int        // IFA_F_*
	broadcast netip.Addr // as configured; not valid if none is
}

// enterOwn enters the addresses of the host and the broadcast addresses of the uplink in the map own. m.mu is held.
func (m *Mux) enterOwn(own addresses) error {
	want, err := m.ownKinds(own)
	if nic.IsAbsent(err) {
		return nil // an interface has just gone, and another event follows
	}
	if err != nil {
		return err
	}
	maps := &m.progs.maps
	var gone [][16]byte
	var both, filter bpf.OwnFilter // of the former and the new addresses, and of the new ones
	for a, kind := range want {
		both.Add(a, kind)
		filter.Add(a, kind)
	}
	var key [16]byte
	var kind uint8
	entries := maps.Own.Iterate()
	for entries.Next(&key, &kind) {
		both.Add(key, kind)
		if want[key] == 0 {
			gone = append(gone, key)
		}
		if want[key] == kind {
			delete(want, key)
		}
	}
	err = errors.Join(entries.Err(), maps.OwnFilters.Put(uint32(0), both))
	for _, a := range gone {
		err = errors.Join(err, maps.Own.Delete(a))
	}
	others := 0
	for _, last := range []bool{false, true} { // if they are too many, those of other interfaces are left out
		for a, kind := range want {
			if last != (kind == bpf.OwnHost) {
				continue
			}
			if perr := maps.Own.Put(a, kind); errors.Is(perr, unix.E2BIG) {
				others++
			} else {
				err = errors.Join(err, perr)
			}
		}
	}
	if others > 0 {
		m.log.Warn("the host has more addresses than the table of unetd has room for: packets from the wire whose source is one of the others are not recognized as false; delete addresses", "room", maps.Own.MaxEntries(), "others", others)
	}
	if err = errors.Join(err, maps.OwnFilters.Put(uint32(0), filter)); err != nil {
		return fmt.Errorf("addresses of the host: %w", err)
	}
	return nil
}

// enterOwned enters an owned address in the map own, before its tag is in effect. The filter permits look-ups of a
// deleted address until the next enterOwn. m.mu is held.
func (m *Mux) enterOwned(a netip.Addr) error {
	maps := &m.progs.maps
	var filter bpf.OwnFilter
	if err := maps.OwnFilters.Lookup(uint32(0), &filter); err != nil {
		return fmt.Errorf("addresses of the host: %w", err)
	}
	filter.Add(a.As16(), bpf.OwnEndpoint)
	err := maps.OwnFilters.Put(uint32(0), filter)
	if err == nil {
		err = maps.Own.Update(a.As16(), bpf.OwnEndpoint, ebpf.UpdateNoExist)
	}
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: the addresses of the host leave no room for owned ones, of %d: ask an operator to delete some", ErrTableFull, maps.Own.MaxEntries())
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) { // ErrKeyExist: the host has just taken it
		return fmt.Errorf("addresses of the host: %w", err)
	}
	return nil
}

// eraseOwned deletes an owned address from the map own, unless the host has taken it. m.mu is held.
func (m *Mux) eraseOwned(a netip.Addr) error {
	var kind uint8
	if err := m.progs.maps.Own.Lookup(a.As16(), &kind); err != nil || kind != bpf.OwnEndpoint {
		return absentIsFine(err)
	}
	return m.progs.maps.Own.Delete(a.As16())
}

// ownKinds returns what the map own is to have. Addresses count if their interface is in the VRF of the uplink, or, if
// the uplink is in none, in none. In a VRF endpoints do not reach the kernel of their host: lo is not in the VRF.
func (m *Mux) ownKinds(own addresses) (map[[16]byte]uint8, error) {
	vrf, err := m.vrfOf(m.up.Index)
	if err != nil {
		return nil, err
	}
	kinds, vrfs := map[[16]byte]uint8{}, map[int]int{m.up.Index: vrf}
	for _, a := range own.host {
		switch {
		case a.flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0: // another host may have it
			continue
		case a.IsLinkLocalUnicast() && a.Is6() && a.ifindex != m.up.Index: // another host of the uplink's link may have it
			continue
		}
		of, known := vrfs[a.ifindex]
		if !known {
			if of, err = m.vrfOf(a.ifindex); err != nil {
				return nil, err
			}
			vrfs[a.ifindex] = of
		}
		if of == vrf {
			kinds[a.As16()] = bpf.OwnHost
		}
	}
	for _, p := range own.uplink {
		if a := p.Addr(); vrf == 0 && (a.Is4() || !a.IsLinkLocalUnicast()) {
			kinds[a.As16()] = bpf.OwnAddress
		}
	}
	for t := range m.tags.held {
		if t.Kind == endpoint.TagAddr && kinds[t.Addr.As16()] == 0 { // else the host has taken it
			kinds[t.Addr.As16()] = bpf.OwnEndpoint
		}
	}
	for _, a := range own.broadcasts(m.up.Index) {
		if kinds[a.As16()] == 0 { // else it is an address of a larger subnet, too
			kinds[a.As16()] = bpf.OwnBroadcast
		}
	}
	return kinds, nil
}

// vrfOf returns the ifindex of the VRF that an interface is in; 0: it is in none.
func (m *Mux) vrfOf(ifindex int) (int, error) {
	l, err := m.nl.LinkByIndex(ifindex)
	if err == nil && l.Type() != "vrf" && l.Attrs().MasterIndex != 0 {
		l, err = m.nl.LinkByIndex(l.Attrs().MasterIndex)
	}
	if err != nil {
		return 0, fmt.Errorf("interface %d: %w", ifindex, err)
	}
	if l.Type() != "vrf" {
		return 0, nil
	}
	return l.Attrs().Index, nil
}

// broadcasts are the broadcast addresses of the uplink: of its IPv4 subnets, and those that were configured with an
// address (ip addr add ... brd).
func (own *addresses) broadcasts(uplink int) (list []netip.Addr) {
	for _, p := range own.uplink {
		if p.Addr().Is4() && p.Bits() < 31 {
			list = append(list, broadcast(p))
		}
	}
	for _, a := range own.host {
		if a.ifindex == uplink && a.broadcast.Is4() && !a.broadcast.IsUnspecified() && a.broadcast != limitedBroadcast {
			list = append(list, a.broadcast)
		}
	}
	return list
}
