package stack

import (
	"syscall"

	"github.com/unet-go/unet/wire"
)

// Neighbours: link addresses of hosts on our link, by ARP (RFC 826). Only a
// stack with a whole address does any of this; for the others the route service
// asks the kernel.
//
//	                 reply                      30 s in use
//	incomplete ───────────────▶ reachable ───────────────────▶ probing
//	    │                           ▲          reply              │
//	    │ 3 requests unanswered     └─────────────────────────────┤
//	    ▼                                   3 requests unanswered │
//	 failed ── 1 s ──▶ (forgotten) ◀──────────────────────────────┘
//
// While it is probed a neighbour is used as before. RFC 1122, section 2.3.2.1,
// wants what is wrong to be found out, and wants no more than one request a
// second for one address.

const (
	maxNeighbours = 256
	arpInterval   = second
	arpTries      = 3
	reachableTime = 30 * second
	failureTime   = second // how long a failure is remembered
)

type neighbourState uint8

const (
	neighbourIncomplete neighbourState = iota
	neighbourReachable
	neighbourProbing
	neighbourDead // failed
)

type neighbour struct {
	addr     [4]byte
	linkAddr wire.LinkAddr // unless incomplete or dead
	state    neighbourState
	tries    int    // requests sent since the last answer
	sent     uint64 // packets sent by its routes when it last became reachable
	held     heldQueue
	routes   map[*route]struct{} // those that lead through it
	timer    timer
}

// inputARP takes an ARP packet (RFC 826, "Packet Reception").
func (s *Stack) inputARP(eth wire.Ethernet) {
	a, err := wire.ParseARP(eth.Payload())
	if err != nil {
		s.count[arpMalformed]++
		return
	}
	if !s.wholeAddress {
		s.count[arpNotOurs]++
		return
	}
	op, link, sender := a.Op(), a.SenderLink(), a.SenderAddr()
	probe := op == wire.ARPRequest && sender == [4]byte{} // RFC 5227: asks, but claims nothing
	switch {
	case op != wire.ARPRequest && op != wire.ARPReply,
		link.IsGroup(), link == wire.LinkAddr{},
		!probe && (sender[0] == 0 || sender[0] == 127 || sender[0] >= 224 || s.isBroadcast(sender)):
		s.count[arpBogus]++
		return
	case sender == s.addr:
		if link != s.linkAddr {
			s.count[arpConflict]++
		}
		return
	}
	ours := a.TargetAddr() == s.addr
	n := s.neighbours[sender]
	if n != nil {
		s.confirm(n, link)
	} else if ours && op == wire.ARPRequest && !probe {
		// Whoever asks for us is about to talk to us.
		if n = s.newNeighbour(sender); n != nil {
			s.confirm(n, link)
		}
	}
	switch {
	case ours && op == wire.ARPRequest:
		s.sendARP(wire.ARPReply, link, sender, link)
	case !ours && n == nil:
		s.count[arpNotOurs]++
	}
}

// sendARP asks target, or tells it, in a frame to dst.
func (s *Stack) sendARP(op uint16, dst wire.LinkAddr, target [4]byte, targetLink wire.LinkAddr) {
	f, ok := s.reply(wire.EthernetHeaderLen + wire.ARPLen)
	if !ok {
		return
	}
	wire.PutEthernet(f.Data, dst, s.linkAddr, wire.EtherTypeARP)
	wire.PutARP(f.Data[wire.EthernetHeaderLen:], wire.ARPFields{
		Op: op, SenderLink: s.linkAddr, SenderAddr: s.addr, TargetLink: targetLink, TargetAddr: target,
	})
	if !s.transmit(f) {
		return
	}
	if op == wire.ARPRequest {
		s.count[arpRequestsSent]++
	} else {
		s.count[arpRepliesSent]++
	}
}

// newNeighbour makes an incomplete entry that asks for nothing yet. nil: the
// table is full of neighbours that are being resolved.
func (s *Stack) newNeighbour(addr [4]byte) *neighbour {
	if len(s.neighbours) >= maxNeighbours {
		var victim *neighbour
		for _, n := range s.neighbours {
			if n.state != neighbourIncomplete && (victim == nil || n.timer.at < victim.timer.at) {
				victim = n
			}
		}
		if victim == nil {
			return nil
		}
		s.forget(victim)
	}
	n := &neighbour{addr: addr, routes: make(map[*route]struct{})}
	n.timer.owner = n
	s.neighbours[addr] = n
	return n
}

// resolve finds the neighbour, and asks for it if it is unknown.
func (s *Stack) resolve(addr [4]byte) (*neighbour, error) {
	n := s.neighbours[addr]
	if n == nil {
		if n = s.newNeighbour(addr); n == nil {
			return nil, syscall.ENOBUFS
		}
		s.readClock()
		s.ask(n)
	}
	if n.state == neighbourDead {
		return nil, syscall.EHOSTUNREACH
	}
	return n, nil
}

// ask sends a request, to the neighbour alone if it is known (RFC 1122, section
// 2.3.2.1, "unicast poll"), and sets the timer for the next.
func (s *Stack) ask(n *neighbour) {
	dst := wire.Broadcast
	if n.state == neighbourProbing {
		dst = n.linkAddr
	}
	s.sendARP(wire.ARPRequest, dst, n.addr, wire.LinkAddr{})
	n.tries++
	s.startTimer(&n.timer, s.now+arpInterval)
}

// confirm notes that the neighbour has answered from link, and sends what
// waited for it.
func (s *Stack) confirm(n *neighbour, link wire.LinkAddr) {
	news := n.state != neighbourReachable || n.linkAddr != link
	n.state, n.linkAddr, n.tries = neighbourReachable, link, 0
	s.startTimer(&n.timer, s.now+reachableTime)
	if !news { // as often as it pleases: it costs the routes nothing
		return
	}
	n.sent = n.sentVia()
	for r := range n.routes {
		r.headers.setLinkDst(link)
		if r.state == routeUnresolved {
			r.state = routeReady
			s.resumeWaiting(r)
		}
	}
	for h := s.takeHeld(&n.held); h != nil; h = s.takeHeld(&n.held) {
		s.sendHeld(h, link[:])
	}
}

// sentVia counts the packets that its routes have sent.
func (n *neighbour) sentVia() (sum uint64) {
	for r := range n.routes {
		sum += r.sent
	}
	return sum
}

// expired runs when n's timer does.
func (n *neighbour) expired(s *Stack) {
	switch n.state {
	case neighbourIncomplete:
		if n.tries < arpTries {
			s.ask(n)
			return
		}
		s.count[neighbourFailed]++
		for r := range n.routes {
			s.loseWaiting(r, syscall.EHOSTUNREACH)
		}
		n.unresolve()
		n.state = neighbourDead
		s.startTimer(&n.timer, s.now+failureTime)
		s.failAllHeld(&n.held, syscall.EHOSTUNREACH)
	case neighbourReachable:
		if n.sentVia() == n.sent {
			s.forget(n)
			return
		}
		n.state, n.tries = neighbourProbing, 0
		s.ask(n)
	case neighbourProbing:
		if n.tries < arpTries {
			s.ask(n)
			return
		}
		s.count[neighbourFailed]++
		s.forget(n)
	case neighbourDead:
		s.forget(n)
	}
}

// forget removes n from the table. The next packet to it asks again.
func (s *Stack) forget(n *neighbour) {
	for r := range n.routes {
		s.resumeWaiting(r)
	}
	n.unresolve()
	s.stopTimer(&n.timer)
	delete(s.neighbours, n.addr)
}

// unresolve takes n away from its routes.
func (n *neighbour) unresolve() {
	for r := range n.routes {
		r.leadThrough(nil)
		if r.state == routeReady || r.state == routeStale {
			r.state = routeUnresolved
		}
	}
}
