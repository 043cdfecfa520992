package endpoint

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
)

func TestTagText(t *testing.T) {
	for _, tag := range []Tag{
		UDPTag(netip.MustParseAddrPort("10.0.0.1:7")),
		UDPTag(netip.MustParseAddrPort("0.0.0.0:0")),
		UDPTag(netip.MustParseAddrPort("[::ffff:10.0.0.1]:65535")),
		UDPTag(netip.MustParseAddrPort("[fd00::1]:7")),
		TCPTag(netip.MustParseAddrPort("10.0.0.1:7")),
		TCPTag(netip.MustParseAddrPort("[fd00::1]:40000")).AsBlock(),
		UDPTag(netip.MustParseAddrPort("10.0.0.1:65535")).AsBlock(),
		UDPTag(netip.MustParseAddrPort("10.0.0.1:0")).AsBlock(),
		AddrTag(netip.MustParseAddr("192.0.2.200")),
		AddrTag(netip.MustParseAddr("fe80::1")),
		MessageTag(0), MessageTag(1<<32 - 1),
	} {
		got, err := ParseTag(tag.String())
		if err != nil || got != tag {
			t.Errorf("%v read back as %v, %v", tag, got, err)
		}
	}
	for _, s := range []string{"", "udp", "udp:", "udp:10.0.0.1", "udp:10.0.0.1:70000", "tcp:10.0.0.1", "sctp:10.0.0.1:7",
		"udp:10.0.0.1:1-64", "udp:10.0.0.1:64-128", "udp:10.0.0.1:64-", "udp:10.0.0.1:64-0127", "tcp:[fe80::1%eth0]:7", "addr:fe80::1%eth0",
		"addr:10.0.0", "addr:10.0.0.1/24", "msg:", "msg:-1", "msg:4294967296", "msg:0x7"} {
		if tag, err := ParseTag(s); !errors.Is(err, ErrTag) {
			t.Errorf("ParseTag(%q) = %v, %v", s, tag, err)
		}
	}
	if _, err := json.Marshal(Tag{}); err == nil {
		t.Error("the zero tag was marshalled")
	}
}

func FuzzParseTag(f *testing.F) {
	for _, s := range []string{"udp:10.0.0.1:7", "addr:10.0.0.9", "msg:7", "tcp:[fd00::1]:64-127", "addr:fd00::1", "udp:[::ffff:1.2.3.4]:1", "msg:99999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tag, err := ParseTag(s)
		if err != nil {
			return
		}
		if again, err := ParseTag(tag.String()); err != nil || again != tag {
			t.Fatalf("%q is %v, which reads back as %v, %v", s, tag, again, err)
		}
	})
}

func TestGeometryValidate(t *testing.T) {
	if err := (Geometry{}).WithDefaults().Validate(); err != nil {
		t.Errorf("the default geometry: %v", err)
	}
	for name, change := range map[string]func(*Geometry){
		"frame size":     func(g *Geometry) { g.FrameSize = 1024 },
		"odd frame size": func(g *Geometry) { g.FrameSize = 3000 },
		"few frames":     func(g *Geometry) { g.FrameCount = minFrames - 1 },
		"large segment":  func(g *Geometry) { g.FrameCount = 1 << 20 },
		"overflow":       func(g *Geometry) { g.FrameCount = 1<<32 - 1 },
		"fill ring":      func(g *Geometry) { g.FillSize = 100 },
		"rx ring":        func(g *Geometry) { g.RxSize = 1 << 17 },
		"tx ring":        func(g *Geometry) { g.TxSize = 3 },
		"completion":     func(g *Geometry) { g.CompletionSize = 1<<31 + 1 },
	} {
		g := Geometry{}.WithDefaults()
		change(&g)
		if err := g.Validate(); !errors.Is(err, ErrGeometry) {
			t.Errorf("%s: %v, want ErrGeometry", name, err)
		}
	}
}
