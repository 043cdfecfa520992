package wire_test

import (
	"net/netip"
	"testing"

	"github.com/unet-go/unet/wire"
)

// Groups and their MAC addresses, of RFC 1112, section 6.4, and RFC 2464, section 7.
func TestGroupLink(t *testing.T) {
	for group, want := range map[string]wire.LinkAddr{
		"224.0.0.251":     {0x01, 0x00, 0x5e, 0x00, 0x00, 0xfb},
		"239.129.2.3":     {0x01, 0x00, 0x5e, 0x01, 0x02, 0x03},
		"239.255.255.255": {0x01, 0x00, 0x5e, 0x7f, 0xff, 0xff},
		"ff02::fb":        {0x33, 0x33, 0x00, 0x00, 0x00, 0xfb},
		"ff15::a1:b2c3":   {0x33, 0x33, 0x00, 0xa1, 0xb2, 0xc3},
	} {
		if got := wire.GroupLink(wire.AddrFrom(netip.MustParseAddr(group))); got != want {
			t.Errorf("%s: %v, want %v", group, got, want)
		}
	}
}

// The scopes are those of package netip.
func TestMulticast(t *testing.T) {
	for _, s := range []string{"0.0.0.0", "10.0.0.1", "223.255.255.255", "224.0.0.0", "224.0.0.255", "224.0.1.0", "239.255.255.255", "240.0.0.0", "255.255.255.255",
		"::", "::1", "fd00::1", "fe80::1", "ff01::1", "ff02::1", "ff12::1", "ff05::1", "ff0e::1"} {
		a := netip.MustParseAddr(s)
		w := wire.AddrFrom(a)
		if w.IsMulticast() != a.IsMulticast() {
			t.Errorf("%s: multicast is %v", s, w.IsMulticast())
		}
		if want := a.IsLinkLocalMulticast() || a.IsInterfaceLocalMulticast(); w.IsLinkLocalMulticast() != want {
			t.Errorf("%s: link-local multicast is %v", s, !want)
		}
	}
}
