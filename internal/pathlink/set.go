//go:build linux

package pathlink

import (
	"math/bits"
	"sync/atomic"
)

// set is the paths of a link. The list does not change, and is replaced as a whole, so that it can be read without the stack's
// lock. A goroutine without the lock may use a set that was replaced, and get a wrong answer from it. arm and disarm are called in
// Sleep only, while which no path is closed.
//
// A path without frames for a while is parked, so that the number of idle paths costs nothing. Whoever sees a frame in it makes it
// active again.
type set struct {
	paths  []*path
	active bitmap // looked at each time; of all paths one in turn every visitTurn times
	// armed paths have been told by Sleep to ring for the next frame, and none was taken since. Of a path that is active this says only that
	// its bell may have been rung.
	armed bitmap

	_     [64]byte // what follows is written at each look
	next  int      // path that Pending looks at in turn
	looks uint32   // calls of Pending
}

// bitmap has a bit for each path. One that is active is set by anyone, and cleared under the stack's lock.
type bitmap []atomic.Uint64

func (b bitmap) has(i int) bool { return b[uint(i)/64].Load()>>(uint(i)%64)&1 != 0 }
func (b bitmap) set(i int)      { b[uint(i)/64].Or(1 << (uint(i) % 64)) }
func (b bitmap) clear(i int)    { b[uint(i)/64].And(^(1 << (uint(i) % 64))) }

// from returns the first bit from i on that is set, or -1.
func (b bitmap) from(i int) int {
	w := uint(i) / 64
	if w >= uint(len(b)) {
		return -1
	}
	for m := b[w].Load() & (^uint64(0) << (uint(i) % 64)); ; m = b[w].Load() {
		if m != 0 {
			return int(w*64) + bits.TrailingZeros64(m)
		}
		if w++; w == uint(len(b)) {
			return -1
		}
	}
}

// change makes the set that replaces s, nil if no path is left. gone or added may be nil.
func (s *set) change(gone, added *path) *set {
	n := 1
	if s != nil {
		n += len(s.paths)
	}
	next := &set{paths: make([]*path, 0, n), active: make(bitmap, (n+63)/64), armed: make(bitmap, (n+63)/64)}
	if s != nil {
		for i, p := range s.paths {
			if p == gone {
				continue
			}
			if s.active.has(i) {
				next.active.set(len(next.paths))
			}
			next.paths = append(next.paths, p)
		}
	}
	if added != nil {
		next.active.set(len(next.paths))
		next.paths = append(next.paths, added)
	}
	if len(next.paths) == 0 {
		return nil
	}
	return next
}

// look reports whether a frame waits in an active path.
func (s *set) look() bool {
	for w := range s.active {
		for m := s.active[w].Load(); m != 0; m &= m - 1 {
			if s.paths[w*64+bits.TrailingZeros64(m)].ring.Pending() {
				return true
			}
		}
	}
	return false
}

// visit makes n paths from i on active if they have a frame, and returns the next path.
func (s *set) visit(i, n int) int {
	for range min(n, len(s.paths)) {
		if i >= len(s.paths) {
			i = 0
		}
		if !s.active.has(i) && s.paths[i].ring.Pending() {
			s.active.set(i)
		}
		i++
	}
	return i
}

// park parks the active paths that had no frame since the last call. Under the stack's lock.
func (s *set) park() {
	for i := s.active.from(0); i >= 0; i = s.active.from(i + 1) {
		if p := s.paths[i]; p.recent || p.ring.Pending() {
			p.recent = false
			continue
		}
		s.armed.clear(i) // first, see arm
		s.active.clear(i)
	}
}

// arm has the other ends ring for the next frame, unless they do so already. It reports whether a frame waits in a path that was not
// armed, or is active.
func (s *set) arm() bool {
	for w := range s.active {
		m := s.active[w].Load() // first: a path that is parked now is not armed any more
		m |= ^s.armed[w].Load()
		s.armed[w].Or(m) // before they are: who takes a frame clears it
		for ; m != 0; m &= m - 1 {
			i := w*64 + bits.TrailingZeros64(m)
			if i >= len(s.paths) {
				break
			}
			s.paths[i].ring.SetAsleep(true)
			s.visit(i, 1)
		}
	}
	return s.look()
}

// disarm has the other ends of the active paths ring no more. Those of parked paths still do, so that the next arm has
// nothing to do with them.
func (s *set) disarm() {
	for i := s.active.from(0); i >= 0; i = s.active.from(i + 1) {
		s.paths[i].ring.SetAsleep(false)
	}
}
