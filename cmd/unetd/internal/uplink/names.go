//go:build linux

package uplink

import "github.com/vishvananda/netlink"

// Names returns the name of an interface of this thread's network namespace, and its alternative
// names (ip link property add altname). name can be any of them. If there is no such interface it
// returns name.
func Names(name string) (own string, alternative []string) {
	l, err := netlink.LinkByName(name)
	if name == "" || err != nil {
		return name, nil
	}
	return l.Attrs().Name, l.Attrs().AltNames
}
