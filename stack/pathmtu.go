package stack

import (
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// What is known of the path to a destination is kept with its route for ten minutes, and
// only while there is one: a stranger cannot fill this memory, nor push others out of it.
//
// UDP has nothing but the word of a router, which is believed if it quotes what a socket
// here could have sent. Such a quote is not hard to guess, so TCP does not use what comes
// of it, and connections cannot be slowed down, nor sockets be found, that way. A connection
// believes what it finds out by itself (package tcp), and tells others: new ones begin with
// it, and those that know better go on. What it has from a router, and no probe has verified
// yet, is for half a minute only, so that who has deceived one connection does not harm the
// next ones for long.
const unverifiedMTUTime = 30 * second

// lowerPathMTU takes what a router says about a datagram of ours that was too large for
// its next hop.
func (s *Stack) lowerPathMTU(quoted wire.IPv4, mtu int) {
	r := s.routes[quoted.Dst()]
	if r == nil || r.mtu == 0 {
		return
	}
	size := quoted.TotalLen()
	if mtu == 0 {
		mtu = tcp.PlateauBelow(size)
	}
	if mtu >= size { // then that packet would have passed
		s.count[pathMTUIgnored]++
		return
	}
	mtu = max(mtu, minPathMTU)
	if mtu >= r.mtu || r.pathMTU != 0 && mtu >= r.pathMTU {
		s.count[pathMTUIgnored]++
		return
	}
	s.count[pathMTULowered]++
	r.pathMTU, r.pathMTUUntil = mtu, s.now+pathMTUTime
	r.setMTU()
	s.armRoute(r, r.due)
}

// learnPathMTU takes what a connection has found out, for others.
func (s *Stack) learnPathMTU(conn *tcp.Conn) {
	r := s.routes[conn.Remote().Addr]
	if r == nil || r.mtu == 0 {
		return
	}
	mtu, searched := conn.PathMTU()
	switch {
	case mtu >= conn.MaxMTU(): // it has no limit of its own
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

// forgetPathMTU forgets what is too old.
func (s *Stack) forgetPathMTU(r *route) {
	if r.pathMTU != 0 && s.now >= r.pathMTUUntil {
		r.pathMTU = 0
		r.setMTU()
	}
	if r.tcpMTU != 0 && s.now >= r.tcpMTUUntil {
		r.tcpMTU = 0
		r.setMTU()
	}
}

// tellPathMTU takes what is known of the path to a connection that is about to send.
func (r *route) tellPathMTU(now tcp.Time, conn *tcp.Conn) {
	conn.SetMTU(now, r.mtu)
	if r.tcpMTU != 0 {
		conn.SuggestMTU(now, r.tcpMTU, r.tcpSearched)
	}
}

// narrowTCP tells connections that the way to their peer takes less than it did: what is
// under way in larger segments is lost.
func (s *Stack) narrowTCP(r *route) {
	s.tcp.SetMTU(tcp.Time(s.readClock()), r.dst, r.mtu)
	s.tcpTouched = true
	s.armTCP(s.now)
}
