package stack

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// Resolver is the route service. Resolve may block until ctx ends; the stack
// calls it from a goroutine of its own, never under its lock. src is the source of the packets;
// if it is not valid the service chooses one, which may be none of the stack's. An error that is
// EHOSTUNREACH, ENETUNREACH, EACCES (prohibited) or EINVAL (a black hole) is a verdict: dst cannot be
// reached. After any other error, which is no statement about dst, the stack asks again.
type Resolver interface {
	Resolve(ctx context.Context, src, dst netip.Addr) (Route, error)
}

// Route is how a destination is reached.
type Route struct {
	Source   netip.Addr    // of packets that are sent there; may be left out
	LinkAddr wire.LinkAddr // of the next hop
	MTU      int           // bytes of IP packet; 0: that of the link
	// MTULocked: routers may fragment the packets. They have no DF, and reports of a smaller path MTU are ignored.
	MTULocked bool
	AdvMSS    int // the MSS that TCP announces at most, bytes; 0: that of the MTU
}

// verdicts are the errors by which a [Resolver] says that a destination cannot be reached.
var verdicts = [...]syscall.Errno{syscall.ENETUNREACH, syscall.EACCES, syscall.EINVAL, syscall.EHOSTUNREACH}

// verdictOf is the verdict in an error; 0: there is none.
func verdictOf(err error) syscall.Errno {
	for _, errno := range verdicts {
		if errors.Is(err, errno) {
			return errno
		}
	}
	return 0
}

var errAnswerLinkAddr = errors.New("the route service answered with no usable MAC address")

const (
	maxRoutes       = 16384
	maxLooks        = 64 // routes in use that are looked at to find one that is not
	maxResolving    = 256
	maxRefreshing   = 8 // few, since other processes ask the same service
	resolveTimeout  = 5 * time.Second
	retryInterval   = 250 * second / 1000 // after an answer that was no verdict
	lookInterval    = 250 * second / 1000
	refreshInterval = 5 * second
	staleTime       = 60 * second
	answerTime      = 10 * second  // without an answer for so long, a new route has failed
	failureTime     = second       // how long a failure is remembered
	pathMTUTime     = 600 * second // RFC 1191, section 6.3
	minPathMTU      = 576          // bytes; less is ignored, as in TCP
	// unverifiedMTUTime is pathMTUTime for what a connection has from a router and has
	// not verified with probes.
	unverifiedMTUTime = 30 * second

	// Routes that are silent are asked for once in silencePause for one MAC address, and
	// all of them together at the rate of a token bucket.
	silencePause    = 300 * second / 1000
	silenceBurst    = 32
	silenceInterval = second / silenceBurst

	// Packets held for routes. For one destination RFC 1122, section 2.3.2.2, requires at least
	// one. The kernel holds 212,992 bytes (unres_qlen_bytes), which are as many frames of 2 KiB.
	maxHeld      = 104 // for one destination
	maxHeldStack = 256 // for all; Stack.maxHeld is less if there are few frames
	leastHeld    = 16
)

type routeState uint8

const (
	routeResolving routeState = iota // the resolver is asked; packets are held
	routeReady                       // headers are complete
	routeStale                       // complete, and unused
	routeFailed                      // err says why
	routeDead                        // no longer in the table; sockets may still point here
)

// route is the cached route to one destination, with the headers of packets to it.
//
//	             answer            unused for 250 ms          60 s
//	resolving ──────────▶ ready ───────────────────▶ stale ──────────▶ dead
//	    │                   ▲                           │
//	    │ verdict, or       └───────── used ────────────┘
//	    │ none for 10 s
//	    ▼
//	 failed ── 1 s ──▶ dead
//
// The resolver is asked again for a route in use every 5 s, and at once if the route is
// silent (lookAt) or was invalidated. Until it has answered, and if it fails, the old
// answer is used. A send does not wait for the resolver: its packet is held, and a connection
// waits. Both only for a route that is resolving, which either answer, or answerTime, ends.
type route struct {
	state      routeState
	asked      bool // the resolver has been asked and has not answered
	again      bool // ask once more when it has
	wanted     bool // ask with the next look or use
	headers    headers
	maxPayload int // of a UDP datagram, bytes
	maxPacket  int // of TCP, bytes of IP packet
	sent       uint64

	ends                       // as the resolver is asked
	source  wire.Addr          // of packets whose sender names none: from, or the resolver's choice
	uplink  *uplink            // of source
	held    int                // packets in Stack.held
	waiting []*tcp.Conn        // that have something to send
	askers  int                // goroutines in SourceTo
	err     error              // of sends while it is failed: one of verdicts, with the resolver's
	giveUp  context.CancelFunc // of the first question, while resolving

	group      bool   // to a multicast or broadcast address; see groupRoute
	slot       int    // in Stack.routeClock
	sentAtHand uint64 // sent, when the clock's hand last passed

	mtu          int     // as the resolver has it
	mtuLocked    bool    // likewise
	advMSS       uint16  // likewise, as the link permits it; 0: that of the MTU
	pathMTU      int     // reported by ICMP about datagrams; 0: none
	pathMTUUntil instant // when that is forgotten
	tcpMTU       int     // found by a connection; 0: none
	tcpSearched  bool    // by probes, and not from a router
	tcpMTUUntil  instant // when that is forgotten
	due          instant // when the state changes by itself
	timer        timer   // for the earliest of the three
	newAt        instant // when the route was made
	askedAt      instant
	lookedAt     instant
	sentLooked   uint64 // sent, when it was looked at
}

// resolved reports whether r has the resolver's answer.
func (r *route) resolved() bool { return r.state == routeReady || r.state == routeStale }

// wanting reports whether something waits for r.
func (r *route) wanting() bool { return r.held > 0 || len(r.waiting) > 0 || r.askers > 0 }

// endsOf are the ends of packets from an address, or, if that is zero, from the only one that they
// can have, or else from the one that the route service chooses.
func (s *Stack) endsOf(from, dst wire.Addr) ends {
	if from == (wire.Addr{}) {
		if only, sole := s.own.Load().source(dst); sole {
			from = only
		}
	}
	return ends{from, dst}
}

// usableRoute returns a route that is ready, or resolving: then packets to dst are to be
// held. A zero from stands for any address. mu is held, as in all of this file.
//
// +checklocks:s.mu
func (s *Stack) usableRoute(from, dst wire.Addr) (*route, error) {
	by := s.endsOf(from, dst)
	if slices.Contains(s.own.Load().lost, by.from) {
		return nil, syscall.EADDRNOTAVAIL
	}
	r := s.routes[by]
	if r == nil {
		var err error
		if r, err = s.newRoute(by); err != nil {
			return nil, err
		}
	}
	switch r.state {
	case routeStale:
		r.state = routeReady
		r.lookedAt = s.readClock()
		if r.wanted || s.now-r.askedAt >= refreshInterval {
			s.askResolver(r)
		} else {
			s.armRoute(r, s.now+lookInterval)
		}
	case routeFailed:
		return nil, r.err
	}
	return r, nil
}

// +checklocks:s.mu
func (s *Stack) newRoute(by ends) (*route, error) {
	source := by.from
	if source == (wire.Addr{}) {
		source = s.source(by.to)
	}
	if !by.to.IsHost() && !s.asksForGroup(by) || s.isBroadcast(by.to) || source == (wire.Addr{}) {
		return nil, syscall.ENETUNREACH
	}
	if len(s.routes) >= s.maxRoutes {
		s.dropRoute(s.victim())
	}
	r := s.addRoute(by, source)
	s.askResolver(r)
	return r, nil
}

// addRoute adds a route that nobody has been asked for.
//
// +checklocks:s.mu
func (s *Stack) addRoute(by ends, source wire.Addr) *route {
	u := s.uplinkOf(source)
	r := &route{ends: by, source: source, uplink: u, mtu: u.mtu, due: never, slot: len(s.routeClock), sentAtHand: 1}
	r.timer.owner = r
	r.headers = makeHeaders(u.addr, wire.LinkAddr{}, source, by.to)
	r.setMTU()
	s.routes[by] = r
	s.routeClock = append(s.routeClock, r)
	r.newAt = s.readClock()
	r.lookedAt = r.newAt
	return r
}

// victim picks the route that is replaced by a new one: the first that has sent
// nothing since the clock's hand last passed it (second chance), or nothing but
// the packet it was made for, as in a scan or a flood. The search is bounded.
//
// +checklocks:s.mu
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

// dropRoute removes r from the cache. Nothing is held for it any more.
//
// +checklocks:s.mu
func (s *Stack) dropRoute(r *route) {
	r.state = routeDead
	s.resumeWaiting(r)
	s.stopTimer(&r.timer)
	delete(s.routes, r.ends)
	last := len(s.routeClock) - 1
	moved := s.routeClock[last]
	s.routeClock[r.slot], moved.slot = moved, r.slot
	s.routeClock[last] = nil
	s.routeClock = s.routeClock[:last]
}

// armRoute sets the time at which the state of r changes by itself.
//
// +checklocks:s.mu
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

// expired runs when r's timer does.
//
// +checklocks:s.mu
func (r *route) expired(s *Stack) {
	if s.now >= r.pathMTUUntil {
		r.pathMTU = 0
	}
	if s.now >= r.tcpMTUUntil {
		r.tcpMTU = 0
	}
	r.setMTU()
	switch {
	case s.now < r.due:
		s.armRoute(r, r.due)
	case r.state == routeReady:
		s.lookAt(r)
	case r.state == routeResolving && r.wanting():
		s.askResolver(r)
	case r.state == routeResolving:
		s.forgetResolving(r)
	default:
		s.dropRoute(r)
	}
}

// askResolver asks the route service for r. A new destination is asked for at once: beyond
// maxResolving the one that was asked for first is given up. Of the others maxRefreshing
// are asked for at once.
//
// +checklocks:s.mu
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
				s.count[routesGivenUp]++
				first := s.resolving[0]
				first.giveUp()
				s.settleHeld(first, syscall.ENOBUFS)
				s.forgetResolving(first)
			}
			s.resolving = append(s.resolving, r)
		}
		ctx, cancel := context.WithTimeout(s.ctx, resolveTimeout)
		r.giveUp = cancel
		go s.resolve(ctx, cancel, r)
	case s.refreshing < maxRefreshing:
		s.refreshing++
		go s.refresh(r)
	default:
		s.toRefresh = append(s.toRefresh, r)
	}
}

// refresh asks for r, and then for others as long as some wait to be asked for. It runs in
// a goroutine of its own, without the lock.
func (s *Stack) refresh(r *route) {
	for r != nil {
		ctx, cancel := context.WithTimeout(s.ctx, resolveTimeout)
		s.resolve(ctx, cancel, r)
		r = s.nextRefresh()
	}
}

func (s *Stack) nextRefresh() *route {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.toRefresh) > 0 && !s.closed {
		r := s.toRefresh[0]
		s.toRefresh[0] = nil
		s.toRefresh = s.toRefresh[1:]
		if r.state != routeDead {
			return r
		}
	}
	s.refreshing--
	return nil
}

// resolve asks the route service for r and takes its answer. It is called without the lock.
func (s *Stack) resolve(ctx context.Context, cancel context.CancelFunc, r *route) {
	answer, u, err := s.askUplinks(ctx, r)
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	r.asked = false
	if s.closed || r.state == routeDead {
		return
	}
	s.readClock()
	verdict := err == nil || verdictOf(err) != 0
	if err == nil && (answer.LinkAddr == wire.LinkAddr{} || answer.LinkAddr.IsGroup() && !s.isGroup(r.to)) {
		err = errAnswerLinkAddr
	}
	if err != nil {
		s.count[routesFailed]++
	}
	if err == nil && r.from == (wire.Addr{}) {
		err = s.chooseSource(r, u, answer.Source)
	}
	switch {
	case err == nil:
		s.setRoute(r, answer)
	case verdict:
		s.failRoute(r, err)
	default:
		s.askLater(r, err)
	}
	if r.again && r.state != routeDead { // the answer may be from before the change
		r.again = false
		s.invalidate(r)
	}
	s.settle()
}

// setRoute takes the resolver's answer.
//
// +checklocks:s.mu
func (s *Stack) setRoute(r *route, a Route) {
	before, locked := r.mtu, r.mtuLocked
	r.mtu = r.uplink.mtu
	if a.MTU != 0 {
		r.mtu = max(minMTU, min(a.MTU, r.mtu))
	}
	if r.mtuLocked = a.MTULocked; r.mtuLocked {
		r.pathMTU, r.tcpMTU = 0, 0
	}
	r.advMSS = 0
	if a.AdvMSS > 0 {
		fixed := r.headers.len - wire.EthernetHeaderLen + wire.TCPHeaderLen
		r.advMSS = uint16(max(minMTU, min(a.AdvMSS+fixed, r.uplink.mtu)) - fixed)
	}
	r.setMTU()
	if r.state == routeResolving {
		s.stopResolving(r)
	} else {
		s.count[routesRefreshed]++
		if r.mtu < before || r.mtuLocked != locked { // larger segments in flight are lost
			s.tcp.SetMTU(tcp.Time(s.now), r.from, r.to, r.mtu, r.mtuLocked)
		}
	}
	r.headers.setFragmentable(r.mtuLocked)
	r.state = routeReady
	copy(r.headers.bytes[:6], a.LinkAddr[:])
	s.armRoute(r, s.now+lookInterval)
	source := r.uplink.scoped(wire.AddrFrom(a.Source))
	dial := r.from == (wire.Addr{}) && r.source == source && r.askers > 0
	s.resumeWaiting(r)
	s.settleHeld(r, nil)
	if by := (ends{source, r.to}); dial && s.routes[by] == nil && len(s.routes) < s.maxRoutes {
		s.setRoute(s.addRoute(by, source), a) // the answer is also that for this source, which SourceTo returns
	}
}

// failRoute takes the verdict that r leads nowhere.
//
// +checklocks:s.mu
func (s *Stack) failRoute(r *route, err error) {
	s.stopResolving(r)
	r.state = routeFailed
	errno := cmp.Or(verdictOf(err), syscall.EHOSTUNREACH)
	r.err = fmt.Errorf("%w: %v: %w", errno, r.to.Netip(), err)
	s.armRoute(r, s.now+failureTime)
	s.settleHeld(r, r.err)
	s.loseWaiting(r, r.err)
}

// askLater is called when the route service has failed: it is not reachable or busy. A route
// that is ready is kept, and asked for with its next look or use. One that is new is asked
// for again as long as something waits for it, until answerTime has passed. why is the
// resolver's error.
//
// +checklocks:s.mu
func (s *Stack) askLater(r *route, why error) {
	r.wanted = true
	switch {
	case r.state != routeResolving:
		s.armRoute(r, s.now+lookInterval)
	case !r.wanting():
		s.forgetResolving(r)
	case s.now-r.newAt < answerTime:
		s.armRoute(r, s.now+retryInterval)
	default:
		// %v: this is no verdict, and no deadline of a caller.
		s.failRoute(r, fmt.Errorf("the route service has not answered for %v: %v", time.Duration(answerTime), why))
	}
}

// stopResolving takes r off the list of new destinations.
//
// +checklocks:s.mu
func (s *Stack) stopResolving(r *route) {
	if i := slices.Index(s.resolving, r); i >= 0 {
		s.resolving = slices.Delete(s.resolving, i, i+1)
	}
	r.giveUp = nil
	s.role.broadcast(&s.answered)
}

// forgetResolving drops a new destination to which nothing is to be sent any more.
//
// +checklocks:s.mu
func (s *Stack) forgetResolving(r *route) {
	s.stopResolving(r)
	s.loseWaiting(r, nil)
	s.dropRoute(r)
}

// heldPacket waits for its route. It is complete but for the destination MAC address, and perhaps the source.
type heldPacket struct {
	frame  Frame
	uplink *uplink // of the frame
	sock   *udp.Socket
	route  *route
}

// hold keeps f until there is an answer for r. Beyond maxHeld for r its oldest is dropped, and
// beyond Stack.maxHeld for all the oldest of the destination with the most.
//
// +checklocks:s.mu
func (s *Stack) hold(r *route, f Frame, sock *udp.Socket) {
	if r.held >= maxHeld {
		s.dropOldestHeld(r)
	} else if len(s.held) >= s.maxHeld {
		s.dropHeldOfMost()
	}
	s.held = append(s.held, heldPacket{f, r.uplink, sock, r})
	r.held++
}

// +checklocks:s.mu
func (s *Stack) dropOldestHeld(r *route) {
	s.dropHeld(slices.IndexFunc(s.held, func(h heldPacket) bool { return h.route == r }))
}

// dropHeldOfMost drops the oldest packet of the destination for which most are held. There must be one.
//
// +checklocks:s.mu
func (s *Stack) dropHeldOfMost() {
	most := s.held[0].route
	for _, h := range s.held {
		if h.route.held > most.held {
			most = h.route
		}
	}
	s.dropOldestHeld(most)
}

// dropHeld drops the held packet i.
//
// +checklocks:s.mu
func (s *Stack) dropHeld(i int) {
	s.count[heldDropped]++
	s.held[i].route.held--
	s.held[i].uplink.link.Cancel(s.held[i].frame)
	s.held = slices.Delete(s.held, i, i+1)
}

// settleHeld sends what is held for r, in order, or drops it because of err. With a nil r it
// drops what is held for all routes because of err, or, if err is nil, only what cannot be sent
// while the link is down or its source is lost. A connected socket gets the reason as its pending
// error. Other sockets get it from their next send to that destination, so that a read of a server
// does not fail because of one peer.
//
// +checklocks:s.mu
func (s *Stack) settleHeld(r *route, err error) {
	for i := 0; i < len(s.held); {
		h := s.held[i]
		if r != nil && h.route != r {
			i++
			continue
		}
		why := err
		if r == nil && err == nil {
			why = s.downFrom(h.source())
			if why == nil {
				i++
				continue
			}
		}
		if why == nil && len(h.frame.Data)-h.route.headers.len-wire.UDPHeaderLen > h.route.maxPayload {
			why = syscall.EMSGSIZE
		}
		if why != nil {
			s.dropHeld(i)
			if h.sock.Connected() {
				h.sock.Owner.(*UDPConn).setError(why) // +checklocksignore: a socket of this stack
			}
			continue
		}
		if h.uplink != h.route.uplink && !s.moveHeld(i) {
			s.dropHeld(i)
			continue
		}
		h = s.held[i]
		s.held = slices.Delete(s.held, i, i+1)
		h.route.held--
		copy(h.frame.Data, h.route.headers.bytes[:6])
		if h.route.from == (wire.Addr{}) && h.source() != h.route.source {
			h.route.readdress(h.frame.Data)
		}
		if s.transmit(h.uplink, h.frame) {
			h.sock.CountSent()
		}
	}
}

// source is the source address of the packet.
func (h *heldPacket) source() wire.Addr {
	ip := h.frame.Data[wire.EthernetHeaderLen:]
	if ip[0]>>4 == 4 {
		return wire.AddrFrom4([4]byte(ip[12:]))
	}
	return h.uplink.scoped(wire.AddrFrom16([16]byte(ip[8:])))
}

// moveHeld moves held packet i to a frame of the uplink that its route has now. false: there is none.
//
// +checklocks:s.mu
func (s *Stack) moveHeld(i int) bool {
	h := &s.held[i]
	f, ok := s.moved(h.frame, h.uplink, h.route.uplink)
	if ok {
		h.frame, h.uplink = f, h.route.uplink
	}
	return ok
}

// moved copies a frame to send to one of another uplink, and gives it back. If there is none, it stays the caller's.
func (s *Stack) moved(f Frame, from, to *uplink) (Frame, bool) {
	g, ok := to.link.Reserve(len(f.Data))
	if !ok {
		return f, false
	}
	if len(g.Data) < len(f.Data) {
		to.link.Cancel(g)
		return f, false
	}
	g.Data = g.Data[:copy(g.Data, f.Data)]
	from.link.Cancel(f)
	return g, true
}

// setSource changes the source of what is sent by r.
//
// +checklocks:s.mu
func (s *Stack) setSource(r *route, a wire.Addr) {
	if r.source != a {
		r.source, r.uplink = a, s.uplinkOf(a)
		r.headers = makeHeaders(r.uplink.addr, wire.LinkAddr(r.headers.bytes[:6]), a, r.to)
		r.headers.setFragmentable(r.mtuLocked)
	}
}

// readdress gives a datagram that was held the source that the route service has chosen.
func (r *route) readdress(frame []byte) {
	ip, datagram := frame[wire.EthernetHeaderLen:], frame[r.headers.len:]
	tos := ip[1]
	if r.headers.len == headersLen6 {
		tos = ip[0]<<4 | ip[1]>>4
	}
	wire.PutUDPInPlace(datagram, &wire.UDPFlow{
		Src: r.source, Dst: r.to, SrcPort: binary.BigEndian.Uint16(datagram), DstPort: binary.BigEndian.Uint16(datagram[2:]),
	})
	r.headers.put(frame, wire.ProtocolUDP, len(datagram))
	if tos != 0 {
		setTOS(frame, tos)
	}
}
