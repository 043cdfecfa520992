package mux

import (
	"net/netip"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// maxResolved bounds the destinations that are kept for a lease. Beyond it every change of
// a route is told as one of all routes.
const maxResolved = 1024

// destinations are those that a lease has resolved, and by which next hop.
type destinations struct {
	mu       sync.Mutex
	hops     map[netip.Addr]netip.Addr // by destination; not valid: not known yet
	overflow bool                      // there were more than maxResolved
}

// note notes by which hop a destination is reached; one that is not valid is not known yet,
// so any change may concern the destination.
func (d *destinations) note(dst, hop netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.hops[dst]; !known && len(d.hops) == maxResolved {
		d.overflow = true
		return
	}
	if d.hops == nil {
		d.hops = map[netip.Addr]netip.Addr{}
	}
	d.hops[dst] = hop
}

// behind lists the notices of a change of a hop.
func (d *destinations) behind(hop netip.Addr) (list []endpoint.Notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.overflow || !hop.IsValid() {
		return []endpoint.Notice{{Kind: endpoint.NoticeRoute}}
	}
	for dst, by := range d.hops {
		if by == hop || !by.IsValid() {
			list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: dst})
		}
	}
	return list
}

// has reports whether the destination may have been resolved.
func (d *destinations) has(dst netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.hops[dst]
	return known || d.overflow
}

// hopChanged tells every lease that the route by a next hop has changed; one that is not
// valid stands for all.
func (m *Mux) hopChanged(hop netip.Addr) {
	for _, l := range m.all() {
		l.watchers.Tell(l.resolved.behind(hop)...)
	}
}

// ownerChanged tells every lease that a whole address has got or lost its owner. m.mu is held.
func (m *Mux) ownerChanged(addr netip.Addr) {
	for _, l := range m.leases {
		if l.resolved.has(addr) {
			l.watchers.Tell(endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: addr})
		}
	}
}

// tellLink tells the lease whether the uplink is down.
func (l *Lease) tellLink(down bool) {
	kind := endpoint.NoticeLinkUp
	if down {
		kind = endpoint.NoticeLinkDown
	}
	l.watchers.Tell(endpoint.Notice{Kind: kind})
}
