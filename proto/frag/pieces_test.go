package frag

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A payload is divided into pieces of a multiple of 8 bytes, except the last one.
func TestPieces(t *testing.T) {
	for n, want := range map[int][]Piece{
		0:  nil,
		1:  {{0, 1, false}},
		24: {{0, 24, false}},
		25: {{0, 24, true}, {24, 1, false}},
		48: {{0, 24, true}, {24, 24, false}},
		50: {{0, 24, true}, {24, 24, true}, {48, 2, false}},
	} {
		if got := slices.Collect(Pieces(n, 30)); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %v, want %v", n, got, want)
		}
	}
}

// The field with the offset and the more-fragments flag.
func TestPieceField(t *testing.T) {
	for _, test := range []struct {
		piece  Piece
		v4, v6 uint16
	}{
		{Piece{0, 8, true}, 0x2000, 1},
		{Piece{1480, 8, true}, 0x20b9, 1481},
		{Piece{65528, 7, false}, 0x1fff, 65528},
	} {
		if v4, v6 := test.piece.Field(false), test.piece.Field(true); v4 != test.v4 || v6 != test.v6 {
			t.Errorf("%+v: %#x and %#x", test.piece, v4, v6)
		}
	}
}

// An IPv4 identification is not used again for the next recentIDs datagrams.
func TestIdentificationsAreNotReusedSoon(t *testing.T) {
	ids := NewIDs(rand.New(rand.NewPCG(4, 4)).Uint32)
	last := map[uint16]int{}
	for i := range 5 * recentIDs {
		id := ids.IPv4()
		if at, again := last[id]; again && i-at <= recentIDs {
			t.Fatalf("identification %d again after %d", id, i-at)
		}
		last[id] = i
	}
	// Most of the 65,536 identifications are used, in the order of the generator.
	if len(last) < 1<<16*2/3 {
		t.Errorf("%d different ones", len(last))
	}
	if a, b := NewIDs(func() uint32 { return 0x12345678 }).IPv6(), ids.IPv6(); a != 0x12345678 || b == a {
		t.Errorf("%#x, %#x", a, b)
	}
}
