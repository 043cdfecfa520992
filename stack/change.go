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
	if s.closed || s.linkDown != up {
		return
	}
	s.linkDown = !up
	if !up {
		s.count[linkDowns]++
	}
	s.linkOrAddressChanged()
}

// SetAddress says whether our address is the endpoint's to send from, which it is at
// first. While it is not, because the host has lost it, sends fail with EADDRNOTAVAIL
// and all else is as while the link is down.
func (s *Stack) SetAddress(here bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.addrGone != here {
		return
	}
	s.addrGone = !here
	s.linkOrAddressChanged()
}

// linkOrAddressChanged has sends fail, or go out again.
func (s *Stack) linkOrAddressChanged() {
	before := s.down
	switch {
	case s.addrGone:
		s.down = syscall.EADDRNOTAVAIL
	case s.linkDown:
		s.down = syscall.ENETDOWN
	default:
		s.down = 0
	}
	for c := range s.sockets {
		c.setSlow()
	}
	s.readClock()
	defer s.settleTCP()
	switch {
	case s.down == 0:
		if s.resolver != nil {
			s.invalidateAll()
		}
		s.tcp.LinkUp(tcp.Time(s.now))
	case before == 0:
		for s.held.n > 0 {
			s.failHeld(s.takeHeld(s.held.oldest.queue), s.down)
		}
		for _, n := range s.neighbours {
			s.forget(n)
		}
	}
}

// unsendable is why nothing can be sent to dst: the address is gone, or the link is down
// and dst is not behind our own link address.
func (s *Stack) unsendable(dst [4]byte) error {
	if s.down == 0 || !s.addrGone && s.turnedRound(dst) {
		return nil
	}
	return s.down
}
