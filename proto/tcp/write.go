package tcp

import (
	"syscall"
	"time"
)

// What an application does to send. Nothing here blocks; whoever wants to wait
// waits for the event.

// Write copies p to the end of what is to be sent and returns how much of it
// there was room for. If that is not all, Writable follows when there is room
// again. Before the connection is established bytes are queued too.
//
// Errors: EPIPE after CloseWrite, and once an error has been returned; what ended
// the connection, once; ENOBUFS if the table's memory is used up by others, for
// then nothing that happens to this connection would make room.
func (c *Conn) Write(now Time, p []byte) (int, error) {
	if err := c.writeError(); err != nil {
		return 0, err
	}
	room := c.opts.SendBuffer - c.send.bytes
	n := 0
	if room > 0 {
		t := c.table
		p := p[:min(room, len(p))]
		n = c.send.write(&t.pool, p)
		for n < len(p) && c.send.bytes < guaranteed && t.reclaim(&c.outOfOrder, c.send.bytes) {
			n += c.send.write(&t.pool, p[n:])
		}
	}
	if n == 0 && len(p) > 0 && c.send.bytes == 0 {
		return 0, syscall.ENOBUFS
	}
	c.wantsWrite = n < len(p)
	if n > 0 {
		c.update(now)
	}
	return n, nil
}

// Lend is Write without the copy: the engine refers to p, which must not change
// until it is returned, see [Conn.Lent]. All of it or nothing is taken; ok is
// false if there is no room. p may be larger than the whole buffer if nothing
// else is queued.
func (c *Conn) Lend(now Time, p []byte) (ok bool, err error) {
	if err := c.writeError(); err != nil {
		return false, err
	}
	if len(p) == 0 || c.send.bytes > 0 && c.send.bytes+len(p) > c.opts.SendBuffer || len(p) > maxBuffer {
		c.wantsWrite = len(p) > 0
		return len(p) == 0, nil
	}
	c.send.lend(&c.table.pool, p)
	c.update(now)
	return true, nil
}

// Lent is how many pieces of memory have been lent, and how many of these are
// the application's again because the peer has acknowledged them or the
// connection is over. They come back in the order in which they were lent; the
// event is Returned, or Finished.
func (c *Conn) Lent() (lent, returned uint64) { return c.send.lends, c.send.returned }

// writable reports whether a writer that has waited should be told: when a
// quarter of the buffer is free, so that it is not woken for every segment.
func (c *Conn) writable() bool {
	return c.send.bytes <= c.opts.SendBuffer-c.opts.SendBuffer/4
}

// tellWriter tells a writer that has waited, if there is room for it now.
func (c *Conn) tellWriter() {
	if c.wantsWrite && c.writable() {
		c.wantsWrite = false
		c.notify(Writable)
	}
}

func (c *Conn) writeError() error {
	switch {
	case c.err != 0:
		err := c.err
		if c.errTaken {
			err = syscall.EPIPE
		}
		c.errTaken = true
		return err
	case c.writeClosed, c.state == Closed:
		return syscall.EPIPE
	}
	return nil
}

// Room is how many bytes Write would take, memory permitting.
func (c *Conn) Room() int { return max(0, c.opts.SendBuffer-c.send.bytes) }

// Unacknowledged is how many bytes have been written and not yet acknowledged.
func (c *Conn) Unacknowledged() int { return c.send.bytes }

// Flush lets corked bytes go: the writer is about to wait for something. Nagle's
// algorithm, if it is on, has the last word.
func (c *Conn) Flush(now Time) {
	if c.send.cursor != nil && !c.flushed {
		c.flushed = true
		c.update(now)
	}
}

// CloseWrite sends a FIN after all that has been written (CLOSE in RFC 9293,
// section 3.10.4). Receiving goes on. It is an error only if the connection is
// not there any more.
func (c *Conn) CloseWrite(now Time) error {
	if c.writeClosed {
		return nil
	}
	switch c.state {
	case Closed, TimeWait:
		if c.err != 0 {
			return c.err
		}
		return syscall.ENOTCONN
	case SynSent:
		// Section 3.10.4 deletes the connection here.
		c.writeClosed = true
		c.abort(syscall.ECONNABORTED)
		return nil
	}
	c.writeClosed = true
	c.finQueued = true
	switch c.state {
	case Established:
		c.state = FinWait1
	case CloseWait:
		c.state = LastAck
	}
	// In SYN-RECEIVED it waits for the handshake, see becomeEstablished.
	c.update(now)
	return nil
}

// Close lets go of the connection: nothing more is read or written. What has
// been written is still sent, and then a FIN. If there is text that has not been
// read the peer gets a RST instead, and so it does for text that comes later
// (RFC 1122, section 4.2.2.13). The connection lives on without its owner until
// Finished.
func (c *Conn) Close(now Time) {
	if c.closed {
		return
	}
	c.closed = true
	unread := c.recv.bytes > 0 || c.posted > 0
	c.discard()
	if c.state == Closed || c.state == TimeWait {
		return
	}
	if unread {
		c.abort(0)
		return
	}
	if err := c.CloseWrite(now); err != nil {
		return
	}
	if c.state == FinWait2 {
		c.waitAt = now.add(c.table.cfg.FinWait)
	}
	c.keepAt = Never
	c.update(now)
}

// Abort ends the connection at once with a RST (ABORT in RFC 9293, section
// 3.10.5): what Close means with SO_LINGER and a time of 0. With another time it
// means Close, and to wait for Drained or Finished that long, and then Abort.
func (c *Conn) Abort() {
	c.closed = true
	c.abort(syscall.ECONNABORTED)
	c.discard()
}

// Fail ends the connection with an error that its owner has learnt elsewhere,
// EHOSTUNREACH from ARP for one, and tells nobody.
func (c *Conn) Fail(err syscall.Errno) { c.fail(err) }

// SetNagle turns Nagle's algorithm on or off: off is TCP_NODELAY.
func (c *Conn) SetNagle(now Time, on bool) {
	c.opts.Nagle = on
	c.update(now)
}

// SetAdaptiveAck turns adaptive acknowledgments, see ack.go, on or off. One that waits
// goes on waiting.
func (c *Conn) SetAdaptiveAck(on bool) { c.opts.AdaptiveAck = on }

// SetCork changes how long small writes gather while text is in flight. Negative:
// not at all.
func (c *Conn) SetCork(now Time, d time.Duration) {
	c.opts.Cork = or(d, DefaultCork)
	c.update(now)
}

// SetUserTimeout changes how long text may stay unacknowledged. Negative: for
// ever. A timer that runs is not changed.
func (c *Conn) SetUserTimeout(d time.Duration) { c.opts.UserTimeout = or(d, DefaultUserTimeout) }

// SetKeepAlive changes the keepalive.
func (c *Conn) SetKeepAlive(now Time, k KeepAlive) {
	c.opts.KeepAlive = k.withDefaults()
	c.startKeepAlive(now)
	c.update(now)
}

// SetBuffers changes the bounds of the queues, in bytes; 0 leaves one as it is. One
// that is set does not grow any more. A
// receive buffer beyond what the scale of the window can say, which the
// handshake has fixed, is not used in full. A window that has been advertised is
// not taken back.
func (c *Conn) SetBuffers(now Time, send, receive int) {
	if send > 0 {
		c.opts.growSend = false
		c.opts.SendBuffer = min(max(send, minBuffer), maxBuffer)
		c.tellWriter()
	}
	if receive > 0 {
		c.opts.growReceive, c.growth.nextAt = false, Never
		c.opts.ReceiveBuffer = min(max(receive, minBuffer), maxBuffer)
	}
	c.ackNow = c.ackNow || c.windowUpdateDue()
	c.update(now)
}
