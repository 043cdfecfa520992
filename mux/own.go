//go:build linux

package mux

import (
	"fmt"
	"net/netip"

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
	bits      int // of its subnet's prefix
	ifindex   int
	flags     int        // IFA_F_*
	broadcast netip.Addr // as configured; not valid if none is
}

// putOwn puts the addresses of the host and the broadcast addresses of the uplink into the map own. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) putOwn(own addresses) error {
	want, err := m.ownKinds(own)
	if nic.IsAbsent(err) {
		return nil // an interface has just gone, and another event follows
	}
	if err != nil {
		return err
	}
	others, err := m.progs.Maps.PutOwn(want)
	if others > 0 {
		m.log.Warn("the host has more addresses than the table of unetd has room for: packets from the wire whose source is one of the others are not recognized as false; delete addresses", "room", m.progs.Maps.Own.MaxEntries(), "others", others)
	}
	return err
}

// ownKinds returns what the map own is to have. Addresses count if their interface is in the VRF of the uplink, or, if
// the uplink is in none, in none. In a VRF endpoints do not reach the kernel of their host: lo is not in the VRF.
// m.mu is held.
//
// +checklocks:m.mu
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
