//go:build linux

package nic

import (
	"strings"
	"testing"
)

// ModeAuto tries native mode only on hardware whose driver has what it needs.
func TestDriversWithoutNativeMode(t *testing.T) {
	all := XDPSupport{Known: true, Features: XDPBasic | XDPRedirect}
	for _, c := range []struct {
		up   Uplink
		can  XDPSupport
		want string // in the reason; "": it tries
	}{
		{Uplink{Driver: "igb"}, all, ""},
		{Uplink{Driver: "bonding", Kind: "bond", Virtual: true}, all, "kind bond"},
		{Uplink{Driver: "igb"}, XDPSupport{}, "does not report"},
		{Uplink{Driver: "e1000e"}, XDPSupport{Known: true}, "no XDP"},
		{Uplink{Driver: "netvsc"}, XDPSupport{Known: true, Features: XDPBasic}, "without redirects"},
		{Uplink{Driver: "vmxnet3"}, all, "stops running"},
	} {
		if why := c.up.NotNative(c.can); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s, %+v: %q, want %q", c.up.Driver, c.can, why, c.want)
		}
	}
}
