package wire

import (
	"net/netip"
	"testing"
)

func TestAddrPort(t *testing.T) {
	host := [4]byte{10, 0, 0, 1}
	for _, c := range []struct {
		in   netip.AddrPort
		want AddrPort
		ok   bool
	}{
		{netip.MustParseAddrPort("10.0.0.1:7"), AddrPort{host, 7}, true},
		{netip.MustParseAddrPort("[::ffff:10.0.0.1]:7"), AddrPort{host, 7}, true},
		{netip.MustParseAddrPort("0.0.0.0:7"), AddrPort{Port: 7}, true},
		{netip.MustParseAddrPort("[::]:7"), AddrPort{Port: 7}, true},
		{netip.AddrPort{}, AddrPort{}, true},
		{netip.AddrPortFrom(netip.Addr{}, 7), AddrPort{Port: 7}, true},
		{netip.MustParseAddrPort("[2001:db8::1]:7"), AddrPort{}, false},
	} {
		got, ok := AddrPortFrom(c.in)
		if got != c.want || ok != c.ok {
			t.Errorf("%v: %v, %v", c.in, got, ok)
		}
		if AddrPortOf(got.Word()) != got {
			t.Errorf("%v: packed and unpacked", got)
		}
	}
	a := AddrPort{host, 65535}
	if back, ok := AddrPortFrom(a.Netip()); back != a || !ok || a.String() != "10.0.0.1:65535" || a.IsZero() {
		t.Errorf("%v", back)
	}
}
