package stack

import (
	"context"
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// A route to one destination, cached with the headers that lead there.
//
//	             answer            unused for 250 ms          60 s
//	resolving ──────────▶ ready ───────────────────▶ stale ──────────▶ dead
//	    │                 │  ▲ ▲                       │
//	    │ error     idle  │  │ └──────── used ─────────┘
//	    ▼           neigh-▼  │ answer to ARP
//	 failed ─1 s─▶  dead  unresolved
//
// A route in use is looked at every 250 ms (heard.go), and the route service is
// asked for it again behind the sender's back: every 5 s, and at once if it is
// doubtful or has been invalidated. While nobody can tell, the old answer is good,
// and the question is repeated. Whoever sends meanwhile does not wait: packets are
// held (held.go).
const (
	maxRoutes       = 16384
	maxLooks        = 64 // at routes that are in use, for one that is not
	refreshInterval = 5 * second
	staleTime       = 60 * second
	pathMTUTime     = 600 * second // RFC 1191, section 6.3
	minPathMTU      = 576          // bytes; less is not believed, as in TCP
)

type routeState uint8

const (
	routeResolving  routeState = iota // the resolver is asked; packets are held here
	routeReady                        // headers are complete
	routeStale                        // complete, and nobody uses it
	routeUnresolved                   // headers lack the link address of the next hop; packets are held there
	routeFailed                       // err says why
	routeDead                         // no longer in the table; sockets may still point here
)

type route struct {
	state      routeState
	asked      bool // an answer of the resolver is to come
	again      bool // and it will have to be asked once more
	wanted     bool // an answer is wanted with the next look or use
	headers    headers
	maxPayload int // of a UDP datagram, bytes
	maxPacket  int // of TCP, bytes of IP packet
	sent       uint64

	dst, nextHop [4]byte
	neighbour    *neighbour // if link addresses come from ARP
	held         heldQueue
	waiting      []*tcp.Conn // that have something to send, tcp_output.go
	err          error
	giveUp       context.CancelFunc // of the resolver, while resolving

	slot       int    // in the cache's clock
	sentAtHand uint64 // sent, when the clock's hand last passed

	mtu          int     // without what has been learnt of the path
	pathMTU      int     // reported by ICMP about datagrams; 0: nothing
	pathMTUUntil instant // when that is forgotten
	tcpMTU       int     // found out by a connection, pathmtu.go; 0: nothing
	tcpSearched  bool    // by probes, and not from a router
	tcpMTUUntil  instant // when that is forgotten
	due          instant // when the state changes by itself
	timer        timer   // for the earlier of the two
	askedAt      instant
	lookedAt     instant
	sentLooked   uint64 // sent, when it was looked at
}

func (s *Stack) armRoute(r *route, due instant) {
	r.due = due
	at := due
	if r.pathMTU != 0 {
		at = min(at, r.pathMTUUntil)
	}
	if r.tcpMTU != 0 {
		at = min(at, r.tcpMTUUntil)
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
	r.maxPacket = r.mtu
	if r.tcpMTU != 0 {
		r.maxPacket = min(r.maxPacket, r.tcpMTU)
	}
	mtu := r.maxPacket
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
		s.useAgain(r)
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
	if len(s.routes) >= s.maxRoutes {
		s.dropRoute(s.victim())
	}
	r := &route{dst: dst, nextHop: dst, mtu: s.mtu, due: never, slot: len(s.routeClock), sentAtHand: 1}
	r.timer.owner = r
	r.headers = makeHeaders(s.linkAddr, wire.LinkAddr{}, s.addr, dst, wire.ProtocolUDP)
	r.setMTU()
	s.routes[dst] = r
	s.routeClock = append(s.routeClock, r)
	if s.resolver != nil {
		r.lookedAt = s.readClock()
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
	s.resumeWaiting(r)
	r.leadThrough(nil)
	s.stopTimer(&r.timer)
	delete(s.routes, r.dst)
	last := len(s.routeClock) - 1
	moved := s.routeClock[last]
	s.routeClock[r.slot], moved.slot = moved, r.slot
	s.routeClock[last] = nil
	s.routeClock = s.routeClock[:last]
}

// expired runs when r's timer does.
func (r *route) expired(s *Stack) {
	s.forgetPathMTU(r)
	if s.now < r.due {
		s.armRoute(r, r.due)
		return
	}
	switch {
	case r.state == routeReady:
		s.lookAt(r)
	case r.state == routeResolving && r.held.n > 0:
		s.askResolver(r)
	case r.state == routeResolving:
		s.forgetResolving(r)
	case r.state == routeUnresolved && r.sent != r.sentLooked:
		r.sentLooked = r.sent
		s.askResolver(r)
	default:
		s.dropRoute(r)
	}
}
