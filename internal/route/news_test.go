package route

import (
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
