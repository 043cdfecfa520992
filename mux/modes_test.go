//go:build linux

package mux

import (
	"strings"
	"testing"
)

// ModeAuto tries native mode only on hardware whose driver has what it needs.
func TestDriversWithoutNativeMode(t *testing.T) {
	all := xdpSupport{known: true, features: xdpBasic | xdpRedirect}
	for _, c := range []struct {
		up   uplink
		can  xdpSupport
		want string // in the reason; "": it tries
	}{
		{uplink{driver: "igb"}, all, ""},
		{uplink{driver: "bonding", kind: "bond", virtual: true}, all, "kind bond"},
		{uplink{driver: "igb"}, xdpSupport{}, "does not report"},
		{uplink{driver: "e1000e"}, xdpSupport{known: true}, "no XDP"},
		{uplink{driver: "netvsc"}, xdpSupport{known: true, features: xdpBasic}, "without redirects"},
		{uplink{driver: "vmxnet3"}, all, "stops running"},
	} {
		if why := c.up.notNative(c.can); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s, %+v: %q, want %q", c.up.driver, c.can, why, c.want)
		}
	}
}
