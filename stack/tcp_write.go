package stack

import (
	"os"

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
		if s.link.Pending() { // perhaps the window has closed, or the connection is over
			s.receive()
			now = s.now
		}
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
	err := c.writeInTurn(func(now tcp.Time) (done bool, err error) {
		k, err := c.conn.Write(now, p[n:])
		n += k
		return n == len(p), err
	})
	return n, err
}

// writeInTurn calls write until that is done, waiting for room in between, while
// nobody else writes.
func (c *TCPConn) writeInTurn(write func(now tcp.Time) (done bool, err error)) error {
	s := c.stack
	for c.writing {
		if err := c.writeTrouble(); err != nil {
			return err
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
			return err
		}
		seq := c.writable.seq
		s.readClock()
		if s.link.Pending() {
			s.receive()
		}
		done, err := write(tcp.Time(s.now))
		s.finishTCP()
		if done || err != nil {
			return err
		}
		if c.writable.seq == seq { // or else finishTCP has made room, in a connection to ourselves
			s.waitFor(&c.writable, c.writeDeadline)
		}
	}
}

// Lend queues p to be sent from where it lies, without a copy, and waits while there
// is no room for it; there is for any length when nothing else is queued. p must not
// change until Reclaim has returned. After an error nothing of p is queued.
func (c *TCPConn) Lend(p []byte) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	c.resumeAck()
	return c.writeInTurn(func(now tcp.Time) (bool, error) { return c.conn.Lend(now, p) })
}

// Reclaim waits until all that was lent is the application's again: the peer has it,
// or the connection is over. It works on a connection that has been closed, too. After
// os.ErrDeadlineExceeded, or the error that broke the link, the memory is still lent.
func (c *TCPConn) Reclaim() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	c.resumeAck()
	for {
		lent, returned := c.conn.Lent()
		switch {
		case lent == returned:
			return nil
		case s.broken != nil:
			return s.broken
		case s.readClock() >= c.writeDeadline:
			return os.ErrDeadlineExceeded
		}
		seq := c.reclaimed.seq
		c.conn.Flush(tcp.Time(s.now))
		s.finishTCP()
		if c.reclaimed.seq == seq {
			s.waitFor(&c.reclaimed, c.writeDeadline)
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
