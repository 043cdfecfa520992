//go:build linux

package mux

import (
	"net/netip"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// maxResolved limits the destinations that are kept for a lease. A lease with more gets a
// notice about all routes for each change of a route.
const maxResolved = 1024

// destinations are the destinations that a lease has resolved, with their next hops.
type destinations struct {
	mu       sync.Mutex
	hops     map[netip.Addr]netip.Addr // next hops by destination; not valid: not known yet
	overflow bool                      // there were more than maxResolved
}

// note records the next hop of a destination. If hop is not valid it is not known yet, so the
// change of any hop may concern the destination.
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

// behind returns the notices about a changed hop: one for each destination behind it, or one
// for all routes.
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

// hopChanged sends notices to the leases that have resolved destinations behind a next hop
// that has changed. A hop that is not valid stands for all.
func (m *Mux) hopChanged(hop netip.Addr) {
	for _, l := range m.all() {
		l.watchers.Tell(l.resolved.behind(hop)...)
	}
}

// ownerChanged sends a notice to each lease that has resolved an owned address that was claimed
// or given back. m.mu is held.
func (m *Mux) ownerChanged(addr netip.Addr) {
	for _, l := range m.leases {
		if l.resolved.has(addr) {
			l.watchers.Tell(endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: addr})
		}
	}
}

// tellLink sends the lease a notice about the state of the uplink.
func (l *Lease) tellLink(down bool) {
	kind := endpoint.NoticeLinkUp
	if down {
		kind = endpoint.NoticeLinkDown
	}
	l.watchers.Tell(endpoint.Notice{Kind: kind})
}
