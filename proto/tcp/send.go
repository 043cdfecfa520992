package tcp

import (
	"cmp"
	"syscall"
	"time"

	"github.com/unet-go/unet/wire"
)

// The calls of an application that sends. None blocks: the caller waits for an event.

// Write copies p to the end of the send queue and returns for how many bytes there was
// room. If that is not all, the event Writable follows when there is room again. Before the
// connection is established data is queued too.
//
// Errors: the error that ended the connection, if neither Read nor Write has returned it
// yet; EPIPE after that, and after CloseWrite; ENOBUFS if the queue is empty and the table's
// memory is used up, since no event of this connection would follow.
func (c *Conn) Write(now Time, p []byte) (int, error) {
	if c.err != 0 || c.writeClosed || c.state == Closed {
		return 0, c.writeError()
	}
	q, t := &c.send, c.table
	tail, end := q.tail, 0
	if tail != nil {
		end = len(tail.data)
	}
	n, room := 0, p[:max(0, min(c.opts.SendBuffer-q.bytes, len(p)))]
	n = q.write(&t.pool, room)
	for n < len(room) && q.bytes < guaranteed && t.reclaim(&c.outOfOrder, q.bytes) {
		n += q.write(&t.pool, room[n:])
	}
	if n > 0 && q.cursor == nil { // all before it has been sent
		switch {
		case tail == nil:
			q.cursor, q.offset = q.head, 0
		case len(tail.data) > end:
			q.cursor, q.offset = tail, end
		default:
			q.cursor, q.offset = tail.next, 0
		}
	}
	c.update(now)
	if n == 0 && len(p) > 0 && q.bytes == 0 {
		return 0, syscall.ENOBUFS
	}
	c.wantsWrite = n < len(p)
	return n, nil
}

// Lend is Write without the copy: the engine refers to p, which must not change
// until it is returned, see [Conn.Lent]. It queues all of p or nothing; ok is
// false if there is no room. If nothing else is queued, p may be larger than the send
// buffer, up to 1 GiB; a longer p is EINVAL.
func (c *Conn) Lend(now Time, p []byte) (ok bool, err error) {
	if c.err != 0 || c.writeClosed || c.state == Closed {
		return false, c.writeError()
	}
	if len(p) > maxBuffer {
		return false, syscall.EINVAL
	}
	if len(p) == 0 || c.send.bytes > 0 && c.send.bytes+len(p) > c.opts.SendBuffer {
		c.wantsWrite = len(p) > 0
		return len(p) == 0, nil
	}
	q, b := &c.send, c.table.pool.refer(p, lentBlock, 0)
	q.push(b)
	q.lends++
	if q.cursor == nil {
		q.cursor, q.offset = b, 0
	}
	c.update(now)
	return true, nil
}

// Commit is Write of the first n bytes of a Space without the copy: if ok, the table has the
// Space. If not, wait says that there will be room after the event Writable; else the caller
// calls Write: n is less than half a Space, the send buffer is small, or memory is short.
func (c *Conn) Commit(now Time, s *Space, n int) (ok, wait bool, err error) {
	if c.err != 0 || c.writeClosed || c.state == Closed {
		return false, false, c.writeError()
	}
	q, p := &c.send, &c.table.pool
	if n < len(s)/2 || c.opts.SendBuffer < 4*len(s) {
		return false, false, nil
	}
	if q.bytes+n > c.opts.SendBuffer {
		c.wantsWrite = true
		return false, true, nil
	}
	if !p.take(len(s), q.bytes) {
		return false, false, nil
	}
	b := p.refer(s[:n], spaceBlock, 0)
	b.space, b.cost = s, int32(len(s))
	q.push(b)
	if q.cursor == nil {
		q.cursor, q.offset = b, 0
	}
	c.update(now)
	return true, false, nil
}

// Lent is how many pieces of memory have been lent, and how many of these are returned:
// the peer has acknowledged them, or the connection has ended. They are returned in the
// order in which they were lent; the event is Returned, or Finished.
func (c *Conn) Lent() (lent, returned uint64) { return c.send.lends, c.send.returned }

// tellWriter reports Writable to a writer that waits, if a quarter of the buffer is free: so
// it is not woken for every segment.
func (c *Conn) tellWriter() {
	if c.wantsWrite && c.send.bytes <= c.opts.SendBuffer-c.opts.SendBuffer/4 {
		c.wantsWrite = false
		c.notify(Writable)
	}
}

// writeError is the error of a write after err, CloseWrite or the end of the connection.
func (c *Conn) writeError() error {
	if c.err == 0 || c.errTaken {
		return syscall.EPIPE
	}
	c.errTaken = true
	return c.err
}

// Room is how many bytes Write would queue, if the table has memory for them.
func (c *Conn) Room() int { return max(0, c.opts.SendBuffer-c.send.bytes) }

// Unacknowledged is how many bytes have been written and not yet acknowledged.
func (c *Conn) Unacknowledged() int { return c.send.bytes }

// Flush sends corked bytes: the writer is about to wait for something. Nagle's algorithm,
// if it is on, may still delay them.
func (c *Conn) Flush(now Time) {
	if c.send.cursor != nil && !c.flushed {
		c.flushed = true
		c.update(now)
	}
}

// CloseWrite sends a FIN after all written data (CLOSE in RFC 9293, section 3.10.4).
// Receiving continues. Errors: the error that ended the connection; ENOTCONN if it has ended
// without one.
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
	// In SYN-RECEIVED the FIN waits for the end of the handshake, see becomeEstablished.
	c.update(now)
	return nil
}

// Close ends reading and writing. Written data is still sent, and then a FIN. If received
// data has not been read, or arrives later, a RST is sent instead (RFC 1122, section
// 4.2.2.13). The connection exists until the event Finished.
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
// 3.10.5), as close(2) does with SO_LINGER and a time of 0. For another time: call Close,
// wait that long for Drained or Finished, and then call Abort.
func (c *Conn) Abort() {
	c.closed = true
	c.abort(syscall.ECONNABORTED)
	c.discard()
}

// SetNagle turns Nagle's algorithm on or off: off is TCP_NODELAY.
func (c *Conn) SetNagle(now Time, on bool) {
	c.opts.Nagle = on
	c.update(now)
}

// Corked reports whether a small write waits for more, see SetCork.
func (c *Conn) Corked() bool { return c.next.corked }

// SetAdaptiveAck turns adaptive acknowledgments, see steps.go, on or off. It does not change
// the time of an acknowledgment that is delayed already.
func (c *Conn) SetAdaptiveAck(on bool) { c.opts.AdaptiveAck = on }

// SetCork changes how long small writes are collected while data is in flight. Negative:
// not at all; 0: DefaultCork.
func (c *Conn) SetCork(now Time, d time.Duration) {
	c.opts.Cork = cmp.Or(d, DefaultCork)
	c.update(now)
}

// SetUserTimeout changes how long data may stay unacknowledged. Negative: without limit; 0:
// DefaultUserTimeout. A timer that is armed is not changed.
func (c *Conn) SetUserTimeout(d time.Duration) { c.opts.UserTimeout = cmp.Or(d, DefaultUserTimeout) }

// SetKeepAlive changes the keepalive.
func (c *Conn) SetKeepAlive(now Time, k KeepAlive) {
	c.opts.KeepAlive = k.withDefaults()
	c.startKeepAlive(now)
	c.update(now)
}

// SetBuffers changes the bounds of the send and the receive queue, in bytes; 0 does not
// change a bound. A bound that is set does not grow any more. The handshake has fixed the
// window scale: the part of a receive buffer that it cannot express is not used. An
// advertised window does not shrink.
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

// sendQueue is the retransmission buffer: the bytes from SND.UNA to the last one
// written. Bytes before the cursor have been sent and are not acknowledged.
type sendQueue struct {
	queue
	cursor *block // the block with the byte at SND.NXT; nil: all bytes have been sent
	offset int    // of that byte in the block

	lends    uint64 // pieces of memory that were lent
	returned uint64 // pieces of lends that the engine does not use any more
}

// copyOut copies the next len(dst) bytes to dst, and advances the cursor past them. The queue must have as many.
func (q *sendQueue) copyOut(dst []byte) {
	for len(dst) > 0 {
		b := q.cursor
		n := copy(dst, b.data[q.offset:])
		dst = dst[n:]
		if q.offset += n; q.offset == len(b.data) {
			q.cursor, q.offset = b.next, 0
		}
	}
}

// sumOut is copyOut, and returns the unfolded sum of the bytes plus sum.
func (q *sendQueue) sumOut(dst []byte, sum uint64) uint64 {
	odd := false
	for len(dst) > 0 {
		b := q.cursor
		src := b.data[q.offset:]
		if len(src) > len(dst) {
			src = src[:len(dst)]
		}
		if odd {
			sum = wire.SumOdd(sum, wire.SumCopy(dst, src, 0))
		} else {
			sum = wire.SumCopy(dst, src, sum)
		}
		odd = odd != (len(src)%2 == 1)
		dst = dst[len(src):]
		if q.offset += len(src); q.offset == len(b.data) {
			q.cursor, q.offset = b.next, 0
		}
	}
	return sum
}

// copyAt copies the len(dst) bytes from the offset at on and returns their unfolded sum plus
// sum. The queue must have as many.
func (q *sendQueue) copyAt(dst []byte, at int, sum uint64) uint64 {
	b := q.head
	for b != nil && at >= len(b.data) {
		at -= len(b.data)
		b = b.next
	}
	from := sendQueue{cursor: b, offset: at}
	return from.sumOut(dst, sum)
}

// acknowledge drops n bytes from the head. If the cursor is among them, it moves to the new
// head.
func (q *sendQueue) acknowledge(p *pool, n int) {
	q.bytes -= n
	for n > 0 {
		b := q.head
		if n < len(b.data) {
			b.data = b.data[n:]
			if q.cursor == b {
				q.offset = max(0, q.offset-n)
			}
			return
		}
		n -= len(b.data)
		if q.cursor == b {
			q.cursor, q.offset = b.next, 0
		}
		if q.pop(); b.kind == lentBlock {
			q.returned++
		}
		p.put(b)
	}
}
