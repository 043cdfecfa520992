package frag

// recentIDs is how many IPv4 identifications are remembered.
const recentIDs = 1 << 14

// IDs gives identifications to datagrams that are sent in fragments. They are random, so
// that nobody who has seen some knows others (RFC 7739, RFC 6274 section 3.5).
type IDs struct {
	random func() uint32
	recent []uint16             // a ring
	next   int                  // where the ring is written next
	used   [1 << 16 / 64]uint64 // whether an identification is in the ring
}

// NewIDs makes a source of identifications from a cryptographically strong generator, which is
// uniform over its range.
func NewIDs(random func() uint32) *IDs { return &IDs{random: random} }

// IPv6 is an identification for IPv6. That one of 32 bits comes again while a datagram with it
// is incomplete is not likely.
func (s *IDs) IPv6() uint32 { return s.random() }

// IPv4 is an identification for IPv4. It is none of the last 16,384: of 16 bits, random ones
// would too often be those of a datagram that is still incomplete, whose data would be mixed
// with this one's (RFC 4963).
func (s *IDs) IPv4() uint16 {
	id := uint16(s.random())
	for s.used[id/64]&(1<<(id%64)) != 0 {
		id = uint16(s.random())
	}
	s.used[id/64] |= 1 << (id % 64)
	if len(s.recent) < recentIDs {
		s.recent = append(s.recent, id)
		return id
	}
	old := s.recent[s.next]
	s.used[old/64] &^= 1 << (old % 64)
	s.recent[s.next] = id
	s.next = (s.next + 1) % recentIDs
	return id
}
