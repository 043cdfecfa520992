//go:build linux

package route

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/wire"
)

// The number of hops whose state is remembered is limited. A change of a hop whose state was removed is reported,
// perhaps once too often.
func TestStatesOfHopsAreBounded(t *testing.T) {
	n := newNotifier(nil) // without run
	host := func(i uint32) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+i)))
	}
	reported := func(i uint32, at byte) bool {
		n.take()
		n.neighbour(host(i), hopState{at: wire.LinkAddr{2, 0, 0, 0, 0, at}})
		_, reported := n.hops[host(i)]
		return reported
	}
	for i := range uint32(maxHopStates) {
		if reported(i, 1) {
			t.Fatalf("first state of hop %d reported", i)
		}
	}
	for i := range uint32(maxHopStates) {
		if reported(i, 1) {
			t.Fatalf("same state of hop %d reported again", i)
		}
	}
	if !reported(maxHopStates, 1) || !reported(maxHopStates+1, 1) {
		t.Error("a hop whose state may have been removed is not reported")
	}
	if len(n.states) != maxHopStates {
		t.Errorf("the states of %d hops are remembered", len(n.states))
	}
	n.lost()
	if reported(7, 2) {
		t.Error("first state of a hop reported after lost events")
	}
}

// FuzzClaimedAddress parses any frame. The address that a frame claims, and its MAC address, are in the frame; a
// probe claims its address.
func FuzzClaimedAddress(f *testing.F) {
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
		a, at, ok := claimed(b)
		if ok && (!bytes.Contains(b, a.AsSlice()) || !bytes.Contains(b, at[:])) {
			t.Errorf("%v at %v in %x", a, at, b)
		}
	})
}
