package stack

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// This file has what changes a route after the resolver has answered: silence, the MTU of
// the path, and changes of the link, the address and the kernel's routes. mu is held in all
// functions except the exported methods.

// lookAt looks at a ready route of which a lookInterval has passed. If packets were sent
// and no frame has come from its MAC address meanwhile, the route is silent: the next hop
// may have another MAC address, which the kernel cannot detect, since it does not see our
// traffic. Then the route service is asked, and has the neighbour probed. Traffic that is
// never answered thus costs some three questions a second for one MAC address, and
// silenceBurst a second for all.
//
// +checklocks:s.mu
func (s *Stack) lookAt(r *route) {
	used := r.sent != r.sentLooked
	to := binary.BigEndian.Uint64(r.headers.bytes[:8])
	silent := used && !s.heard.since(to, r.lookedAt, s.now)
	r.sentLooked, r.lookedAt = r.sent, s.now
	switch {
	case !used:
		r.state = routeStale
		s.armRoute(r, s.now+staleTime)
	case r.wanted || s.now-r.askedAt >= refreshInterval:
		s.askResolver(r)
	case silent && !s.silent.since(to, s.now-silencePause, s.now) && s.silenceTokens.take(s.now, silenceInterval, silenceBurst):
		s.count[routesDoubted]++
		*s.silent.place(to) = to&^0xffff | uint64(s.now>>tickBits)&0xffff
		s.askResolver(r)
	default:
		s.armRoute(r, s.now+lookInterval)
	}
}

// linkTimes has for MAC addresses the time of the last event. It is a hash table without
// chains: an address whose place another one has taken counts as one without an event. The
// address is in the upper 48 bits, the time in the lower 16, in ticks modulo 2^16.
type linkTimes [1 << placeBits]uint64

const (
	placeBits = 12
	tickBits  = 20 // a tick is 2^20 ns
)

// place is the place of an address, in the upper 48 bits of a, in the table. The multiplier
// spreads addresses that differ in a few bits only (Fibonacci hashing).
func (t *linkTimes) place(a uint64) *uint64 {
	return &t[(a>>16)*0x9e3779b97f4a7c15>>(64-placeBits)]
}

// since reports whether a has an event in the tick of then or later.
func (t *linkTimes) since(a uint64, then, now instant) bool {
	v, at := *t.place(a), uint16(now>>tickBits)
	return (v^a)>>16 == 0 && at-uint16(v) <= at-uint16(then>>tickBits)
}

// setMTU derives what may be sent from what is known of the path.
func (r *route) setMTU() {
	r.maxPacket = r.mtu
	if r.tcpMTU != 0 {
		r.maxPacket = min(r.maxPacket, r.tcpMTU)
	}
	mtu := r.maxPacket
	if r.pathMTU != 0 {
		mtu = min(mtu, r.pathMTU)
	}
	r.maxPayload = max(0, mtu-(r.headers.len-wire.EthernetHeaderLen)-wire.UDPHeaderLen)
}

// lowerPathMTU takes a router's report about a datagram of ours that was too large for
// its next hop. It is accepted if it quotes what a socket here could have sent. Such a quote
// is not hard to guess, so TCP does not use it.
//
// +checklocks:s.mu
func (s *Stack) lowerPathMTU(e *wire.ICMPError) {
	for _, from := range []wire.Addr{{}, e.Src} {
		if r := s.routes[ends{from, e.Dst}]; r != nil {
			s.lowerRouteMTU(r, e)
		}
	}
}

// +checklocks:s.mu
func (s *Stack) lowerRouteMTU(r *route, e *wire.ICMPError) {
	mtu := e.MTU
	if mtu == 0 {
		mtu = tcp.PlateauBelow(e.Size)
	}
	low := max(mtu, minPathMTU)
	if r.mtuLocked || mtu >= e.Size || low >= r.mtu || r.pathMTU != 0 && low >= r.pathMTU { // that packet would have passed, or it is known
		s.count[pathMTUIgnored]++
		return
	}
	s.count[pathMTULowered]++
	r.pathMTU, r.pathMTUUntil = low, s.now+pathMTUTime
	r.setMTU()
	s.armRoute(r, r.due)
}

// learnPathMTU takes what a connection has found out about its path: new connections begin
// with it. What it has from a router, and no probe has verified, is kept for a short time.
//
// +checklocks:s.mu
func (s *Stack) learnPathMTU(conn *tcp.Conn) {
	r := s.routes[ends{conn.Local().Addr, conn.Remote().Addr}]
	if r == nil {
		return
	}
	mtu, searched := conn.PathMTU()
	switch {
	case r.mtuLocked, mtu >= conn.MaxMTU(): // it has no limit of its own
		mtu = 0
	case r.tcpMTU == 0 || mtu < r.tcpMTU:
		s.count[pathMTULowered]++
	}
	r.tcpMTU, r.tcpSearched, r.tcpMTUUntil = mtu, searched, s.now+unverifiedMTUTime
	if searched {
		r.tcpMTUUntil = s.now + pathMTUTime
	}
	r.setMTU()
	s.armRoute(r, r.due)
}

// tellRoute gives a connection what the resolver has said about the route.
func (r *route) tellRoute(now tcp.Time, conn *tcp.Conn) {
	conn.SetAdvMSS(r.advMSS)
	conn.SetMTU(now, r.mtu, r.mtuLocked)
}

// tellPathMTU gives a connection that is about to send also what others have found out about the path.
func (r *route) tellPathMTU(now tcp.Time, conn *tcp.Conn) {
	r.tellRoute(now, conn)
	if r.tcpMTU != 0 {
		conn.SuggestMTU(now, r.tcpMTU, r.tcpSearched)
	}
}

// Invalidate is called when the answer of the route service for dst may have changed; an
// invalid dst stands for all destinations. Routes in use are asked for again, and used
// unchanged until the answer comes. Others are asked for with their next use.
func (s *Stack) Invalidate(dst netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.readClock()
	if !dst.IsValid() {
		s.invalidateAll()
		return
	}
	to := s.addrOf(dst)
	for _, from := range append([]wire.Addr{{}}, s.own.Load().all...) {
		if r := s.routes[ends{from, to}]; r != nil {
			s.invalidate(r)
		}
	}
}

// +checklocks:s.mu
func (s *Stack) invalidateAll() {
	for _, r := range s.routes {
		s.invalidate(r)
	}
}

// +checklocks:s.mu
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

// SetLink sets whether the link of an uplink, by its number, carries frames; at first it does. While it does not,
// sends from its addresses fail with ENETDOWN, also those that block already and those that are held for a
// route, except to another endpoint behind our own MAC address. Reads go on waiting. When
// the link carries frames again, routes are asked for again, and TCP retransmits.
func (s *Stack) SetLink(uplink int, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.uplinks[uplink]
	if s.closed || u.down != up || u.ended {
		return
	}
	u.down = !up
	s.down--
	if !up {
		s.down += 2
		s.count[linkDowns]++
	}
	s.linkOrAddressChanged(up)
}

// SetAddress sets whether the host has an address on an uplink, by its number, which comes with its subnet. Of one that it has on several, only
// the first to come counts. One that is new becomes
// an address of the stack, if that shares its addresses. While the host has not one of the stack's, sends
// from it fail with EADDRNOTAVAIL, and all else is for that address as while the link is down. Other
// addresses are not affected. Shared addresses that the host has not are forgotten if no socket or
// connection is bound to them and there is another one of their family and scope: SetAddress returns those. The
// error is for an address that no host has, and for an IPv6 one if the MTU is too small.
func (s *Stack) SetAddress(uplink int, addr netip.Prefix, here bool) (forgotten []netip.Addr, err error) {
	a := s.uplinks[uplink].scoped(wire.AddrFrom(addr.Addr()))
	s.mu.Lock()
	defer s.mu.Unlock()
	own, o := s.own.Load(), ownAddress{addr, uplink}
	known := slices.Contains(own.all, a)
	moved := here && !slices.Contains(own.list, o) // its subnet has another length, or it has gone elsewhere
	if known && own.number(a) != uplink && (!here || !slices.Contains(own.lost, a)) {
		return nil, nil
	}
	if s.closed || known && slices.Contains(own.lost, a) != here && !moved || !known && (!here || s.ownedAddress) {
		return nil, nil
	}
	list, lost := slices.Clone(own.list), slices.DeleteFunc(slices.Clone(own.lost), func(l wire.Addr) bool { return l == a })
	switch {
	case !known:
		list = append(list, o)
	case !here:
		lost = append(lost, a)
	case moved:
		list[slices.Index(own.all, a)] = o
	}
	changed, err := newAddresses(list, lost, s.uplinks)
	if err != nil {
		return nil, err
	}
	if !s.ownedAddress {
		changed, forgotten = s.forget(changed)
	}
	s.own.Store(changed)
	s.recent = wire.Addr{}
	for c := range s.udpConns {
		c.route = nil // the source of what follows may be another one
	}
	switch {
	case !here:
		s.leaveSource(a)
	case known && own.number(a) != uplink:
		s.forsake(a)
	}
	s.linkOrAddressChanged(here)
	return forgotten, nil
}

// forsake drops the routes from an address that has gone to another uplink. mu is held.
//
// +checklocks:s.mu
func (s *Stack) forsake(a wire.Addr) {
	for _, r := range s.routes {
		if r.from == a {
			s.settleHeld(r, syscall.EADDRNOTAVAIL)
			s.stopResolving(r)
			s.dropRoute(r)
		}
	}
}

// leaveSource changes routes by which packets come from an address that has just gone.
//
// +checklocks:s.mu
func (s *Stack) leaveSource(a wire.Addr) {
	for _, r := range s.routes {
		switch {
		case r.source != a:
		case r.from == a:
			if r.state == routeReady {
				r.state = routeStale // so that its users look at the address
			}
		default: // until the route service has answered again
			if other := s.source(r.to); other != (wire.Addr{}) && (r.state == routeResolving || s.uplinkOf(other) == r.uplink) {
				s.setSource(r, other)
				continue
			}
			s.settleHeld(r, syscall.ENETUNREACH)
			s.stopResolving(r)
			s.dropRoute(r)
		}
	}
	for by, r := range s.groupRoutes {
		if r.source == a {
			delete(s.groupRoutes, by)
		}
	}
	for by, r := range s.answers {
		if r.source == a {
			r.state = routeDead
			delete(s.answers, by)
		}
	}
}

// forget leaves out those lost addresses that can be forgotten. mu is held.
//
// +checklocks:s.mu
func (s *Stack) forget(own *addresses) (left *addresses, forgotten []netip.Addr) {
	i := -1
	list := slices.DeleteFunc(slices.Clone(own.list), func(ownAddress) bool {
		i++
		a := own.all[i]
		if !slices.Contains(own.lost, a) || s.isBound(a) || !own.hasOther(a) { // +checklocksignore: called here only
			return false
		}
		forgotten = append(forgotten, s.netip(a))
		return true
	})
	if forgotten == nil {
		return own, nil
	}
	lost := slices.DeleteFunc(slices.Clone(own.lost), func(a wire.Addr) bool { return slices.Contains(forgotten, s.netip(a)) })
	left, _ = newAddresses(list, lost, s.uplinks) // they were all valid
	return left, forgotten
}

// hasOther reports whether there is another address of the family and scope of a that is not lost.
func (own *addresses) hasOther(a wire.Addr) bool {
	return slices.ContainsFunc(own.all, func(o wire.Addr) bool {
		return o != a && o.Is4() == a.Is4() && o.IsLinkLocal() == a.IsLinkLocal() && !slices.Contains(own.lost, o)
	})
}

// isBound reports whether a socket or connection has a local address.
//
// +checklocks:s.mu
func (s *Stack) isBound(a wire.Addr) bool {
	if s.tcp.Uses(a) {
		return true
	}
	for c := range s.tcpConns { // one that has ended keeps its port until it is closed
		if c.conn.Local().Addr == a {
			return true
		}
	}
	for l := range s.tcpListeners {
		if l.listener.Addr().Addr == a {
			return true
		}
	}
	for c := range s.udpConns {
		if c.udp.Local().Addr == a {
			return true
		}
	}
	for p := range s.udpPorts {
		if p.udp.Local().Addr == a {
			return true
		}
	}
	return false
}

// linkOrAddressChanged makes sends fail, or work again.
//
// +checklocks:s.mu
func (s *Stack) linkOrAddressChanged(works bool) {
	for c := range s.udpConns {
		c.setSlow() // +checklocksignore: a socket of this stack
	}
	s.readClock()
	switch {
	case !works:
		s.settleHeld(nil, nil)
	case s.down < len(s.uplinks):
		s.invalidateAll()
		s.tcp.LinkUp(tcp.Time(s.now))
	}
	s.settle()
}

// downFrom is the error of sends from an address of ours; nil: they do not fail.
//
// +checklocks:s.mu
func (s *Stack) downFrom(from wire.Addr) error {
	switch u := s.uplinkOf(from); {
	case slices.Contains(s.own.Load().lost, from):
		return u.failed(syscall.EADDRNOTAVAIL)
	case u.down:
		return u.failed(syscall.ENETDOWN)
	}
	return nil
}

// unsendable is the reason why nothing can be sent to dst from an address, or, if that is zero, from any:
// the source is lost, or the link is down and dst is not another endpoint of this host, behind our own MAC
// address.
//
// +checklocks:s.mu
func (s *Stack) unsendable(from, dst wire.Addr) error {
	if s.down == 0 && len(s.own.Load().lost) == 0 {
		return nil
	}
	by := s.endsOf(from, dst)
	r := s.routes[by]
	switch {
	case from != wire.Addr{}:
	case r != nil:
		from = r.source
	default:
		from = s.source(dst)
	}
	why := s.downFrom(from)
	if why != nil && by.from == (wire.Addr{}) && s.down < len(s.uplinks) { // the route may lead by another uplink
		switch {
		case r == nil || !r.resolved():
			return nil
		case s.readClock()-r.askedAt > lookInterval:
			s.dropRoute(r)
			return nil
		}
	}
	ours := s.isOurs(dst) || r != nil && r.resolved() && wire.LinkAddr(r.headers.bytes[:6]) == r.uplink.addr
	if why == nil || ours && errors.Is(why, syscall.ENETDOWN) {
		return nil
	}
	return why
}

// LikelySource is the address that SourceTo likely returns for dst; not valid if there is none of the family. It does not
// wait.
func (s *Stack) LikelySource(dst netip.Addr) netip.Addr {
	a := s.source(s.addrOf(dst))
	if a == (wire.Addr{}) {
		return netip.Addr{}
	}
	return s.netip(a)
}

// SourceTo is the address that packets to dst come from, as the kernel would choose it (RFC 6724): the only
// one of ours that fits, or the choice of the route service, for whose answer it waits. The error is
// that of the route or of ctx.
func (s *Stack) SourceTo(ctx context.Context, dst netip.Addr) (netip.Addr, error) {
	to := s.addrOf(dst)
	s.mu.Lock()
	defer s.mu.Unlock()
	from, sole := s.own.Load().source(to)
	group := s.groupSource(dst)
	switch {
	case from == wire.Addr{}:
		return netip.Addr{}, syscall.ENETUNREACH
	case group != wire.Addr{}:
		return s.netip(group), nil
	case s.isOurs(to):
		return dst, nil
	case s.closing || s.broken != nil:
		return netip.Addr{}, s.ended()
	case sole:
		return s.netip(from), nil
	case s.unserved:
		if r := s.routes[ends{to: to}]; r != nil && r.resolved() {
			from = r.source
		}
		return s.netip(from), nil
	}
	if err := s.unsendable(wire.Addr{}, to); err != nil {
		return netip.Addr{}, err
	}
	s.readClock()
	r, err := s.usableRoute(wire.Addr{}, to)
	if err != nil {
		return netip.Addr{}, err
	}
	if r.state == routeResolving {
		defer context.AfterFunc(ctx, func() {
			s.mu.Lock()
			s.role.broadcast(&s.answered)
			s.mu.Unlock()
		})()
		r.askers++
		for r.state == routeResolving && !s.unserved && !s.closing && s.broken == nil && ctx.Err() == nil {
			s.waitFor(&s.answered, never)
		}
		r.askers--
	}
	switch {
	case s.closing || s.broken != nil:
		return netip.Addr{}, s.ended()
	case ctx.Err() != nil:
		return netip.Addr{}, context.Cause(ctx)
	case r.state == routeFailed:
		return netip.Addr{}, r.err
	case r.resolved():
		from = r.source
	default:
		from = s.source(to)
	}
	if from == (wire.Addr{}) {
		return netip.Addr{}, syscall.ENETUNREACH
	}
	return s.netip(from), nil
}
