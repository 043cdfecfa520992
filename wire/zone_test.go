package wire

import (
	"net/netip"
	"testing"
)

// A link-local address with a zone is another address, but the same in headers, checksums and text. Other addresses have no zone.
func TestZones(t *testing.T) {
	a, other := AddrFrom(netip.MustParseAddr("fe80::1:2")), AddrFrom(netip.MustParseAddr("fe80::2"))
	one, two := a.WithZone(1), a.WithZone(0xffff)
	if one == two || one == a || one.Zone() != 1 || two.Zone() != 0xffff || one.WithZone(0xffff) != two || two.WithZone(0) != a || a.Zone() != 0 {
		t.Errorf("%#v %#v %#v", a, one, two)
	}
	if one.As16() != a.As16() || one.Netip() != a.Netip() || one.String() != "fe80::1:2" || !one.IsLinkLocal() || !one.IsHost() {
		t.Errorf("%v, %v", one, one.As16())
	}
	if PseudoHeader(one, two, 6, 20) != PseudoHeader(a, a, 6, 20) || PseudoHeader(other, two, 6, 20) != PseudoHeader(other, a, 6, 20) {
		t.Error("the zone is in a checksum")
	}
	for _, text := range []string{"10.0.0.1", "169.254.0.1", "fd00::1", "fe80:1::1", "fe90::1", "ff02::1", "::", "febf:0:1::1"} {
		if a := AddrFrom(netip.MustParseAddr(text)); a.WithZone(3) != a || a.Zone() != 0 {
			t.Errorf("%s has zone %d", text, a.WithZone(3).Zone())
		}
	}
}

// Each record goes back where it comes from.
func TestJoinedConnections(t *testing.T) {
	first, second := NewConnections(make([]Connection, 1)), NewConnections(make([]Connection, 1))
	here, there, nowhere := AddrFrom4([4]byte{10, 0, 0, 1}), AddrFrom4([4]byte{10, 0, 1, 1}), AddrFrom4([4]byte{10, 0, 2, 1})
	joined := JoinConnections(func(local Addr) *Connections { return map[Addr]*Connections{here: first, there: second}[local] })
	a, b := joined.Get(here), joined.Get(there)
	if a == nil || b == nil || joined.Get(here) != nil || joined.Get(nowhere) != nil || first.Get(here) != nil {
		t.Fatal("not one record of each")
	}
	joined.Put(b)
	joined.Put(nil)
	if joined.Get(here) != nil || joined.Get(there) != b {
		t.Error("a record went to another one")
	}
}
