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
// fails the old answer is good for another while. Whoever sends meanwhile does
// not wait: packets are held (held.go).
const (
	maxRoutes       = 16384
	maxLooks        = 64  // at routes that are in use, for one that is not
	maxResolving    = 256 // new destinations that the route service is asked for at once
	maxRefreshing   = 32  // and known ones
	resolveTimeout  = 5 * time.Second
	refreshInterval = 5 * second
	keepTime        = 30 * second // without a successful refresh
	staleTime       = 60 * second
	pathMTUTime     = 600 * second // RFC 1191, section 6.3
	minPathMTU      = 576          // bytes; less is not believed
)

type routeState uint8

const (
	routeResolving  routeState = iota // the resolver is asked; packets are held here
	routeReady                        // headers are complete
	routeStale                        // complete, but to be refreshed with the next use
	routeUnresolved                   // headers lack the link address of the next hop; packets are held there
	routeFailed                       // err says why
	routeDead                         // no longer in the table; sockets may still point here
)

type route struct {
	state      routeState
	asked      bool // an answer of the resolver is to come
	headers    headers
	maxPayload int // of a UDP datagram, bytes
	sent       uint64

	dst, nextHop [4]byte
	neighbour    *neighbour // if link addresses come from ARP
	held         heldQueue
	err          error
	giveUp       context.CancelFunc // of the resolver, while resolving

	slot       int    // in the cache's clock
	sentAtHand uint64 // sent, when the clock's hand last passed

	mtu          int     // without what ICMP has reported
	pathMTU      int     // reported by ICMP; 0: nothing
	pathMTUUntil instant // when that is forgotten
	due          instant // when the state changes by itself
	timer        timer   // for the earlier of the two
	resolvedAt   instant
	sentSeen     uint64 // sent, when the state last changed
}

func (s *Stack) armRoute(r *route, due instant) {
	r.due = due
	at := due
	if r.pathMTU != 0 {
		at = min(at, r.pathMTUUntil)
	}
	s.startTimer(&r.timer, at)
}

// leadThrough changes the neighbour; nil: none.
func (r *route) leadThrough(n *neighbour) {
	if r.neighbour != nil {
		delete(r.neighbour.routes, r)
	}
	if r.neighbour = n; n != nil {
		n.routes[r] = struct{}{}
	}
}

func (r *route) setMTU() {
	mtu := r.mtu
	if r.pathMTU != 0 {
		mtu = min(mtu, r.pathMTU)
	}
	r.maxPayload = max(0, mtu-wire.IPv4HeaderLen-wire.UDPHeaderLen)
}

// usableRoute returns a route on which a packet to dst can be sent, if it is
// ready, or else be held: on itself while it is resolving, and on its neighbour
// while it is unresolved.
func (s *Stack) usableRoute(dst [4]byte) (*route, error) {
	r := s.routes[dst]
	if r == nil {
		var err error
		if r, err = s.newRoute(dst); err != nil {
			return nil, err
		}
	}
	switch r.state {
	case routeStale:
		r.state = routeReady
		s.askResolver(r)
	case routeUnresolved:
		if err := s.findNextHop(r); err != nil {
			return nil, err
		}
	case routeFailed:
		return nil, r.err
	}
	return r, nil
}

func (s *Stack) newRoute(dst [4]byte) (*route, error) {
	if dst[0] == 0 || dst[0] >= 224 || s.isBroadcast(dst) || s.resolver == nil && !(s.wholeAddress && s.inSubnet(dst)) {
		return nil, syscall.ENETUNREACH
	}
	if len(s.routes) >= maxRoutes {
		s.dropRoute(s.victim())
	}
	r := &route{dst: dst, nextHop: dst, mtu: s.mtu, due: never, slot: len(s.routeClock), sentAtHand: 1}
	r.timer.owner = r
	r.headers = makeHeaders(s.linkAddr, wire.LinkAddr{}, s.addr, dst, wire.ProtocolUDP)
	r.setMTU()
	s.routes[dst] = r
	s.routeClock = append(s.routeClock, r)
	if s.resolver != nil {
		s.askResolver(r)
	} else {
		r.state = routeUnresolved
	}
	return r, nil
}

// victim picks the route that gives way to a new one: the first that has sent
// nothing since the clock's hand last passed it (second chance), or nothing but
// the packet it was made for, as those of a scan or a flood. It is looked for in
// a bounded number; beyond that all are about as good.
func (s *Stack) victim() *route {
	for looks := 0; ; looks++ {
		s.routeHand = (s.routeHand + 1) % len(s.routeClock)
		r := s.routeClock[s.routeHand]
		switch {
		case r.state == routeResolving: // far fewer than maxRoutes
		case r.sent <= r.sentAtHand, looks >= maxLooks:
			return r
		default:
			r.sentAtHand = r.sent
		}
	}
}

// dropRoute removes r from the cache. Nothing is held on it any more.
func (s *Stack) dropRoute(r *route) {
	r.state = routeDead
	r.leadThrough(nil)
	s.stopTimer(&r.timer)
	delete(s.routes, r.dst)
	last := len(s.routeClock) - 1
	moved := s.routeClock[last]
	s.routeClock[r.slot], moved.slot = moved, r.slot
	s.routeClock[last] = nil
	s.routeClock = s.routeClock[:last]
}

// askResolver asks the route service for r. Only so many refreshes are under way
// at once; the others wait for their turn. A new destination never waits: if
// there are too many, the one that was asked for first has had the longest time
// to be answered, and gives way.
func (s *Stack) askResolver(r *route) {
	if r.asked {
		return
	}
	r.asked = true
	r.sentSeen = r.sent
	s.armRoute(r, never)
	switch {
	case r.state == routeResolving:
		if len(s.resolving) >= maxResolving {
			s.giveRouteUp(s.resolving[0])
		}
		s.resolving = append(s.resolving, r)
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
	if r.state == routeResolving {
		s.stopResolving(r)
	}
	if err == nil {
		err = s.setRoute(r, answer)
	}
	if err != nil {
		s.routeError(r, err)
	}
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
	s.dropRoute(r)
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
		r.leadThrough(nil)
		r.nextHop, r.state = nextHop, routeReady
		r.headers.setLinkDst(a.LinkAddr)
	case first || r.nextHop != nextHop:
		r.leadThrough(nil)
		r.nextHop, r.state = nextHop, routeUnresolved
	}
	s.routeHeld(r)
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
		s.failAllHeld(&r.held, r.err)
	case s.now-r.resolvedAt >= keepTime:
		s.dropRoute(r)
	default:
		s.armRoute(r, s.now+refreshInterval)
	}
}

// expired runs when r's timer does.
func (r *route) expired(s *Stack) {
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
