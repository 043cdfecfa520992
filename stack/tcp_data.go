package stack

import (
	"os"

	"github.com/unet-go/unet/proto/tcp"
)

// Read waits until there is data, and copies as much as there is to p. After the last data
// it returns io.EOF. Data that arrives while it waits is copied to p without a queue.
func (c *TCPConn) Read(p []byte) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	for {
		if c.readSlow {
			if err = c.readTrouble(); err != nil {
				if len(p) == 0 && !c.closed {
					err = nil
				}
				break
			}
		}
		if len(p) == 0 {
			break
		}
		if s.broken != nil || c.posted || !c.conn.Post(tcp.Time(s.now), p) {
			if n, err = c.conn.Read(tcp.Time(s.now), p); n > 0 || err != nil {
				break
			}
			if err = s.broken; err != nil {
				break
			}
			c.conn.Flush(tcp.Time(s.now))
			c.awaitData()
			continue
		}
		c.posted = true
		c.awaitData()
		c.posted = false
		if n = c.conn.Unpost(tcp.Time(s.now)); n > 0 {
			break
		}
	}
	if s.tcp.Ready != nil {
		s.readClock()
		s.settleAtEnd()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("read", "read", err)
	}
	return n, err
}

// awaitData sends what Flush or Post has made ready and waits until there is something to
// read. It may return without a reason: the caller repeats.
//
// +checklocks:c.stack.mu
func (c *TCPConn) awaitData() {
	s := c.stack
	seq := c.readable.seq
	if s.tcp.Ready != nil {
		s.readClock()
		s.settle()
	}
	if c.readable.seq == seq { // otherwise the answer has arrived: the peer is in this stack
		s.waitFor(&c.readable, c.readDeadline)
	}
}

// TCPData is received data in the memory in which it was received.
type TCPData struct {
	Data []byte // valid until Return

	loan tcp.Loan
	conn *TCPConn
}

// Borrow waits for data and returns its first piece without a copy; [TCPConn.Return] gives
// it back. Until then a piece in a frame counts against Config.FrameQuota. After the last
// piece it returns io.EOF.
func (c *TCPConn) Borrow() (t TCPData, err error) {
	var loan [1]tcp.Loan
	if _, err = c.borrow(loan[:], 0); err != nil {
		return t, err
	}
	return TCPData{loan[0].Data, loan[0], c}, nil
}

// borrow waits for data and takes its first pieces: as many as there are, at most len(loans), and
// none after the first enough bytes.
func (c *TCPConn) borrow(loans []tcp.Loan, enough int) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	for {
		if err = c.readTrouble(); err != nil {
			break
		}
		if _, err = c.conn.Read(tcp.Time(s.now), nil); err != nil {
			break
		}
		for bytes := 0; n < len(loans) && (n == 0 || bytes < enough); n++ {
			var ok bool
			if loans[n], ok = c.conn.Borrow(tcp.Time(s.now)); !ok {
				break
			}
			bytes += len(loans[n].Data)
		}
		if n > 0 {
			break
		}
		if err = s.broken; err != nil {
			break
		}
		c.conn.Flush(tcp.Time(s.now))
		c.awaitData()
	}
	if s.tcp.Ready != nil {
		s.readClock()
		s.settleAtEnd()
	}
	s.mu.Unlock()
	return n, c.fail("read", "read", err)
}

// Return gives the memory of borrowed data back, also after the connection has been closed.
// t is empty afterwards; to return it again is a bug.
func (c *TCPConn) Return(t *TCPData) {
	if t.conn != c {
		panic("BUG: stack: data is returned that was not borrowed here, or has been returned")
	}
	s := c.stack
	s.mu.Lock()
	s.tcp.Return(&t.loan)
	s.mu.Unlock()
	*t = TCPData{}
}

// Write queues p to be sent, and waits while there is no room for all of it. A small write
// is sent in this call if nothing is in flight and no other connection has much to send; otherwise
// it may wait for more data, see [TCPConn.SetCork], or for its turn.
func (c *TCPConn) Write(p []byte) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	now := s.readClock()
	if !c.writeSlow && !c.writing {
		if !s.role.isServed() && s.link.Pending() { // the window may have changed, or the connection may have ended
			s.receive()
			now = s.now
		}
		inLine := s.role.is(roleApplication) && c.conn.InLine()
		n, err = c.conn.Write(tcp.Time(now), p)
		c.noteCorked()
		if !inLine {
			s.settle()
		}
	}
	if err == nil && (n < len(p) || c.writeSlow || c.writing) {
		err = c.writeInTurn(func(now tcp.Time) (done bool, err error) {
			k, err := c.conn.Write(now, p[n:])
			n += k
			return n == len(p), err
		})
	} else if !s.role.is(roleApplication) {
		s.lookAround()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("write", "write", err)
	}
	return n, err
}

// writeInTurn calls write until it is done or fails, and waits for room in between. Other
// writers of the connection wait meanwhile.
//
// +checklocks:c.stack.mu
func (c *TCPConn) writeInTurn(write func(now tcp.Time) (done bool, err error)) error {
	s := c.stack
	for c.writing {
		if err := c.writeTrouble(); err != nil {
			return err
		}
		s.waitFor(&c.turn, c.writeDeadline)
	}
	c.writing = true
	s.writers++
	err := c.writeUntilDone(write)
	c.writing = false
	s.writers--
	s.role.signal(&c.turn)
	return err
}

// writeUntilDone is writeInTurn for the writer whose turn it is.
//
// +checklocks:c.stack.mu
func (c *TCPConn) writeUntilDone(write func(now tcp.Time) (done bool, err error)) error {
	s := c.stack
	for {
		if err := c.writeTrouble(); err != nil {
			return err
		}
		seq := c.writable.seq
		s.readClock()
		if !s.role.isServed() && s.link.Pending() {
			s.receive()
		}
		inLine := s.role.is(roleApplication) && c.conn.InLine()
		done, err := write(tcp.Time(s.now))
		c.noteCorked()
		if !inLine { // else it has its turn when the goroutine that polls comes to it
			s.settle()
		}
		if done || err != nil {
			if !s.role.is(roleApplication) {
				s.lookAround()
			}
			return err
		}
		if c.writable.seq == seq { // otherwise there is room: the peer is in this stack
			s.waitFor(&c.writable, c.writeDeadline)
		}
	}
}

// Lend is Write without the copy: the stack refers to p, which must not change until Reclaim
// has returned. It is faster for large pieces only. It waits while there is no room for p; if
// nothing else is queued there is room for up to 1 GiB; a longer p is EINVAL. After an error nothing of p is queued.
func (c *TCPConn) Lend(p []byte) error {
	s := c.stack
	s.mu.Lock()
	err := c.writeInTurn(func(now tcp.Time) (bool, error) { return c.conn.Lend(now, p) })
	s.mu.Unlock()
	return c.fail("write", "write", err)
}

// Reclaim waits until the stack does not use any lent memory: the peer has acknowledged all
// of it, or the connection has ended. It may be called after Close. If it fails, because of
// the write deadline or because the link is broken, the memory is still in use.
func (c *TCPConn) Reclaim() error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
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
		s.settle()
		if c.reclaimed.seq == seq {
			s.waitFor(&c.reclaimed, c.writeDeadline)
		}
	}
}

// readTrouble returns the error of a read of a closed connection or after the deadline.
//
// +checklocks:c.stack.mu
func (c *TCPConn) readTrouble() error {
	if c.closed {
		return c.stack.ended()
	}
	return c.stack.pastDeadline(c.readDeadline, &c.reads)
}

// writeTrouble is readTrouble for writing.
//
// +checklocks:c.stack.mu
func (c *TCPConn) writeTrouble() error {
	switch {
	case c.closed:
		return c.stack.ended()
	case c.writeDeadline != never && c.stack.readClock() >= c.writeDeadline:
		return os.ErrDeadlineExceeded
	}
	return c.stack.broken
}

// noteCorked is called after a write: a small one may wait for more ([tcp.DefaultCork]). Where a goroutine
// polls, it waits no longer than until that goroutine finds nothing else to do: then the
// goroutine that has written, and those that it has woken, have run.
//
// +checklocks:c.stack.mu
func (c *TCPConn) noteCorked() {
	s := c.stack
	switch {
	case !s.role.is(roleApplication) || !c.conn.Corked():
	case s.role.sleeps():
		c.conn.Flush(tcp.Time(s.now))
	case !c.inCorks:
		c.inCorks = true
		s.corks = append(s.corks, c)
		s.corking.Store(true)
	}
}

// uncork sends what waits for more data of small writes.
//
// +checklocks:s.mu
func (s *Stack) uncork() {
	s.readClock()
	for _, c := range s.corks {
		c.inCorks = false
		if c.conn.Corked() {
			c.conn.Flush(tcp.Time(s.now))
		}
	}
	clear(s.corks)
	s.corks = s.corks[:0]
	s.corking.Store(false)
	s.settle()
}
