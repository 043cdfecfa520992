package stack

import (
	"errors"
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// What connections have to send goes out when a batch of frames has been taken
// in, when timers have run, and at the end of a call of the application that made
// it. Each segment is written by the engine straight into a frame.
//
// Two things keep a connection back (tcp.Conn.Hold). Until the route to its peer
// is known it waits on the route: SYN or text, it needs no frame meanwhile. And if
// all it has is an acknowledgment of text that has just woken a reader, it waits
// for what the reader writes, until the reader comes again, or whoever polls has
// let it run and has nothing else to do.

// segmentsInTurn is how many segments one connection sends before the others have
// their turn.
const segmentsInTurn = 64

// tcpTimer is the engine's.
type tcpTimer struct{ timer }

// expired runs what is due, or tries again to send what the link did not take.
func (t *tcpTimer) expired(s *Stack) {
	s.tcp.Expire(tcp.Time(s.now))
	s.settleTCP()
}

// finishTCP is what a call of the application ends with.
func (s *Stack) finishTCP() {
	s.settleTCP()
	if s.unflushed {
		s.flush()
	}
}

// settleTCP does what calls of the engine have left to do: wake, send, and set
// the timer. mu is held, as in all of this file.
func (s *Stack) settleTCP() {
	s.tcpTouched = false
	s.tellTCP()
	if s.closed || s.broken != nil {
		return
	}
	s.tcpBlocked = false
	for s.tcp.NextReady() != nil && !s.tcpBlocked {
		s.outputTCP()
		s.tellTCP()
	}
	if s.unflushed { // what follows is not what a peer waits for
		s.flush()
	}
	at := instant(s.tcp.NextDeadline())
	if s.tcpBlocked {
		at = min(at, s.now+instant(sendPause))
	}
	s.armTCP(at)
}

// armTCP sees that the timer does not run out later than at. It may run out
// earlier.
func (s *Stack) armTCP(at instant) {
	if t := &s.tcpTimer; at < never && (t.slot == 0 || at < t.at) {
		s.startTimer(&t.timer, at)
	}
}

// outputTCP sends what connections have to send, as far as the link takes it.
func (s *Stack) outputTCP() {
	if s.kickErr != nil {
		s.flush() // it may be over
	}
	for conn := s.tcp.NextReady(); conn != nil; conn = s.tcp.NextReady() {
		c, _ := conn.Owner.(*TCPConn) // nil: nobody has accepted it
		if c != nil && c.answering && conn.OnlyAck() {
			c.holdAck()
			continue
		}
		r, loop, err := s.wayTCP(conn, c)
		switch {
		case err != nil:
			s.loseTCP(conn, err)
		case loop:
			s.loopTCP(conn)
		case r.state != routeReady:
			conn.Hold()
			r.waiting = append(r.waiting, conn)
		case !s.emitTCP(conn, c, r):
			s.count[sendBlocked]++
			s.tcpBlocked = true
			return
		}
	}
}

// wayTCP finds the way to the peer.
func (s *Stack) wayTCP(conn *tcp.Conn, c *TCPConn) (r *route, loop bool, err error) {
	if c != nil {
		if r = c.route; r != nil && r.state == routeReady && s.down == 0 && s.kickErr == nil {
			return r, false, nil
		}
		loop = c.loop
	} else {
		loop = s.isLoopBackTCP(conn.Local(), conn.Remote())
	}
	switch {
	case loop:
		return nil, true, nil
	case s.down != 0:
		return nil, false, s.down
	case s.kickErr != nil:
		return nil, false, s.kickErr
	}
	if c == nil && conn.State() == tcp.SynReceived {
		// The answer to its SYN has gone (answerSYN), and goes the same way again: a host
		// that nobody has heard of is not worth a question.
		if r = s.routes[conn.Remote().Addr]; r != nil && r.state == routeReady {
			return r, false, nil
		}
		from, ok := conn.Owner.(wire.LinkAddr)
		if !ok {
			return nil, false, syscall.EHOSTUNREACH
		}
		return s.wayBack(from, conn), false, nil
	}
	r, err = s.usableRoute(conn.Remote().Addr)
	if c != nil && err == nil {
		c.route = r
	}
	return r, false, err
}

// wayBack is a route for one segment, to where the peer's SYN has come from.
func (s *Stack) wayBack(from wire.LinkAddr, conn *tcp.Conn) *route {
	return &route{
		state: routeReady, maxPacket: s.mtu,
		headers: makeHeaders(s.linkAddr, from, conn.Local().Addr, conn.Remote().Addr),
	}
}

// emitTCP sends what one connection has to send. It returns false if the link
// takes no more.
func (s *Stack) emitTCP(conn *tcp.Conn, c *TCPConn, r *route) bool {
	now := tcp.Time(s.now)
	if c == nil {
		if r.maxPacket != s.mtu {
			r.tellPathMTU(now, conn)
		}
	} else if c.mtu != r.maxPacket {
		c.mtu = r.maxPacket
		r.tellPathMTU(now, conn)
	}
	for turn := 0; s.tcp.NextReady() == conn; turn++ {
		if turn == segmentsInTurn {
			s.tcp.Postpone(conn)
			return true
		}
		room := headersLen + conn.EmitRoom()
		f, ok := s.alloc(room)
		if !ok {
			s.flush()
			if f, ok = s.alloc(room); !ok {
				if f, ok = s.link.Alloc(); !ok { // then in shorter segments
					return false
				}
			}
		}
		n := conn.Emit(now, f.Data[headersLen:])
		f.Data = f.Data[:headersLen+n]
		r.headers.put(f.Data, wire.ProtocolTCP, n)
		if conn.ECT() {
			setECNCapable(f.Data)
		}
		r.sent++
		if !s.link.Send(f) {
			s.flush()
			if !s.link.Send(f) {
				s.link.Release(f)
				s.count[segmentsLost]++ // and sent again, as if the network had lost it
				return false
			}
		}
		s.count[framesSent]++
		s.unflushed = true
	}
	return true
}

// loseTCP takes from a connection what it has to send and cannot send. It is for
// the connection to try again. That our own link is down, or our address gone, says
// nothing about the peer: it ends only a connection that is being opened. An established
// one ends with ETIMEDOUT if that lasts, as in the kernel.
func (s *Stack) loseTCP(conn *tcp.Conn, err error) {
	if errno := syscall.EHOSTUNREACH; err != nil && (s.down == 0 || conn.State() == tcp.SynSent) {
		errors.As(err, &errno)
		conn.Unreachable(tcp.Time(s.now), errno)
	}
	for conn.Emit(tcp.Time(s.now), s.scratchTCP()) > 0 {
		s.count[segmentsLost]++
	}
}

// scratchTCP is memory for one segment.
func (s *Stack) scratchTCP() []byte {
	if s.scratch == nil {
		s.scratch = make([]byte, s.mtu)
	}
	return s.scratch
}

// loopTCP takes what a connection has to send to its peer in this stack.
func (s *Stack) loopTCP(conn *tcp.Conn) {
	local, remote := conn.Local().Addr, conn.Remote().Addr
	b := s.scratchTCP()
	n := conn.Emit(tcp.Time(s.now), b)
	s.count[loopedBack]++
	if s.tcp.Process(tcp.Time(s.now), &tcp.Inbound{Src: local, Dst: remote, Data: b[:n]}).Reply {
		n = s.tcp.EmitReply(b)
		s.count[loopedBack]++
		s.tcp.Process(tcp.Time(s.now), &tcp.Inbound{Src: remote, Dst: local, Data: b[:n]})
	}
}

// resumeWaiting lets the connections go on that have waited for r.
func (s *Stack) resumeWaiting(r *route) {
	for _, conn := range r.waiting {
		conn.Resume()
	}
	if len(r.waiting) > 0 {
		r.waiting = nil
		s.tcpTouched = true
		s.armTCP(s.now) // in case that nobody is about to settle it
	}
}

// loseWaiting tells the connections that have waited for r that there is no way;
// nil: or that it is not known.
func (s *Stack) loseWaiting(r *route, err error) {
	waiting := r.waiting
	s.resumeWaiting(r)
	for _, conn := range waiting {
		s.loseTCP(conn, err)
	}
}

// holdAck keeps an acknowledgment back.
func (c *TCPConn) holdAck() {
	s := c.stack
	c.conn.Hold()
	c.ackHeld = true
	c.ackSlot = len(s.acking)
	s.acking = append(s.acking, c)
	s.count[acksHeld]++
}

// resumeAck is called when the reader has come again.
func (c *TCPConn) resumeAck() {
	c.answering = false
	if !c.ackHeld {
		return
	}
	c.ackHeld = false
	s := c.stack
	last := len(s.acking) - 1
	moved := s.acking[last]
	s.acking[c.ackSlot], moved.ackSlot = moved, c.ackSlot
	s.acking[last] = nil
	s.acking = s.acking[:last]
	c.conn.Resume()
}

// releaseAcks sends all that was kept back.
func (s *Stack) releaseAcks() {
	if len(s.acking) == 0 {
		return
	}
	for len(s.acking) > 0 {
		s.acking[len(s.acking)-1].resumeAck()
	}
	s.finishTCP()
}
