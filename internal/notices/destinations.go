package notices

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// MaxDestinations limits the pairs of source and destination that are kept for a lease. A lease with
// more gets a notice about all routes for each change of a route.
const MaxDestinations = 1024

// Destinations are the destinations that a lease has resolved, with their next hops. The zero
// value is ready to use.
type Destinations struct {
	mu sync.Mutex
	// +checklocks:mu
	hops map[netip.Addr][]nextHop // by destination
	// +checklocks:mu
	count int // nextHops of all destinations
	// +checklocks:mu
	overflow bool // there were more than MaxDestinations
}

// nextHop is the next hop of packets from src; not valid: not known yet.
type nextHop struct{ src, hop netip.Addr }

// Note records the next hop of packets from src to dst, which the caller has checked. If hop is not
// valid it is not known yet, so the change of any hop may concern the destination.
func (d *Destinations) Note(src, dst, hop netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	hops := d.hops[dst]
	switch i := slices.IndexFunc(hops, func(n nextHop) bool { return n.src == src }); {
	case i >= 0:
		hops[i].hop = hop
	case d.count == MaxDestinations:
		d.overflow = true
	default:
		if d.hops == nil {
			d.hops = map[netip.Addr][]nextHop{}
		}
		d.hops[dst] = append(hops, nextHop{src, hop})
		d.count++
	}
}

// Behind returns the notices about a changed hop: one for each destination behind it, from any
// source, or one for all routes.
func (d *Destinations) Behind(hop netip.Addr) (list []endpoint.Notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.overflow || !hop.IsValid() {
		return []endpoint.Notice{{Kind: endpoint.NoticeRoute}}
	}
	for dst, hops := range d.hops {
		if slices.ContainsFunc(hops, func(n nextHop) bool { return n.hop == hop || !n.hop.IsValid() }) {
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
