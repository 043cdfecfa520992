package stack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/unet-go/unet/wire"
)

// SamePlace is another MAC address, which has the same entry in a linkTimes as a.
func SamePlace(a wire.LinkAddr) wire.LinkAddr {
	var t linkTimes
	of := func(a wire.LinkAddr) *uint64 {
		return t.place(binary.BigEndian.Uint64(append(a[:], 0, 0)))
	}
	b := a
	for i := 1; ; i++ {
		binary.BigEndian.PutUint32(b[2:], uint32(i))
		if b != a && of(b) == of(a) {
			return b
		}
	}
}

// Settle waits until the route service has answered all that it was asked.
func Settle(s *Stack) {
	for {
		s.mu.Lock()
		asked := s.refreshing > 0
		for _, r := range s.routes {
			asked = asked || r.asked
		}
		s.mu.Unlock()
		if !asked {
			return
		}
		runtime.Gosched()
	}
}

// Routes is the number of cached routes.
func Routes(s *Stack) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.routes)
}

// LimitRoutes bounds the cached routes, so that a test can fill the cache.
func LimitRoutes(s *Stack, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxRoutes = n
}

// Held is the number of packets that wait for a route.
func Held(s *Stack) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// CaretakerPolls reports whether the caretaker holds the poll role and sleeps.
func CaretakerPolls(s *Stack) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.role.is(roleCaretaker) && s.role.sleeps()
}

// Parked is the number of goroutines that wait without polling.
func Parked(s *Stack) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := s.role.parked.head; w != nil; w = w.links[onRole].next {
		n++
	}
	return n
}

// Waiting is the number of goroutines of the application that are blocked in a call: those that
// are parked and the one that polls.
func Waiting(s *Stack) int {
	n := Parked(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.role.is(roleApplication) {
		n++
	}
	return n
}

// Answers is the number of peers that are answered without a route.
func Answers(s *Stack) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answers)
}

// Quiet reports whether there is nothing to publish.
func Quiet(s *Stack) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publisher.quiet
}

// ForgetRoutes drops all routes that are not resolving, as after a minute without use.
func ForgetRoutes(s *Stack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.routes {
		if r.state != routeResolving {
			s.dropRoute(r)
		}
	}
}

// RouteState is the state of the route to dst: "none", "resolving", "ready", "stale" or "failed".
func RouteState(s *Stack, dst netip.Addr) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.routes[s.endsOf(wire.Addr{}, wire.AddrFrom(dst))]
	if r == nil {
		return "none"
	}
	return [...]string{"resolving", "ready", "stale", "failed"}[r.state]
}

// WaitForEver is what waits for a route although nothing will end that: the route is not resolving,
// or neither is its resolver asked nor its timer armed. Empty: nothing does.
func WaitForEver(s *Stack) (what []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(map[*route]int)
	for _, h := range s.held {
		held[h.route]++
	}
	look := func(r *route, kind string) {
		if held[r] != r.held {
			what = append(what, fmt.Sprintf("the %s to %v counts %d held packets instead of %d", kind, r.to.Netip(), r.held, held[r]))
		}
		delete(held, r)
		if r.wanting() && (r.state != routeResolving || !r.asked && r.timer.slot == 0) {
			what = append(what, fmt.Sprintf("%d connections and %d packets wait for the %s to %v in state %d, asked %t", len(r.waiting), r.held, kind, r.to.Netip(), r.state, r.asked))
		}
	}
	for _, r := range s.routes {
		look(r, "route")
	}
	for _, r := range s.answers {
		look(r, "answer")
	}
	for c := range s.tcpConns {
		if r := c.route; r != nil {
			look(r, "route of a connection")
		}
	}
	for r, n := range held {
		what = append(what, fmt.Sprintf("%d packets are held for a route to %v that is in no table", n, r.to.Netip()))
	}
	return what
}

// Poll runs the engine: it takes in all frames that wait, runs the timers that
// are due at now, and sends what that makes ready. It never blocks: a test without
// goroutines that wait and without the caretaker runs a stack by it.
func (s *Stack) Poll(now time.Time) {
	s.mu.Lock()
	if !s.closed {
		s.now = max(s.now, s.instant(now))
		for range batchesPerPoll {
			if s.input() == 0 {
				break
			}
		}
		s.runDue()
		s.sendAll()
		if s.unflushed {
			s.flush()
		}
	}
	s.mu.Unlock()
}

// NextDeadline is when Poll next has something to do that no frame starts. ok
// is false if there is no such time.
func (s *Stack) NextDeadline() (t time.Time, ok bool) {
	s.mu.Lock()
	at := min(s.timerAt, s.role.deadline())
	s.mu.Unlock()
	return s.time(at), at != never
}
