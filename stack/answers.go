package stack

import (
	"encoding/binary"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// This file has what is sent while the route service is gone to peers to which no route is
// known: answers, to the MAC address that the peer's own packet came from. For a UDP socket
// that is the last datagram that it has accepted from the peer's address and port, for a TCP
// connection the SYN, whose answer the peer has acknowledged, or the route by which the
// connection has sent before. Such an address is used for that socket or connection only, and
// forgotten when the service is back. docs/protection.md has what forged packets gain by it.
// mu is held in all functions but SetRouteService.

// maxAnswers bounds the peers. Beyond it any one of them is forgotten.
const maxAnswers = 4096

// answer is a peer, and the *udp.Socket or *tcp.Conn that may answer it.
type answer struct {
	by any
	to wire.AddrPort
}

// SetRouteService sets whether the route service can be asked; at first it can. While it
// cannot, peers that no route is known to are answered at the MAC address that their packets
// come from.
func (s *Stack) SetRouteService(there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.unserved != there {
		return
	}
	s.unserved = !there
	s.role.broadcast(&s.answered)
	s.readClock()
	if there {
		for _, r := range s.answers {
			r.state = routeDead
		}
		s.answers = nil
	} else {
		for _, r := range s.routes {
			s.resumeWaiting(r)
		}
	}
	s.settle()
}

// noteSource notes where a datagram that u has accepted came from.
//
// +checklocks:s.mu
func (s *Stack) noteSource(u *udp.Socket, p *packet) {
	from := p.dst
	if s.isGroup(from) {
		from = s.sourceOn(p.uplink, p.src)
	}
	if !p.eth.Src.IsGroup() && from != (wire.Addr{}) {
		s.noteAnswer(answer{u, wire.AddrPort{Addr: p.src, Port: binary.BigEndian.Uint16(p.payload)}}, from, p.eth.Src)
	}
}

// noteAnswer makes link the MAC address that a is sent to, from an address of ours.
//
// +checklocks:s.mu
func (s *Stack) noteAnswer(a answer, from wire.Addr, link wire.LinkAddr) *route {
	r := s.answers[a]
	if r == nil {
		if s.answers == nil {
			s.answers = make(map[answer]*route)
		}
		for old, r := range s.answers {
			if len(s.answers) < maxAnswers {
				break
			}
			r.state = routeDead
			delete(s.answers, old)
		}
		u := s.uplinkOf(from)
		r = &route{state: routeReady, uplink: u, ends: ends{from, a.to.Addr}, mtu: u.mtu, source: from, headers: makeHeaders(u.addr, link, from, a.to.Addr)}
		r.setMTU()
		s.answers[a] = r
	}
	s.setSource(r, from)
	copy(r.headers.bytes[:6], link[:])
	return r
}

// unresolved reports whether the route service is gone and has given no answer about packets from
// an address, or, if that is zero, from the one that it chooses.
//
// +checklocks:s.mu
func (s *Stack) unresolved(from, dst wire.Addr) bool {
	if !s.unserved {
		return false
	}
	r := s.routes[s.endsOf(from, dst)]
	return r == nil || r.state == routeResolving
}

// answerUDP is where u answers a peer to which no route from an address is known; nil: nowhere.
//
// +checklocks:s.mu
func (s *Stack) answerUDP(u *udp.Socket, from wire.Addr, to udp.AddrPort) *route {
	if !s.unresolved(from, to.Addr) {
		return nil
	}
	r := s.answers[answer{u, to}]
	if r != nil && from != (wire.Addr{}) {
		s.setSource(r, from)
	}
	return r
}

// answerTCP is where a connection sends whose peer no route is known to; nil: nowhere. c is nil
// if it has not been accepted.
//
// +checklocks:s.mu
func (s *Stack) answerTCP(conn *tcp.Conn, c *TCPConn) *route {
	if !s.unresolved(conn.Local().Addr, conn.Remote().Addr) {
		return nil
	}
	link := conn.PeerLink
	if c != nil && c.route != nil {
		if used := wire.LinkAddr(c.route.headers.bytes[:6]); used != (wire.LinkAddr{}) {
			link = used
		}
	}
	if link == (wire.LinkAddr{}) {
		return nil
	}
	return s.noteAnswer(answer{conn, conn.Remote()}, conn.Local().Addr, link)
}
