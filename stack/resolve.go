package stack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/unet-go/unet/wire"
)

// Resolver is the route service. Resolve may block until ctx ends; the stack
// calls it from a goroutine of its own, never under its lock. An error that is
// EHOSTUNREACH or ENETUNREACH says that there is no way to dst; any other, that
// nobody can tell at the moment, and the stack asks again.
type Resolver interface {
	Resolve(ctx context.Context, dst netip.Addr) (Route, error)
}

// Route is how a destination is reached.
type Route struct {
	// Source is what the host itself would send from. A stack has only one
	// address and sends from that.
	Source   netip.Addr
	NextHop  netip.Addr    // a gateway; zero: the destination itself
	LinkAddr wire.LinkAddr // of the next hop; zero: the stack asks by ARP, if its address is whole
	MTU      int           // bytes of IP packet; 0: that of the link
}

const (
	maxResolving   = 256 // new destinations that the route service is asked for at once
	maxRefreshing  = 8   // and known ones; few, since others ask the same service
	resolveTimeout = 5 * time.Second
	retryInterval  = 250 * second / 1000 // after an answer that was no verdict
)

// askResolver asks the route service for r. Only so many refreshes are under way
// at once; the others wait for their turn. A new destination never waits: if
// there are too many, the one that was asked for first has had the longest time
// to be answered, and gives way.
func (s *Stack) askResolver(r *route) {
	if r.asked {
		return
	}
	r.asked, r.askedAt, r.wanted = true, s.now, false
	s.armRoute(r, never)
	switch {
	case r.state == routeResolving:
		if r.giveUp == nil { // the first time
			if len(s.resolving) >= maxResolving {
				s.giveRouteUp(s.resolving[0])
			}
			s.resolving = append(s.resolving, r)
		}
		ctx, cancel := context.WithTimeout(s.ctx, resolveTimeout)
		r.giveUp = cancel
		go s.resolveRoute(ctx, cancel, r)
	case s.refreshing < maxRefreshing:
		s.refreshRoute(r)
	default:
		s.toRefresh = append(s.toRefresh, r)
	}
}

func (s *Stack) refreshRoute(r *route) {
	s.refreshing++
	ctx, cancel := context.WithTimeout(s.ctx, resolveTimeout)
	go func() {
		s.resolveRoute(ctx, cancel, r)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refreshing--
		for len(s.toRefresh) > 0 && !s.closed {
			next := s.toRefresh[0]
			s.toRefresh[0] = nil
			s.toRefresh = s.toRefresh[1:]
			if next.state != routeDead {
				s.refreshRoute(next)
				return
			}
		}
	}()
}

// resolveRoute asks the route service and takes its answer, in a goroutine of
// its own, without the lock.
func (s *Stack) resolveRoute(ctx context.Context, cancel context.CancelFunc, r *route) {
	answer, err := s.resolver.Resolve(ctx, netip.AddrFrom4(r.dst))
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	r.asked = false
	if s.closed || r.state == routeDead {
		return
	}
	s.readClock()
	verdict := err == nil || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
	if verdict && r.state == routeResolving {
		s.stopResolving(r)
	}
	if err == nil {
		err = s.setRoute(r, answer)
	}
	switch {
	case err == nil:
	case verdict:
		s.failRoute(r, err)
	default:
		s.askLater(r)
	}
	if r.again && r.state != routeDead { // the answer may be from before the change
		r.again = false
		s.invalidate(r)
	}
	s.settleTCP()
	if s.unflushed {
		s.flush()
	}
}

func (s *Stack) stopResolving(r *route) {
	i := slices.Index(s.resolving, r)
	s.resolving = slices.Delete(s.resolving, i, i+1)
	r.giveUp = nil
}

// giveRouteUp ends the wait for the answer about r.
func (s *Stack) giveRouteUp(r *route) {
	s.count[routesGivenUp]++
	r.giveUp()
	s.stopResolving(r)
	s.failAllHeld(&r.held, syscall.ENOBUFS)
	s.loseWaiting(r, nil)
	s.dropRoute(r)
}

// UnreachableError is the error of a send to a destination for which the
// resolver has no answer. It is syscall.EHOSTUNREACH and what the resolver said.
type UnreachableError struct {
	Dst netip.Addr
	Err error // the resolver's
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("%v: %v: %v", syscall.EHOSTUNREACH, e.Dst, e.Err)
}
func (e *UnreachableError) Unwrap() []error { return []error{syscall.EHOSTUNREACH, e.Err} }

var (
	errAnswerLinkAddr = errors.New("the route service answered with no usable link address")
	errAnswerNextHop  = errors.New("the route service answered with a next hop that is no IPv4 address")
)

// setRoute takes the resolver's answer.
func (s *Stack) setRoute(r *route, a Route) error {
	nextHop := r.dst
	if a.NextHop.IsValid() {
		hop := a.NextHop.Unmap()
		if !hop.Is4() {
			return errAnswerNextHop
		}
		nextHop = hop.As4()
	}
	arp := a.LinkAddr == wire.LinkAddr{}
	if arp && !s.wholeAddress || a.LinkAddr.IsGroup() {
		return errAnswerLinkAddr
	}
	first := r.state == routeResolving
	if !first {
		s.count[routesRefreshed]++
	}
	before := r.mtu
	r.mtu = s.mtu
	if a.MTU != 0 {
		r.mtu = max(minMTU, min(a.MTU, s.mtu))
	}
	r.setMTU()
	if !first && r.mtu < before {
		s.narrowTCP(r)
	}
	switch {
	case !arp:
		r.leadThrough(nil)
		r.nextHop, r.state = nextHop, routeReady
		r.headers.setLinkDst(a.LinkAddr)
	case first || r.nextHop != nextHop:
		r.leadThrough(nil)
		r.nextHop, r.state = nextHop, routeUnresolved
	}
	s.armLook(r)
	s.routeHeld(r)
	return nil
}

// failRoute takes the verdict that there is no way to where r leads.
func (s *Stack) failRoute(r *route, err error) {
	s.count[routesFailed]++
	r.leadThrough(nil)
	r.state = routeFailed
	r.err = &UnreachableError{netip.AddrFrom4(r.dst), err}
	s.armRoute(r, s.now+failureTime)
	s.failAllHeld(&r.held, r.err)
	s.loseWaiting(r, r.err)
}

// askLater is for when nobody can tell the way at the moment: the route service
// is away or busy. A route that leads somewhere is kept until there is a verdict,
// and asked for again when it is next looked at or used. One that is new is asked
// for again as long as packets wait for it.
func (s *Stack) askLater(r *route) {
	s.count[routesFailed]++
	r.wanted = true
	switch {
	case r.state != routeResolving:
		s.armLook(r)
	case r.held.n > 0:
		s.armRoute(r, s.now+retryInterval)
	default:
		s.forgetResolving(r)
	}
}

// forgetResolving ends asking about a new destination to which nothing is to be
// sent any more.
func (s *Stack) forgetResolving(r *route) {
	s.stopResolving(r)
	s.loseWaiting(r, nil)
	s.dropRoute(r)
}
