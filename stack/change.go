package stack

import (
	"net/netip"
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
)

// Invalidate says that what the route service has answered for dst may be true
// no longer; if dst is not valid, what it has answered for any destination. It is
// asked again, behind the back of those who send: they use the old answer until
// the new one is there. What nobody uses is asked for with its next use.
func (s *Stack) Invalidate(dst netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.resolver == nil {
		return
	}
	s.readClock()
	if !dst.IsValid() {
		s.invalidateAll()
		return
	}
	if dst = dst.Unmap(); dst.Is4() {
		if r := s.routes[dst.As4()]; r != nil {
			s.invalidate(r)
		}
	}
}

func (s *Stack) invalidateAll() {
	for _, r := range s.routes {
		s.invalidate(r)
	}
}

func (s *Stack) invalidate(r *route) {
	s.count[routesInvalidated]++
	switch {
	case r.asked:
		r.again = true
	case r.state == routeStale:
		r.wanted = true
	case r.state != routeFailed:
		s.askResolver(r)
	default:
		s.dropRoute(r)
	}
}

// SetLink says whether the link carries frames, which it does at first. While it
// does not, sends fail with ENETDOWN, those that block already included, unless they
// are for another endpoint behind our own link address; and so does what is held
// for a route or a neighbour. Reads go on waiting. When it does again, neighbours
// and routes are asked for anew, and what TCP has sent in vain is sent again.
func (s *Stack) SetLink(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.down != up {
		return
	}
	s.down = !up
	for c := range s.sockets {
		c.setSlow()
	}
	s.readClock()
	defer s.settleTCP()
	if up {
		if s.resolver != nil {
			s.invalidateAll()
		}
		s.tcp.LinkUp(tcp.Time(s.now))
		return
	}
	s.count[linkDowns]++
	for s.held.n > 0 {
		s.failHeld(s.takeHeld(s.held.oldest.queue), syscall.ENETDOWN)
	}
	for _, n := range s.neighbours {
		s.forget(n)
	}
}
