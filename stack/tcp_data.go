package stack

import (
	"net"
	"os"

	"github.com/unet-go/unet/proto/tcp"
)

// Read receives data: it waits for some, and copies to p what there is. After the last it
// returns io.EOF. While it waits, what comes is copied straight to p.
func (c *TCPConn) Read(p []byte) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	if c.answering {
		c.resumeAck() // it was not for an answer
	}
	for {
		if c.readSlow {
			if err = c.readTrouble(); err != nil {
				break
			}
		}
		if len(p) == 0 {
			break
		}
		if n, err = c.conn.Read(tcp.Time(s.now), p); n > 0 || err != nil {
			break
		}
		if err = s.broken; err != nil {
			break
		}
		if n = c.awaitData(p); n > 0 {
			break
		}
	}
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.settleTCP()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("read", "read", err)
	}
	return n, err
}

// awaitData waits until there is something to read, and returns how much of it has been
// copied to p. Before it waits it lets go what was written and is corked.
func (c *TCPConn) awaitData(p []byte) (n int) {
	s := c.stack
	seq := c.readable.seq
	c.readers++
	c.conn.Flush(tcp.Time(s.now))
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.settleTCP()
	}
	if c.readable.seq == seq { // or the answer has come, in a connection within the stack
		post := p != nil && !c.posted && c.conn.Post(p)
		c.posted = c.posted || post
		s.waitFor(&c.readable, c.readDeadline)
		if post {
			c.posted = false
			n = c.conn.Unpost(tcp.Time(s.now))
		}
	}
	c.readers--
	return n
}

// TCPData is received data in the memory it came in.
type TCPData struct {
	Data []byte // the application's until Return

	loan  tcp.Loan
	stack *Stack
}

// Borrow waits for data and lends its first piece where it lies, without a copy. It must go
// back with [TCPData.Return]. A piece that lies in a frame counts against the stack's frame
// quota until then. After the last piece it returns io.EOF.
func (c *TCPConn) Borrow() (t TCPData, err error) {
	s := c.stack
	s.mu.Lock()
	c.resumeAck()
	for {
		if err = c.readTrouble(); err != nil {
			break
		}
		if _, err = c.conn.Read(tcp.Time(s.now), nil); err != nil {
			break
		}
		if loan, ok := c.conn.Borrow(tcp.Time(s.now)); ok {
			t = TCPData{loan.Data, loan, s}
			break
		}
		if err = s.broken; err != nil {
			break
		}
		c.awaitData(nil)
	}
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.settleTCP()
	}
	s.mu.Unlock()
	return t, c.fail("read", "read", err)
}

// Return gives the memory of borrowed data back, also after the connection has
// been closed. t is empty afterwards; to return it again is a bug.
func (t *TCPData) Return() {
	s := t.stack
	if s == nil {
		panic("BUG: stack: data is returned that was not borrowed, or has been returned")
	}
	s.mu.Lock()
	s.tcp.Return(&t.loan)
	s.mu.Unlock()
	*t = TCPData{}
}

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
		s.settleTCP()
	}
	if err == nil && (n < len(p) || c.writeSlow || c.writing) {
		err = c.writeInTurn(func(now tcp.Time) (done bool, err error) {
			k, err := c.conn.Write(now, p[n:])
			n += k
			return n == len(p), err
		})
	} else if s.role != roleApplication {
		s.lookAround()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("write", "write", err)
	}
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
		s.settleTCP()
		if done || err != nil {
			return err
		}
		if c.writable.seq == seq { // or there is room, in a connection within the stack
			s.waitFor(&c.writable, c.writeDeadline)
		}
	}
}

// lookAround does for a writer, who may go on writing for long, what nobody polls
// for: it takes in the acknowledgments that have come and sends what has been corked
// long enough. The caretaker keeps out of that.
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

// Lend is Write without the copy: p is sent from where it lies, and must not change until
// Reclaim has returned. Large pieces gain by it, small ones do not. It waits while there is
// no room for p; there is for any length when nothing else is queued. After an error nothing
// of p is queued.
func (c *TCPConn) Lend(p []byte) error {
	s := c.stack
	s.mu.Lock()
	c.resumeAck()
	err := c.writeInTurn(func(now tcp.Time) (bool, error) { return c.conn.Lend(now, p) })
	s.mu.Unlock()
	return c.fail("write", "write", err)
}

// Reclaim waits until all that was lent is the caller's again: the peer has it, or the
// connection is over. It also works after Close. When it fails, by the write deadline
// or because the link is broken, the memory is still lent.
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
			return c.fail("write", "write", s.broken)
		case s.readClock() >= c.writeDeadline:
			return c.fail("write", "write", os.ErrDeadlineExceeded)
		}
		seq := c.reclaimed.seq
		c.conn.Flush(tcp.Time(s.now))
		s.settleTCP()
		if c.reclaimed.seq == seq {
			s.waitFor(&c.reclaimed, c.writeDeadline)
		}
	}
}

// readTrouble returns the reason why the connection is not read at all.
func (c *TCPConn) readTrouble() error {
	if c.closed {
		return net.ErrClosed
	}
	return c.stack.pastDeadline(c.readDeadline, &c.reads)
}

// writeTrouble is readTrouble for writing.
func (c *TCPConn) writeTrouble() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeDeadline != never && c.stack.readClock() >= c.writeDeadline:
		return os.ErrDeadlineExceeded
	}
	return c.stack.broken
}
