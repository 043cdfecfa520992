package mux

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
)

// LosePortProgram takes the program off a port's outer end.
func (l *Lease) LosePortProgram() error {
	return setXDP(l.m.rt, int(l.at.owner.Port), -1, l.m.progs.attachFlag())
}

// Trust undoes distrust, to show that it is what protects.
func Trust(iface string) error {
	return setIPv4(iface, map[string]string{"rp_filter": "0", "drop_unicast_in_l2_multicast": "0"})
}

// HoldProbes lets no probe begin until release.
func (m *Mux) HoldProbes() (release func()) {
	for range cap(m.probes) {
		m.probes <- struct{}{}
	}
	return func() {
		for range cap(m.probes) {
			<-m.probes
		}
	}
}

// HideFillRings has muxes that are opened find that the kernel does not show fill
// rings, until restore.
func HideFillRings() (restore func()) {
	before := fillFields
	fillFields = append(slices.Clip(fillFields), "xsk_queue.none")
	return func() { fillFields = before }
}

// LeaveFillRings ends the look at the fill rings of all endpoints that are there.
func (m *Mux) LeaveFillRings() (err error) {
	for _, l := range m.all() {
		err = errors.Join(err, m.fills.remove(l))
	}
	return err
}

// FailDeletions lets no port be deleted until restore.
func (m *Mux) FailDeletions(err error) (restore func()) {
	replace := func(del func(netlink.Link) error) (before func(netlink.Link) error) {
		m.reaper.mu.Lock()
		defer m.reaper.mu.Unlock()
		before, m.reaper.linkDel = m.reaper.linkDel, del
		return before
	}
	usual := replace(func(netlink.Link) error { return err })
	return func() { replace(usual) }
}

// CloseTags makes every change of the tag table fail.
func (m *Mux) CloseTags() error { return m.progs.objs.Tags.Close() }

// TagTableSize is how many tags can be claimed.
func (m *Mux) TagTableSize() int { return int(m.progs.objs.Tags.MaxEntries()) }

// Aside is how many whole addresses are being claimed.
func (m *Mux) Aside() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.aside)
}

// MaxResolved is how many destinations are kept for a lease.
const MaxResolved = maxResolved
