package stack

import (
	"github.com/unet-go/unet/proto/tcp"
)

// Write queues p to be sent, and waits while there is no room for all of it. The
// first small write leaves in this call; one that follows while the peer has not
// acknowledged it may wait a little for more, see [TCPConn.SetCork].
func (c *TCPConn) Write(p []byte) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	now := s.readClock()
	c.resumeAck()
	if !c.writeSlow && !c.writing {
		n, err = c.conn.Write(tcp.Time(now), p)
		s.finishTCP()
	}
	if err == nil && (n < len(p) || c.writeSlow || c.writing) {
		n, err = c.writeRest(p, n)
	} else if s.role != roleApplication {
		s.lookAround()
	}
	s.mu.Unlock()
	return n, err
}

// writeRest writes p from n on, waiting for room, and for the turn if somebody
// else has begun to.
func (c *TCPConn) writeRest(p []byte, n int) (int, error) {
	s := c.stack
	for c.writing {
		if err := c.writeTrouble(); err != nil {
			return n, err
		}
		s.waitFor(&c.turn, c.writeDeadline)
	}
	c.writing = true
	defer func() {
		c.writing = false
		s.signal(&c.turn)
	}()
	for {
		if err := c.writeTrouble(); err != nil {
			return n, err
		}
		seq := c.writable.seq
		k, err := c.conn.Write(tcp.Time(s.readClock()), p[n:])
		n += k
		s.finishTCP()
		if n == len(p) || err != nil {
			return n, err
		}
		if c.writable.seq == seq { // or else finishTCP has made room, in a connection to ourselves
			s.waitFor(&c.writable, c.writeDeadline)
		}
	}
}

// lookAround does for a writer, who may go on writing for long, what nobody polls
// for: it takes in the acknowledgments that have come and sends what has waited
// long enough for more. The caretaker keeps out of that.
func (s *Stack) lookAround() {
	s.roleMoves++
	if s.role == roleCaretaker {
		s.signal(&s.recall)
	}
	if s.link.Pending() {
		s.input()
	}
	if s.now >= s.timerAt {
		s.runDue()
	}
	if s.role == roleFree {
		s.lookSoonForTCP()
	}
}
