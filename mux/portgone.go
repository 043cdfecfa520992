package mux

import (
	"fmt"

	"github.com/unet-go/unet/internal/route"
)

// lookForPorts looks which endpoints have lost their port.
func (m *Mux) lookForPorts() error {
	leases := m.all() // before the ports are listed: those of later ones may not be in the list
	links, err := route.Dump(m.nl.LinkList)
	if err != nil {
		return fmt.Errorf("list ports: %w", err)
	}
	there := map[int]bool{}
	for _, l := range links {
		there[l.Attrs().Index] = true
	}
	m.portsGone(leases, func(port int) bool { return !there[port] })
	return nil
}

// portsGone ends the endpoints whose ports have gone, as is says of an ifindex.
func (m *Mux) portsGone(leases []*Lease, is func(port int) bool) {
	for _, l := range leases {
		if l.at.owner.Port != 0 && is(int(l.at.owner.Port)) {
			m.portGone(l)
		}
	}
}

// portGone ends an endpoint whose port is no more. If its socket is still there somebody
// has deleted the port. Otherwise the kernel has, because the socket was closed: that is
// the end of an endpoint that waits to be presented, and any other is its owner's to
// close.
func (m *Mux) portGone(l *Lease) {
	m.mu.Lock()
	o, leased := l.owner, l.leased
	held := false
	var err error
	if !l.closed { // after that, its slot is asked for elsewhere
		held, err = socketThere(m.progs.objs.PortSockets, l.at.slot, m.unbound)
	}
	m.mu.Unlock()
	switch {
	case err != nil:
		m.log.Error("cannot tell why a port is gone", "endpoint", l.id, "error", err)
		return
	case !leased && held:
		m.reclaim(l, "its port was deleted, not by unetd (ip link del?)")
		return
	case !leased:
		m.reclaim(l, "its process has died")
		return
	case !held:
		return
	}
	err = l.close(fmt.Errorf("%w: %s; open another endpoint", ErrPortDeleted, l.at.device))
	m.log.Warn("the port of an endpoint was deleted, not by unetd (ip link del?): the endpoint has ended", "port", l.at.device,
		"endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
}
