package stack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/unet-go/unet/wire"
)

// Resolver is the route service. Resolve may block until ctx ends; the stack
// calls it from a goroutine of its own, never under its lock.
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

// A route to one destination, cached with the headers that lead there.
//
//	             answer              unused for 5 s            60 s
//	resolving ──────────▶ ready ───────────────────▶ stale ──────────▶ dead
//	    │                 │  ▲ ▲                       │
//	    │ error     idle  │  │ └────── used: refresh ──┘
//	    ▼           neigh-▼  │ answer to ARP
//	 failed ─1 s─▶  dead  unresolved
//
// A route in use is refreshed every 5 s behind the sender's back. If the refresh
// fails the old answer is good for another while.
const (
	maxRoutes       = 1024
	resolveTimeout  = 5 * time.Second
	refreshInterval = 5 * second
	keepTime        = 30 * second // without a successful refresh
	staleTime       = 60 * second
	pathMTUTime     = 600 * second // RFC 1191, section 6.3
	minPathMTU      = 576          // bytes; less is not believed
)

type routeState uint8

const (
	routeResolving  routeState = iota // the resolver is asked
	routeReady                        // headers are complete
	routeStale                        // complete, but to be refreshed with the next use
	routeUnresolved                   // headers lack the link address of the next hop
	routeFailed                       // err says why
	routeDead                         // no longer in the table; sockets may still point here
)

type route struct {
	state      routeState
	refreshing bool
	headers    headers
	maxPayload int // of a UDP datagram, bytes
	sent       uint64

	dst, nextHop [4]byte
	neighbour    *neighbour // if link addresses come from ARP
	err          error

	mtu          int     // without what ICMP has reported
	pathMTU      int     // reported by ICMP; 0: nothing
	pathMTUUntil instant // when that is forgotten
	due          instant // when the state changes by itself
	at           instant // when routeTimer is due: the earlier of the two
	resolvedAt   instant
	sentSeen     uint64 // sent, when the state last changed
}

func (s *Stack) armRoute(r *route, due instant) {
	r.due = due
	r.at = due
	if r.pathMTU != 0 {
		r.at = min(r.at, r.pathMTUUntil)
	}
	s.schedule(r.at)
}

func (r *route) setMTU() {
	mtu := r.mtu
	if r.pathMTU != 0 {
		mtu = min(mtu, r.pathMTU)
	}
	r.maxPayload = max(0, mtu-wire.IPv4HeaderLen-wire.UDPHeaderLen)
}

// routeTo finds or makes the route to dst. Its state says what is to be done.
func (s *Stack) routeTo(dst [4]byte) (*route, error) {
	if r := s.routes[dst]; r != nil {
		return r, nil
	}
	if dst[0] == 0 || dst[0] >= 224 || s.isBroadcast(dst) || s.resolver == nil && !(s.wholeAddress && s.inSubnet(dst)) {
		return nil, syscall.ENETUNREACH
	}
	if len(s.routes) >= maxRoutes {
		for _, victim := range s.routes { // in random order
			if victim.state != routeResolving {
				s.dropRoute(victim)
				break
			}
		}
		if len(s.routes) >= maxRoutes {
			return nil, syscall.ENOBUFS
		}
	}
	r := &route{dst: dst, nextHop: dst, mtu: s.mtu, at: never, due: never}
	s.routes[dst] = r
	if s.resolver != nil {
		s.askResolver(r)
		return r, nil
	}
	r.state = routeUnresolved
	r.headers = makeHeaders(s.linkAddr, wire.LinkAddr{}, s.addr, dst, wire.ProtocolUDP)
	r.setMTU()
	return r, nil
}

func (s *Stack) dropRoute(r *route) {
	r.state = routeDead
	delete(s.routes, r.dst)
}

// askResolver asks the route service, in a goroutine that ends with the answer.
func (s *Stack) askResolver(r *route) {
	if r.refreshing {
		return
	}
	r.refreshing = true
	r.sentSeen = r.sent
	s.armRoute(r, never)
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, resolveTimeout)
		defer cancel()
		answer, err := s.resolver.Resolve(ctx, netip.AddrFrom4(r.dst))
		s.mu.Lock()
		defer s.mu.Unlock()
		r.refreshing = false
		if s.closed || r.state == routeDead {
			return
		}
		s.readClock()
		if err == nil {
			err = s.setRoute(r, answer)
		}
		if err != nil {
			s.routeError(r, err)
		}
		s.broadcast(&s.resolved)
	}()
}

// UnreachableError is the error of a send to a destination for which the
// resolver has no answer. It is syscall.EHOSTUNREACH and what the resolver said.
type UnreachableError struct {
	Dst netip.Addr
	Err error // the resolver's
}

func (e *UnreachableError) Error() string   { return fmt.Sprintf("no route to %v: %v", e.Dst, e.Err) }
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
	r.mtu = s.mtu
	if a.MTU != 0 {
		r.mtu = max(minMTU, min(a.MTU, s.mtu))
	}
	r.setMTU()
	r.resolvedAt = s.now
	s.armRoute(r, s.now+refreshInterval)
	switch {
	case !arp:
		r.neighbour, r.nextHop, r.state = nil, nextHop, routeReady
		r.headers = makeHeaders(s.linkAddr, a.LinkAddr, s.addr, r.dst, wire.ProtocolUDP)
	case first || r.nextHop != nextHop:
		r.neighbour, r.nextHop, r.state = nil, nextHop, routeUnresolved
		r.headers = makeHeaders(s.linkAddr, wire.LinkAddr{}, s.addr, r.dst, wire.ProtocolUDP)
	}
	return nil
}

// routeError takes the resolver's failure.
func (s *Stack) routeError(r *route, err error) {
	s.count[routesFailed]++
	switch {
	case r.state == routeResolving:
		r.state = routeFailed
		r.err = &UnreachableError{netip.AddrFrom4(r.dst), err}
		s.armRoute(r, s.now+failureTime)
	case s.now-r.resolvedAt >= keepTime:
		s.dropRoute(r)
	default:
		s.armRoute(r, s.now+refreshInterval)
	}
}

// routeTimer runs when r.at has come.
func (s *Stack) routeTimer(r *route) {
	if r.pathMTU != 0 && s.now >= r.pathMTUUntil {
		r.pathMTU = 0
		r.setMTU()
	}
	if s.now < r.due {
		s.armRoute(r, r.due)
		return
	}
	switch {
	case r.sent != r.sentSeen && (r.state == routeReady || r.state == routeUnresolved):
		s.askResolver(r)
	case r.state == routeReady:
		r.state = routeStale
		s.armRoute(r, s.now+staleTime)
	default:
		s.dropRoute(r)
	}
}

// RFC 1191, section 7.1: MTUs that links have, for a router that tells none.
var mtuPlateaus = [...]int{32000, 17914, 8166, 4352, 2002, 1492, 1006, minPathMTU}

// lowerPathMTU takes what a router says about a packet of ours that was too
// large for its next hop.
func (s *Stack) lowerPathMTU(quoted wire.IPv4, mtu int) {
	r := s.routes[quoted.Dst()]
	if r == nil || r.mtu == 0 {
		return
	}
	size := quoted.TotalLen()
	if mtu == 0 {
		for _, mtu = range mtuPlateaus {
			if mtu < size {
				break
			}
		}
	}
	if mtu >= size { // then that packet would have passed
		return
	}
	mtu = max(mtu, minPathMTU)
	if mtu >= r.mtu || r.pathMTU != 0 && mtu >= r.pathMTU {
		return
	}
	s.count[pathMTULowered]++
	r.pathMTU, r.pathMTUUntil = mtu, s.now+pathMTUTime
	r.setMTU()
	s.armRoute(r, r.due)
}
