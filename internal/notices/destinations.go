package notices

import (
	"net/netip"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// MaxDestinations limits the destinations that are kept for a lease. A lease with more gets a
// notice about all routes for each change of a route.
const MaxDestinations = 1024

// Destinations are the destinations that a lease has resolved, with their next hops. The zero
// value is ready to use.
type Destinations struct {
	mu sync.Mutex
	// +checklocks:mu
	hops map[netip.Addr]netip.Addr // next hops by destination; not valid: not known yet
	// +checklocks:mu
	overflow bool // there were more than MaxDestinations
}

// Note records the next hop of a destination, which the caller has checked
// (endpoint.CheckDestination). If hop is not valid it is not known yet, so the change of any hop
// may concern the destination.
func (d *Destinations) Note(dst, hop netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.hops[dst]; !known && len(d.hops) == MaxDestinations {
		d.overflow = true
		return
	}
	if d.hops == nil {
		d.hops = map[netip.Addr]netip.Addr{}
	}
	d.hops[dst] = hop
}

// Behind returns the notices about a changed hop: one for each destination behind it, or one
// for all routes.
func (d *Destinations) Behind(hop netip.Addr) (list []endpoint.Notice) {
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

// Has reports whether the destination may have been resolved.
func (d *Destinations) Has(dst netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.hops[dst]
	return known || d.overflow
}
