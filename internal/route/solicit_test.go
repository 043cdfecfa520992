package route

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/wire"
)

// Whatever comes over the wire, an address is read that stands in it, or none, and a
// probe is understood as a claim.
func FuzzClaimed(f *testing.F) {
	us := wire.LinkAddr{2, 0, 0, 0, 0, 9}
	for _, text := range []string{"10.0.0.7", "fd00::1:2:3"} {
		a := netip.MustParseAddr(text)
		frame := solicitation(a, groupOf(a), sender{link: us})
		if got, at, ok := claimed(frame); !ok || got != a || at != us {
			f.Fatalf("a probe for %v claims %v at %v, %v", a, got, at, ok)
		}
		f.Add(frame)
		f.Add(bytes.Clone(frame[:len(frame)-1]))
		if a.Is4() {
			continue
		}
		advertisement := bytes.Clone(frame)
		advertisement[ndType] = ndAdvertisement
		f.Add(advertisement)
		f.Add(append(append(bytes.Clone(advertisement[:12]), 0x81, 0, 0, 7), advertisement[12:]...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		eth, err := wire.ParseEthernet(b)
		if err != nil {
			return
		}
		a, at, ok := claimed(eth)
		if ok && (!bytes.Contains(b, a.AsSlice()) || !bytes.Contains(b, at[:])) {
			t.Errorf("%v at %v in %x", a, at, b)
		}
	})
}
