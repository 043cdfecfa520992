package stack

import (
	"net"

	"github.com/unet-go/unet/proto/tcp"
)

// Read waits for text and copies to p what there is. After the last it returns
// io.EOF.
func (c *TCPConn) Read(p []byte) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	if c.answering {
		c.resumeAck() // it was not for an answer
	}
	if !c.readSlow {
		n, err = c.conn.Read(tcp.Time(s.now), p)
	}
	if n == 0 && err == nil {
		n, err = c.readWait(p)
	}
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.finishTCP()
	}
	s.mu.Unlock()
	return n, err
}

// readWait is Read if there is more to do than to take what is there. While it
// waits, what comes is copied straight to p.
func (c *TCPConn) readWait(p []byte) (n int, err error) {
	s := c.stack
	if len(p) == 0 {
		if c.closed {
			err = net.ErrClosed
		}
		return 0, err
	}
	c.readers++
	for {
		if err = c.readTrouble(); err != nil {
			break
		}
		if n, err = c.conn.Read(tcp.Time(s.now), p); n > 0 || err != nil {
			break
		}
		if err = s.broken; err != nil {
			break
		}
		if !c.flushCork() {
			continue
		}
		post := !c.posted && c.conn.Post(p)
		c.posted = c.posted || post
		s.waitFor(&c.readable, c.readDeadline)
		if post {
			c.posted = false
			if n = c.conn.Unpost(tcp.Time(s.now)); n > 0 {
				break
			}
		}
	}
	c.readers--
	return n, err
}

// flushCork lets go, before a wait, what has been written and waits for more. It
// reports whether there is still something to wait for: in a connection to
// ourselves the answer may have come.
func (c *TCPConn) flushCork() bool {
	s := c.stack
	seq := c.readable.seq
	c.conn.Flush(tcp.Time(s.now))
	if s.tcp.NextReady() != nil {
		s.readClock()
		s.finishTCP()
	}
	return c.readable.seq == seq
}

// TCPText is received text in the memory it came in.
type TCPText struct {
	Text []byte // the application's until Return

	loan  tcp.Loan
	stack *Stack
}

// Borrow waits for text and lends its first piece without a copy. A piece that
// lies in a frame counts against the stack's frame quota until it is returned.
// After the last piece it returns io.EOF.
func (c *TCPConn) Borrow() (TCPText, error) {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	c.resumeAck()
	c.readers++
	defer func() { c.readers-- }()
	for {
		if err := c.readTrouble(); err != nil {
			return TCPText{}, err
		}
		if _, err := c.conn.Read(tcp.Time(s.now), nil); err != nil {
			return TCPText{}, err
		}
		if loan, ok := c.conn.Borrow(tcp.Time(s.now)); ok {
			if s.tcp.NextReady() != nil {
				s.readClock()
				s.finishTCP()
			}
			return TCPText{loan.Text, loan, s}, nil
		}
		if s.broken != nil {
			return TCPText{}, s.broken
		}
		if c.flushCork() {
			s.waitFor(&c.readable, c.readDeadline)
		}
	}
}

// Return gives the memory of borrowed text back, also after the connection has
// been closed. t is empty afterwards; to return it again is a bug.
func (t *TCPText) Return() {
	s := t.stack
	if s == nil {
		panic("BUG: stack: text is returned that was not borrowed, or has been returned")
	}
	s.mu.Lock()
	s.tcp.Return(&t.loan)
	s.mu.Unlock()
	*t = TCPText{}
}
