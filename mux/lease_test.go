package mux_test

import (
	"net/netip"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// A whole address of this host is behind the uplink, from an address of its own
// family.
func TestResolveWholeAddresses(t *testing.T) {
	l := openLab6(t)
	v4, v6 := netip.MustParseAddr("10.0.0.77"), netip.MustParseAddr("fd00::77")
	l.open(endpoint.AddrTag(v4), endpoint.AddrTag(v6))
	a := l.open()
	for dst, source := range map[netip.Addr]string{v4: "10.0.0.1", v6: "fd00::1"} {
		r, err := a.lease.Resolve(t.Context(), dst)
		if want := (endpoint.Route{Source: netip.MustParseAddr(source), NextHop: dst, LinkAddr: l.A.LinkAddr, MTU: 1500}); err != nil || r != want {
			t.Errorf("%v: %+v, %v", dst, r, err)
		}
	}
}
