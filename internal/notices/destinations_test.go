package notices

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// A destination is behind the next hops from all sources, and behind each hop as long as one is not known. A
// changed hop makes one notice of a destination.
func TestDestinationsFromSeveralSources(t *testing.T) {
	addr := netip.MustParseAddr
	dst, other := addr("192.0.2.1"), addr("192.0.2.2")
	a, b, gw1, gw2, gw3 := addr("10.0.0.1"), addr("10.0.0.5"), addr("10.0.0.21"), addr("10.0.0.22"), addr("10.0.0.23")
	var d Destinations
	behind := func(hop netip.Addr, want ...endpoint.Notice) {
		t.Helper()
		if got := d.Behind(hop); !slices.Equal(got, want) {
			t.Errorf("behind %v: %v, want %v", hop, got, want)
		}
	}
	d.Note(a, dst, gw1)
	d.Note(b, dst, netip.Addr{})
	behind(gw3, routeTo(dst)) // from b
	d.Note(b, dst, gw2)
	d.Note(netip.Addr{}, dst, gw2)
	d.Note(a, other, gw3)
	behind(gw1, routeTo(dst))
	behind(gw2, routeTo(dst))
	behind(gw3, routeTo(other))
	d.Note(b, dst, gw3)
	d.Note(netip.Addr{}, dst, gw3)
	behind(gw2)
	if !d.Has(dst) || d.Has(gw1) {
		t.Error("Has another destination")
	}
	for range MaxDestinations - 4 { // 4 are noted
		d.Note(a, b, gw1)
		b = b.Next()
	}
	d.Note(a, dst, gw2)
	behind(gw1.Prev())
	d.Note(addr("10.0.0.9"), dst, gw2)
	behind(gw1.Prev(), endpoint.Notice{Kind: endpoint.NoticeRoute})
}
