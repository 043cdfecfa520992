package stack

import (
	"time"

	"github.com/unet-go/unet/proto/tcp"
)

// sendPause is how long senders wait for a link that takes no more before they try again.
const sendPause = 50 * time.Microsecond

// noteUnsettled is called before a received packet changes a connection or a port. The caller of
// receive then calls settle. mu is held, as in all of this file.
//
// +checklocks:s.mu
func (s *Stack) noteUnsettled() {
	if !s.unsettled { // the first of a batch
		s.unsettled = true
		s.readClock()
	}
}

// settle is called after calls of the engines: it runs the ports that have received datagrams, wakes
// goroutines for events, sends segments, and arms the timer, at once if there is more to send.
//
// +checklocks:s.mu
func (s *Stack) settle() {
	s.unsettled, s.linkFull = false, false
	if len(s.stalled) > 0 {
		for _, conn := range s.stalled {
			conn.Resume()
		}
		s.stalled = s.stalled[:0]
	}
	if len(s.touchedPorts) > 0 {
		s.runPorts()
	}
	last := s.count[framesSent] + segmentsAtOnce - segmentsInTurn // the count with which the last turn may begin
	for {
		for conn, e := s.tcp.NextEvent(); conn != nil; conn, e = s.tcp.NextEvent() {
			if e&tcp.Acceptable != 0 {
				s.role.signal(&conn.Listener().Owner.(*TCPListener).acceptable)
			} else {
				conn.Owner.(*TCPConn).happened(e) // +checklocksignore: a connection of this stack
			}
		}
		if s.closed || s.broken != nil || s.linkFull || s.tcp.Ready == nil || s.count[framesSent] > last {
			break
		}
		if s.kickErrs > 0 {
			s.kickFailed()
		}
		for conn := s.tcp.Ready; conn != nil && !s.linkFull && s.count[framesSent] <= last; conn = s.tcp.Ready {
			c, _ := conn.Owner.(*TCPConn) // nil: not accepted yet
			s.emitTCP(conn, c)
		}
	}
	if s.unflushed { // before the timer, so that the frames leave sooner
		s.flush()
	}
	at := instant(s.tcp.Deadline)
	switch {
	case s.linkFull, len(s.stalled) > 0:
		at = min(at, s.now+instant(sendPause))
	case s.tcp.Ready != nil:
		at = min(at, s.now+1) // not in this pass over the timers
	}
	if t := &s.tcpTimer.timer; at < never && (t.slot == 0 || at < t.at) && !s.closed && s.broken == nil {
		s.startTimer(t, at)
	}
}

// settleAtEnd is settle at the end of a call of the application. If nobody polls, nobody may do so
// for a while: then all that is ready is sent.
//
// +checklocks:s.mu
func (s *Stack) settleAtEnd() {
	s.settle()
	s.sendUnserved()
}

// sendUnserved sends all that is ready if nobody polls.
//
// +checklocks:s.mu
func (s *Stack) sendUnserved() {
	if !s.role.isServed() {
		s.sendAll()
	}
}

// sendAll sends all that is ready.
//
// +checklocks:s.mu
func (s *Stack) sendAll() {
	for s.tcp.Ready != nil && !s.linkFull && !s.closed && s.broken == nil {
		s.settle()
	}
}
