package stack

import "syscall"

// Packets that wait until it is known where they go: for the route service on
// the queue of their route, for ARP on the queue of their neighbour. A send
// never waits for either, as in the kernel, so a server on one goroutine is not
// stopped by a peer that does not exist.
//
// A destination has at most maxHeld, and all together have at most
// Stack.held.max; beyond that the oldest gives way. Whoever sent what is given up
// hears of it only if its socket is connected: the error of one peer must not
// fail a server's read.

const (
	maxHeld      = 16  // packets a destination (RFC 1122, section 2.3.2.2: at least one)
	maxHeldStack = 256 // packets of a stack
)

// heldBound is how many packets a stack holds if its application may have quota
// frames: few enough that frames are left to send with.
func heldBound(quota int) int {
	return min(max(quota/4, min(quota, maxHeld)), maxHeldStack)
}

// heldPacket is complete but for the destination link address. It is the
// stack's, on two lists: the queue of its destination, and that of all.
type heldPacket struct {
	frame        Frame
	socket       *UDPSocket
	queue        *heldQueue
	next         *heldPacket // in queue
	older, newer *heldPacket // of all
}

// heldQueue is what waits for one destination, the oldest first.
type heldQueue struct {
	head, tail *heldPacket
	n          int
}

// heldPackets is all that wait for anything, the oldest first.
type heldPackets struct {
	oldest, newest *heldPacket
	n, max         int
}

// hold puts h at the end of q. mu is held, as in all of this file.
func (s *Stack) hold(q *heldQueue, h *heldPacket) {
	all := &s.held
	if q.n >= maxHeld {
		s.dropHeld(s.takeHeld(q))
	} else if all.n >= all.max && all.n > 0 {
		s.dropHeld(s.takeHeld(all.oldest.queue))
	}
	h.queue = q
	if q.tail == nil {
		q.head = h
	} else {
		q.tail.next = h
	}
	q.tail = h
	q.n++
	if h.older = all.newest; h.older == nil {
		all.oldest = h
	} else {
		h.older.newer = h
	}
	all.newest = h
	all.n++
}

// takeHeld takes the oldest packet off q; nil if there is none.
func (s *Stack) takeHeld(q *heldQueue) *heldPacket {
	h := q.head
	if h == nil {
		return nil
	}
	if q.head = h.next; q.head == nil {
		q.tail = nil
	}
	q.n--
	all := &s.held
	if h.older == nil {
		all.oldest = h.newer
	} else {
		h.older.newer = h.newer
	}
	if h.newer == nil {
		all.newest = h.older
	} else {
		h.newer.older = h.older
	}
	all.n--
	h.queue, h.next, h.older, h.newer = nil, nil, nil, nil
	return h
}

// sendHeld sends a packet that was taken off its queue, with these headers'
// link address.
func (s *Stack) sendHeld(h *heldPacket, dst []byte) {
	copy(h.frame.Data[:6], dst)
	if s.transmit(h.frame) {
		h.socket.udp.CountSent()
	}
}

// dropHeld gives a packet up that was taken off its queue.
func (s *Stack) dropHeld(h *heldPacket) {
	s.count[heldDropped]++
	s.link.Release(h.frame)
}

// failHeld gives a packet up and tells its socket why, if that is connected.
// Others learn it from their next send to that destination.
func (s *Stack) failHeld(h *heldPacket, err error) {
	s.dropHeld(h)
	if h.socket.udp.Connected() {
		h.socket.setError(err)
	}
}

func (s *Stack) failAllHeld(q *heldQueue, err error) {
	for h := s.takeHeld(q); h != nil; h = s.takeHeld(q) {
		s.failHeld(h, err)
	}
}

// releaseHeld gives all that is held back to the link, when the stack closes.
func (s *Stack) releaseHeld() {
	for s.held.n > 0 {
		s.dropHeld(s.takeHeld(s.held.oldest.queue))
	}
}

// routeHeld sends what has waited for the answer of the route service on to
// where r now leads: the link, or the neighbour that must still answer.
func (s *Stack) routeHeld(r *route) {
	var err error
	if r.state == routeUnresolved && (r.held.n > 0 || len(r.waiting) > 0) {
		err = s.findNextHop(r)
	}
	switch {
	case err != nil:
		s.loseWaiting(r, err)
	case r.state == routeReady:
		s.resumeWaiting(r)
	}
	for h := s.takeHeld(&r.held); h != nil; h = s.takeHeld(&r.held) {
		switch {
		case err != nil:
			s.failHeld(h, err)
		case len(h.frame.Data)-payloadOffset > r.maxPayload:
			s.failHeld(h, syscall.EMSGSIZE)
		case r.state == routeReady:
			s.sendHeld(h, r.headers.bytes[:6])
		default:
			s.hold(&r.neighbour.held, h)
		}
	}
}
