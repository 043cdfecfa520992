package route

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/wire"
)

// More hops than are remembered: what has given way is told rather once too often.
func TestStandingsAreBounded(t *testing.T) {
	n := newNews() // and nobody tells it
	host := func(i uint32) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+i)))
	}
	told := func(i uint32, at byte) bool {
		n.take()
		n.neighbour(host(i), standing{at: wire.LinkAddr{2, 0, 0, 0, 0, at}})
		_, told := n.hops[host(i)]
		return told
	}
	for i := range uint32(maxStandings) {
		if told(i, 1) {
			t.Fatalf("told of hop %d, of which nobody has heard", i)
		}
	}
	for i := range uint32(maxStandings) {
		if told(i, 1) {
			t.Fatalf("told of hop %d, to which nothing has happened", i)
		}
	}
	if !told(maxStandings, 1) || !told(maxStandings+1, 1) {
		t.Error("not told of a hop whose standing may have been forgotten")
	}
	if len(n.standings) != maxStandings {
		t.Errorf("%d hops are remembered", len(n.standings))
	}
	n.lost()
	if told(7, 2) {
		t.Error("told of a hop after all were told to ask again")
	}
}

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
