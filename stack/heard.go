package stack

import "encoding/binary"

// Is the next hop still where the route service said? The kernel does not see
// what we send and receive, so it cannot tell, and a peer that is given another
// link address need not announce it. What we see is whether anything comes from
// there. A route on which packets were sent while nothing came back from its link
// address is doubtful: the route service is asked again, and has the neighbour
// asked. It is looked at every lookInterval while it is in use, so that silence is
// noticed in twice that time at most.
//
// Traffic that is never answered thus costs two or three questions to the route
// service a second, whatever the number of routes behind one link address, and
// doubtBurst a second whatever the number of link addresses. A frame in costs one
// store.
const (
	lookInterval = 250 * second / 1000
	doubtPause   = 300 * second / 1000 // between two doubts of one link address

	// All doubts together: as ICMP errors, by tokens.
	doubtInterval = second / doubtBurst
	doubtBurst    = 32

	// Times of link addresses are in ticks of a millisecond, modulo 2^16.
	tickShift = 20
)

// linkTimes notes for link addresses when something was last the case. It is a
// table with one place for many: an address that has lost its place counts as one
// of which nothing is known, so it must only matter little to be wrong.
type linkTimes [1 << placeBits]uint64 // the address in the upper 48 bits, the tick in the lower 16

const placeBits = 12

// place is where a is in a linkTimes. The multiplier spreads addresses that differ
// in a few bits only (Fibonacci hashing).
func place(a uint64) uint64 { return (a >> 16) * 0x9e3779b97f4a7c15 >> (64 - placeBits) }

// note notes an address, in the upper 48 bits, whatever the others are.
func (t *linkTimes) note(a uint64, now uint16) {
	t[place(a)] = a&^0xffff | uint64(now)
}

// since reports whether a was noted at the tick then or later.
func (t *linkTimes) since(a uint64, then, now uint16) bool {
	v := t[place(a)]
	return (v^a)>>16 == 0 && now-uint16(v) <= now-then
}

// source is the source link address of a frame, as linkTimes has it.
func source(frame []byte) uint64 { return binary.BigEndian.Uint64(frame[6:14]) }

func (r *route) linkDst() uint64 { return binary.BigEndian.Uint64(r.headers.bytes[:8]) }

func tick(i instant) uint16 { return uint16(i >> tickShift) }

// armLook sets the time at which r, which leads somewhere, is looked at.
func (s *Stack) armLook(r *route) {
	if r.state == routeUnresolved { // its neighbour is found first
		s.armRoute(r, s.now+refreshInterval)
		return
	}
	s.armRoute(r, s.now+lookInterval)
}

// lookAt looks at a ready route of which a lookInterval has passed.
func (s *Stack) lookAt(r *route) {
	used := r.sent != r.sentLooked
	silent := used && !s.heard.since(r.linkDst(), tick(r.lookedAt), s.tick)
	r.sentLooked, r.lookedAt = r.sent, s.now
	switch {
	case !used:
		r.state = routeStale
		s.armRoute(r, s.now+staleTime)
	case r.wanted || s.now-r.askedAt >= refreshInterval:
		s.askResolver(r)
	case silent && r.neighbour == nil && !s.doubted.since(r.linkDst(), tick(s.now-doubtPause), s.tick) && s.mayDoubt():
		s.count[routesDoubted]++
		s.doubted.note(r.linkDst(), s.tick)
		s.askResolver(r)
	default:
		s.armLook(r)
	}
}

// mayDoubt takes a token for a doubt, if there is one.
func (s *Stack) mayDoubt() bool {
	if back := int((s.now - s.doubtTokensAt) / doubtInterval); back > 0 {
		s.doubtTokens = min(s.doubtTokens+min(back, doubtBurst), doubtBurst)
		s.doubtTokensAt += instant(back) * doubtInterval
	}
	if s.doubtTokens == 0 {
		return false
	}
	s.doubtTokens--
	return true
}

// useAgain makes a stale route ready.
func (s *Stack) useAgain(r *route) {
	r.state = routeReady
	r.lookedAt = s.readClock()
	if r.wanted || s.now-r.askedAt >= refreshInterval {
		s.askResolver(r)
	} else {
		s.armLook(r)
	}
}
