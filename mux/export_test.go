package mux

// LosePortPrograms does to a port what the death of the mux's process does:
// its programs go, the port stays.
func (l *Lease) LosePortPrograms() error { return l.at.closeLinks() }

// Trust undoes distrust, to show that it is what protects.
func Trust(iface string) error {
	return setIPv4(iface, map[string]string{"rp_filter": "0", "drop_unicast_in_l2_multicast": "0"})
}
