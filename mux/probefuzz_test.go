package mux

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/wire"
)

// Whatever comes over the wire, a prober reads an address that stands in it, or
// none, and what it sends itself it understands as a claim.
func FuzzProbers(f *testing.F) {
	var frame [maxProbeFrame]byte
	from := wire.LinkAddr{2, 0, 0, 0, 0, 9}
	for _, p := range []struct {
		*prober
		addr string
	}{{&arpProber, "10.0.0.7"}, {&ndProber, "fd00::1:2:3"}} {
		a := netip.MustParseAddr(p.addr)
		n := p.put(frame[:], from, a)
		eth, err := wire.ParseEthernet(frame[:n])
		if err != nil || eth.Type() != p.etherType {
			f.Fatalf("%s: a probe of type %#x, %v", p.name, eth.Type(), err)
		}
		if got, at, ok := p.claimed(eth); !ok || got != a || at != from {
			f.Fatalf("%s: a probe for %v claims %v at %v, %v", p.name, a, got, at, ok)
		}
		f.Add(bytes.Clone(frame[:n]))
		f.Add(bytes.Clone(frame[:n-1]))
	}
	advertisement := bytes.Clone(frame[:ndEnd])
	advertisement[ndType] = ndAdvertisement
	f.Add(advertisement)
	f.Add(append(append(bytes.Clone(advertisement[:12]), 0x81, 0, 0, 7), advertisement[12:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		eth, err := wire.ParseEthernet(b)
		if err != nil {
			return
		}
		for _, p := range []*prober{&arpProber, &ndProber} {
			if eth.Type() != p.etherType {
				continue
			}
			a, at, ok := p.claimed(eth)
			if ok && (!bytes.Contains(b, a.AsSlice()) || !bytes.Contains(b, at[:])) {
				t.Errorf("%s: %v at %v in %x", p.name, a, at, b)
			}
		}
	})
}

// Lists of ports as the kernel writes them, and as it does not.
func FuzzKeptPorts(f *testing.F) {
	for _, s := range []string{"", "8080", "80,8080-8090,65535", "0-65535", "1-", "-", "70000", "9-8", ",,", "1-2-3", " 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var k keptPorts
		if err := k.addList(s); err != nil || s == "" {
			return
		}
	})
}

func TestKeptPorts(t *testing.T) {
	var k keptPorts
	if err := k.addList("63,128-129,65535"); err != nil {
		t.Fatal(err)
	}
	for b, kept := range k {
		if want := b == 0 || b == 2 || b == 1023; kept != want {
			t.Errorf("block %d: %v", b, kept)
		}
	}
}
