package netlab

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// UseCongestion makes the host's kernel use a congestion control for all TCP
// connections that are opened over the cable from now on. It is an attribute of the
// routes: the sysctl of a namespace takes only what the machine allows everybody.
func (h *Host) UseCongestion(name string) error {
	err := h.Do(func() error {
		link, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		if len(routes) == 0 {
			return errors.New("no routes")
		}
		for _, r := range routes {
			if r.Dst != nil && r.Dst.IP.IsMulticast() {
				continue
			}
			r.Congctl = name
			if err := netlink.RouteReplace(&r); err != nil {
				return fmt.Errorf("route %v: %w", r.Dst, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("congestion control %s on host %s: %w", name, h.Name, err)
	}
	return nil
}
