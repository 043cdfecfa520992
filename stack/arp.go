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
	maxHeld       = 16 // packets a neighbour (RFC 1122, section 2.3.2.2: at least one)
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
	tries    int     // requests sent since the last answer
	at       instant // when neighbourTimer is due
	sent     uint64  // packets sent by its routes when it was last confirmed
	held     []heldPacket
}

// heldPacket is complete but for the destination link address.
type heldPacket struct {
	frame  Frame
	socket *UDPSocket
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
			if n.state != neighbourIncomplete && (victim == nil || n.at < victim.at) {
				victim = n
			}
		}
		if victim == nil {
			return nil
		}
		s.forget(victim)
	}
	n := &neighbour{addr: addr, at: never}
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
	n.at = s.now + arpInterval
	s.schedule(n.at)
}

// confirm notes that the neighbour has answered from link, and sends what
// waited for it.
func (s *Stack) confirm(n *neighbour, link wire.LinkAddr) {
	news := n.state == neighbourIncomplete || n.state == neighbourDead || n.linkAddr != link
	n.state, n.linkAddr, n.tries = neighbourReachable, link, 0
	n.at = s.now + reachableTime
	s.schedule(n.at)
	n.sent = s.sentVia(n)
	if !news {
		return
	}
	for _, r := range s.routes {
		if r.neighbour == n {
			r.headers.setLinkDst(link)
			if r.state == routeUnresolved {
				r.state = routeReady
			}
		}
	}
	for _, h := range n.held {
		copy(h.frame.Data[:6], link[:])
		s.transmit(h.frame)
	}
	s.held -= len(n.held)
	n.held = nil
	s.broadcast(&s.resolved)
}

// sentVia counts the packets that were ever sent through n.
func (s *Stack) sentVia(n *neighbour) (sum uint64) {
	for _, r := range s.routes {
		if r.neighbour == n {
			sum += r.sent
		}
	}
	return sum
}

// hold keeps a packet until its neighbour is resolved. The oldest gives way if
// there are too many.
func (s *Stack) hold(n *neighbour, f Frame, c *UDPSocket) {
	if len(n.held) == maxHeld || len(n.held) > 0 && s.held >= s.quota {
		s.link.Release(n.held[0].frame)
		n.held = append(n.held[:0], n.held[1:]...)
		s.held--
		s.count[neighbourHeldDropped]++
	}
	n.held = append(n.held, heldPacket{f, c})
	s.held++
}

// dropHeld gives back what waits for neighbours, when the stack closes.
func (s *Stack) dropHeld() {
	for _, n := range s.neighbours {
		for _, h := range n.held {
			s.link.Release(h.frame)
		}
		n.held = nil
	}
	s.held = 0
}

func (s *Stack) neighbourTimer(n *neighbour) {
	switch n.state {
	case neighbourIncomplete:
		if n.tries < arpTries {
			s.ask(n)
			return
		}
		s.count[neighbourFailed]++
		s.unresolve(n)
		for _, h := range n.held {
			s.link.Release(h.frame)
			s.count[neighbourHeldDropped]++
			h.socket.unreachable()
		}
		s.held -= len(n.held)
		n.held = nil
		n.state = neighbourDead
		n.at = s.now + failureTime
		s.broadcast(&s.resolved)
	case neighbourReachable:
		if s.sentVia(n) == n.sent {
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
	s.unresolve(n)
	delete(s.neighbours, n.addr)
}

func (s *Stack) unresolve(n *neighbour) {
	for _, r := range s.routes {
		if r.neighbour == n {
			r.neighbour = nil
			if r.state == routeReady {
				r.state = routeUnresolved
			}
		}
	}
}
