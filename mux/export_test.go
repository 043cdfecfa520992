package mux

import "github.com/vishvananda/netlink"

// LosePortPrograms does to a port what the death of the mux's process does:
// its programs go, the port stays.
func (l *Lease) LosePortPrograms() error { return l.at.closeLinks() }

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

// FailLinkDel lets no port be deleted until restore.
func (m *Mux) FailLinkDel(err error) (restore func()) {
	usual := m.linkDel
	m.linkDel = func(netlink.Link) error { return err }
	return func() { m.linkDel = usual }
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
