package tcp

import "io"

// What an application does to receive. Nothing here blocks.

// Readable reports whether Read would return something: text, its end or an
// error.
func (c *Conn) Readable() bool {
	return c.recv.bytes > 0 || c.posted > 0 || c.atEnd()
}

// atEnd reports whether no more text will come than is queued.
func (c *Conn) atEnd() bool {
	return c.gotFin || c.readClosed || c.closed || c.state == Closed || c.state == TimeWait
}

// Buffered is how many bytes of text wait to be read.
func (c *Conn) Buffered() int { return c.recv.bytes }

// Read moves text to p. 0 without an error says that there is none now; Readable
// follows when there is. After the last text it returns io.EOF, or what ended
// the connection.
func (c *Conn) Read(now Time, p []byte) (int, error) {
	if c.recv.head == nil {
		return 0, c.readError(len(p))
	}
	n := c.recv.read(&c.table.pool, p)
	c.hasRead(now)
	return n, nil
}

// readError is the answer of a read that finds nothing to room for want bytes.
func (c *Conn) readError(want int) error {
	if !c.atEnd() {
		c.wantsRead = c.wantsRead || want > 0 // another reader may wait
		return nil
	}
	if c.err != 0 && !c.gotFin && !c.readClosed {
		c.errTaken = true // a write is EPIPE from now on, as in the kernel
		return c.err
	}
	return io.EOF
}

// hasRead is called when there is more room in the receive queue.
func (c *Conn) hasRead(now Time) {
	if now >= c.growth.nextAt {
		c.growReceive(now)
	}
	if !c.ackNow && c.windowUpdateDue() { // an ACK that is due tells the window anyway
		c.ackNow = true
		c.update(now)
	}
}

// Post says that a reader waits and where it wants its text. Text in order then
// goes there, its checksum computed as it is copied. The reader asks for it with
// Unpost once Readable has come, or when it will not wait any longer. ok is
// false if there is something to read already.
func (c *Conn) Post(p []byte) (ok bool) {
	if c.Readable() {
		return false
	}
	c.post, c.posted, c.wantsRead = p, 0, true
	return true
}

// Unpost ends what Post has begun and returns how many bytes of p were filled. p
// is the caller's again. 0 says that nothing came: Read has the reason.
func (c *Conn) Unpost(now Time) int {
	n := c.posted
	c.post, c.posted = nil, 0
	if n > 0 {
		c.hasRead(now)
	}
	return n
}

// Loan is text in the memory it came in.
type Loan struct {
	Text  []byte // the borrower's until Return
	block *block
}

// Borrow takes the first piece of text off the queue without a copy. ok is false
// if there is none; Read has the reason. The piece goes back by [Table.Return],
// also after the connection is over.
func (c *Conn) Borrow(now Time) (l Loan, ok bool) {
	if c.recv.head == nil {
		c.wantsRead = !c.atEnd()
		return Loan{}, false
	}
	b := c.recv.pop()
	c.recv.bytes -= len(b.data)
	c.hasRead(now)
	return Loan{b.data, b}, true
}

// Return gives back what was borrowed. l is empty afterwards; to return it again
// is a bug.
func (t *Table) Return(l *Loan) {
	if l.block == nil {
		panic("BUG: tcp: text is returned that was not borrowed, or has been returned")
	}
	t.pool.put(l.block)
	*l = Loan{}
}

// CloseRead says that nothing more will be read. What comes is acknowledged and
// thrown away, as with shutdown(2).
func (c *Conn) CloseRead(now Time) {
	if c.readClosed {
		return
	}
	c.readClosed = true
	c.recv.clear(&c.table.pool)
	c.hasRead(now)
	c.notify(Readable)
}
