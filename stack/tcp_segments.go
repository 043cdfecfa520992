package stack

import (
	"errors"
	"syscall"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// Segments are sent after a batch of frames has been processed, after timers have expired,
// and at the end of a call of the application (settle). The engine writes each segment
// into a frame.
//
// Connections that have much to send take turns, and what has arrived is received between two rounds of
// turns (ADR 56). Where nobody will poll soon, all that is ready is sent at once.
//
// A connection is held (tcp.Conn.Hold) while the route to its peer is not known, and while the memory path to it is full.

const (
	// segmentsInTurn is how many segments one connection sends before the others send.
	segmentsInTurn = 16
	// segmentsAtOnce is how many are sent before what has arrived meanwhile is received.
	segmentsAtOnce = batchSize
	// leastEmit is the room in bytes that Emit wants at least.
	leastEmit = 100
)

// tcpTimer expires at the engine's next deadline.
type tcpTimer struct{ timer }

// expired runs the engine's timers. What is ready to be sent then, or was before, runDue sends.
//
// +checklocks:s.mu
func (t *tcpTimer) expired(s *Stack) { s.tcp.Expire(tcp.Time(s.now)) }

// inputTCP processes the segment in a packet, and reports whether the frame is kept. mu is
// held, as in all of this file.
//
// +checklocks:s.mu
func (s *Stack) inputTCP(p *packet) (kept bool) {
	s.noteUnsettled()
	in := tcp.Inbound{Src: p.src, Dst: p.dst, Data: p.payload, Frame: p.frame, ECN: p.ecn, NoChecksum: p.noChecksum, Complete: p.uplink.complete} // borrowed
	switch {
	case p.memory == memoryHeap:
		in.Memory, in.Reassembled = tcp.MemoryHeap, p.reassembled
	case p.memory == memoryFrame && s.lent < s.quota:
		in.Memory = tcp.MemoryFrame
	}
	r := s.tcp.Process(tcp.Time(s.now), &in)
	if r.Reply || r.Opening != nil {
		s.replyTCP(p, r.Opening)
	}
	if r.Kept {
		s.lent++
	}
	return r.Kept
}

// replyTCP sends the table's reply, or, if opening is not nil, the answer to a SYN, to the
// source MAC address of the segment. So a flood of SYNs from hosts that do not exist causes
// no address resolution.
//
// +checklocks:s.mu
func (s *Stack) replyTCP(p *packet, opening *tcp.Conn) {
	if p.eth.Src.IsGroup() {
		return
	}
	if opening != nil {
		opening.PeerLink = p.eth.Src
		if r := s.routes[ends{p.dst, p.src}]; r != nil && r.resolved() {
			r.tellRoute(tcp.Time(s.now), opening)
		} else if p.uplink.mtu != s.mtu {
			opening.SetMTU(tcp.Time(s.now), p.uplink.mtu, false)
		}
	}
	head := headersLen(p.src)
	f, ok := s.reply(p.uplink, head+wire.MaxTCPHeaderLen)
	if !ok {
		return
	}
	n := 0
	if opening == nil {
		n = s.tcp.EmitReply(f.Data[head:])
	} else if n = opening.Emit(tcp.Time(s.now), f.Data[head:]); n == 0 { // it has been answered already
		p.uplink.link.Cancel(f)
		return
	}
	s.replyHeaders(f.Data, p, wire.ProtocolTCP, n)
	f.Data = f.Data[:head+n]
	s.transmit(p.uplink, f)
}

// happened wakes the goroutines that wait for the events e.
//
// +checklocks:c.stack.mu
func (c *TCPConn) happened(e tcp.Events) {
	s := c.stack
	if e&tcp.PathChanged != 0 {
		s.learnPathMTU(c.conn)
	}
	if e&tcp.Readable != 0 {
		// All readers: they share one event, and the data may be in the posted buffer of a
		// reader that is not the one that has waited longest.
		s.role.broadcast(&c.readable)
	}
	if e&tcp.Connected != 0 {
		c.connected = true
	}
	if e&(tcp.Writable|tcp.Connected) != 0 {
		s.role.signal(&c.writable)
	}
	if e&tcp.Returned != 0 {
		s.role.broadcast(&c.reclaimed)
	}
	if e&(tcp.Drained|tcp.Finished) != 0 {
		c.drained = c.drained || e&tcp.Drained != 0
		s.role.broadcast(&s.drained)
	}
	if e&tcp.Finished != 0 {
		c.finished = true
		c.wakeAll()
		c.release()
	}
}

// findRouteTCP finds the route to the peer of a connection, which is ready or resolving; c is
// nil if it has not been accepted. loop: the peer is in this stack.
//
// +checklocks:s.mu
func (s *Stack) findRouteTCP(conn *tcp.Conn, c *TCPConn) (r *route, loop bool, err error) {
	if c != nil {
		loop = c.loop
	} else {
		loop = s.isLoopBackTCP(conn.Local(), conn.Remote())
	}
	u, why := s.uplinkOf(conn.Local().Addr), s.downFrom(conn.Local().Addr)
	switch {
	case loop:
		return nil, true, nil
	case why != nil:
		return nil, false, why
	case u.kickErr != nil:
		return nil, false, u.kickErr
	}
	if c == nil && conn.State() == tcp.SynReceived {
		// Its SYN,ACK has been sent (replyTCP), and is sent again to the same MAC address,
		// without address resolution for an unknown host.
		if r = s.routes[ends{conn.Local().Addr, conn.Remote().Addr}]; r != nil && r.resolved() {
			r, err = s.usableRoute(conn.Local().Addr, conn.Remote().Addr)
			return r, false, err
		}
		if conn.PeerLink == (wire.LinkAddr{}) {
			return nil, false, syscall.EHOSTUNREACH
		}
		return &route{
			state: routeReady, mtu: u.mtu, maxPacket: u.mtu, uplink: u,
			headers: makeHeaders(u.addr, conn.PeerLink, conn.Local().Addr, conn.Remote().Addr),
		}, false, nil
	}
	if r = s.answerTCP(conn, c); r == nil {
		r, err = s.usableRoute(conn.Local().Addr, conn.Remote().Addr)
	}
	if c != nil && err == nil {
		c.route = r
	}
	return r, false, err
}

// emitTCP sends the segments of a connection that is ready, or discards them, or holds it
// until there is a route; c is nil if it has not been accepted. It sets linkFull if the
// link takes no more.
//
// +checklocks:s.mu
func (s *Stack) emitTCP(conn *tcp.Conn, c *TCPConn) {
	var r *route
	if c != nil {
		r = c.route
	}
	if r == nil || r.state != routeReady || r.uplink.down || r.uplink.kickErr != nil {
		var loop bool
		var err error
		switch r, loop, err = s.findRouteTCP(conn, c); {
		case err != nil:
			s.loseTCP(conn, err)
			return
		case loop:
			s.loopTCP(conn)
			return
		case r.state != routeReady:
			conn.Hold()
			r.waiting = append(r.waiting, conn)
			return
		}
	}
	now, u := tcp.Time(s.now), r.uplink
	if c == nil {
		r.tellPathMTU(now, conn)
	} else if c.mtu != r.maxPacket {
		c.mtu = r.maxPacket
		r.tellPathMTU(now, conn)
	}
	head := r.headers.len
	paths := u.paths != nil && wire.LinkAddr(r.headers.bytes[:6]) == u.addr
	for turn := 0; s.tcp.Ready == conn; turn++ {
		if turn == segmentsInTurn {
			s.tcp.Postpone(conn)
			return
		}
		var f Frame
		var n int
		var ok bool
		if paths {
			f, ok = u.paths.ReservePath(conn.Local(), conn.Remote(), head+max(conn.LongLen(), leastEmit))
		}
		switch {
		case !ok:
			room := head + conn.MaxLen
			if f, ok = u.link.Reserve(room); !ok {
				s.kick(u)
				if f, ok = u.link.Reserve(room); !ok {
					if f, ok = u.link.Reserve(0); !ok { // one frame: a shorter segment
						s.linkFull = true
						s.count[sendBlocked]++
						return
					}
				}
			}
			n = conn.Emit(now, f.Data[head:])
		case f.Data == nil: // its path is full: others send meanwhile
			conn.Hold()
			s.stalled = append(s.stalled, conn)
			s.count[sendBlocked]++
			return
		default:
			n = conn.EmitLong(now, f.Data[head:])
		}
		f.Data = f.Data[:head+n]
		r.headers.put(f.Data, wire.ProtocolTCP, n)
		if conn.ECT {
			setTOS(f.Data, wire.ECNCapable)
		}
		r.sent++
		if !s.send(u, f) {
			u.link.Cancel(f)
			s.count[segmentsLost]++ // and sent again, as if the network had lost it
			s.linkFull = true
			s.count[sendBlocked]++
			return
		}
	}
}

// loseTCP discards the segments of a connection that cannot be sent, as if the network had
// lost them. err, if not nil, is reported to the connection. If our own link is down or our
// address was removed, it is reported only in SYN-SENT: an established connection ends with
// ETIMEDOUT if that lasts, as in the kernel.
//
// +checklocks:s.mu
func (s *Stack) loseTCP(conn *tcp.Conn, err error) {
	if errno := syscall.EHOSTUNREACH; err != nil && (s.downFrom(conn.Local().Addr) == nil || conn.State() == tcp.SynSent) {
		errors.As(err, &errno)
		conn.Unreachable(tcp.Time(s.now), errno)
	}
	for conn.Emit(tcp.Time(s.now), s.scratchTCP()) > 0 {
		s.count[segmentsLost]++
	}
}

// scratchTCP is memory for one segment.
//
// +checklocks:s.mu
func (s *Stack) scratchTCP() []byte {
	if s.scratch == nil {
		s.scratch = make([]byte, s.mtu)
	}
	return s.scratch
}

// loopTCP delivers a segment of a connection to its peer in this stack.
//
// +checklocks:s.mu
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

// resumeWaiting resumes the connections that have waited for r.
//
// +checklocks:s.mu
func (s *Stack) resumeWaiting(r *route) {
	for _, conn := range r.waiting {
		conn.Resume()
	}
	if len(r.waiting) > 0 {
		r.waiting = nil
		s.unsettled = true
		s.startTimer(&s.tcpTimer.timer, s.now) // if the caller does not call settle
	}
}

// loseWaiting discards the segments of the connections that have waited for r and reports err
// to them. err is nil if it is not known whether the peer can be reached.
//
// +checklocks:s.mu
func (s *Stack) loseWaiting(r *route, err error) {
	waiting := r.waiting
	s.resumeWaiting(r)
	for _, conn := range waiting {
		s.loseTCP(conn, err)
	}
}
