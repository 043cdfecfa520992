package frag

import "iter"

// Piece is the part of a payload that one fragment carries.
type Piece struct {
	Offset, Len int // bytes
	More        bool
}

// Pieces divides n bytes, all that follows the IP header, among packets with that much room
// behind their headers, the fragment header among them. Room is at least 8 bytes, as it is with
// every MTU from 68 (IPv4) or 1,280 (IPv6) on. All pieces but the last are as long as the
// room allows in units of 8 bytes.
func Pieces(n, room int) iter.Seq[Piece] {
	room -= room % unit
	return func(yield func(Piece) bool) {
		for offset := 0; offset < n; offset += room {
			p := Piece{Offset: offset, Len: min(room, n-offset)}
			if p.More = offset+p.Len < n; !yield(p) {
				return
			}
		}
	}
}

// Field is the flag that more fragments follow, and the offset, as [wire.IPv4Fields] and
// [wire.PutIPv6Fragment] take them.
func (p Piece) Field(v6 bool) uint16 {
	switch {
	case v6 && p.More:
		return uint16(p.Offset) | 1
	case v6:
		return uint16(p.Offset)
	case p.More:
		return uint16(p.Offset/unit) | moreFragments
	}
	return uint16(p.Offset / unit)
}
