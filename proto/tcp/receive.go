package tcp

import (
	"cmp"
	"io"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Data that is received.
//
// Data in order is copied to the buffer of a reader that waits (Post), with its checksum in
// the same pass; or it stays in its frame, if it has Config.InPlace bytes or more; or it is
// copied to the end of the queue. Data out of order is always copied, so that a peer cannot
// occupy the link's frames with it.

// data is the sixth and the seventh step: it queues the data of a segment, which has been
// cut to the window. Urgent data is delivered in line (RFC 6093); the urgent pointer is not
// reported.
func (c *Conn) data(now Time, s *segment) {
	if s.has(wire.TCPUrg) {
		c.table.counts[UrgentPointers]++
	}
	// The place of the FIN is stored before any data is queued: queued data out of order
	// may lie behind the FIN, and must not be delivered.
	if s.has(wire.TCPFin) && !c.hasPeerFin {
		c.hasPeerFin = true
		c.peerFin = s.seq.Add(uint32(len(s.Payload)))
	}
	if len(s.Payload) == 0 || c.gotFin || c.state == Closed {
		return
	}
	t := c.table
	if c.hasPeerFin { // data behind the peer's FIN is invalid
		keep := min(uint32(len(s.Payload)), c.peerFin.From(seq.Min(s.seq, c.peerFin)))
		t.counts[DataAfterFin] += uint64(uint32(len(s.Payload)) - keep)
		s.Payload = s.Payload[:keep]
		if len(s.Payload) == 0 {
			c.ackNow = true
			return
		}
	}
	if c.closed {
		// RFC 1122, section 4.2.2.13: the application will not read it, and a RST
		// informs the peer.
		t.counts[DataAfterClose]++
		c.abort(0)
		return
	}
	if len(c.outOfOrder.runs) > 0 {
		c.noteTwice(c.outOfOrder.overlap(s.seq, s.seq.Add(uint32(len(s.Payload)))))
	}
	if s.seq != c.rcvNxt {
		t.counts[OutOfOrder]++
		c.stat.outOfOrder++
		c.ackNow = true // RFC 5681, section 4.2
		c.outOfOrder.insert(t, c.opts.ReceiveBuffer, s.seq, s.Payload)
		return
	}
	if q := &c.outOfOrder; !q.empty() {
		// Data that is queued already stays, as in oooQueue.insert.
		if gap := q.first().From(s.seq); gap < uint32(len(s.Payload)) {
			q.insert(t, c.opts.ReceiveBuffer, q.first(), s.Payload[gap:])
			s.Payload = s.Payload[:gap]
		}
	}
	c.received(now, s)
}

// received stores data that begins at RCV.NXT and does not overlap with data out of order.
func (c *Conn) received(now Time, s *segment) {
	t, n := c.table, len(s.Payload)
	if s.placed {
		t.counts[Placed]++
		c.posted += n
	} else {
		n = c.deliver(s)
	}
	c.rcvNxt = c.rcvNxt.Add(uint32(n))
	if len(c.outOfOrder.runs) > 0 {
		n += c.advance()
		c.ackNow = true
	}
	if n < len(s.Payload) {
		t.counts[NoMemory]++
	}
	if n == 0 {
		return
	}
	if g := &c.growth; c.opts.growReceive && (c.timestamps && s.Timestamps && s.TSEcr != g.echoed || g.until.Before(c.rcvNxt)) {
		c.measureRound(now, s)
	}
	t.counts[BytesReceived] += uint64(n)
	c.stat.bytesIn += uint64(n)
	c.dataAt = now
	if c.opts.AdaptiveAck {
		c.delayAck(now, n)
	} else {
		c.ackNow = true
	}
	if c.wantsRead || c.posted > 0 {
		c.wantsRead = false
		c.notify(Readable)
	}
}

// deliver stores the data of s where the reader takes it, and returns for how many bytes of
// it there was memory.
func (c *Conn) deliver(s *segment) int {
	t := c.table
	if c.readClosed {
		t.counts[DataDiscarded] += uint64(len(s.Payload))
		return len(s.Payload)
	}
	rest := s.Payload
	if c.posted < len(c.post) && c.recv.head == nil {
		n := copy(c.post[c.posted:], rest)
		c.posted += n
		rest = rest[n:]
		t.counts[Placed]++
		if len(rest) == 0 {
			return len(s.Payload)
		}
	}
	held := c.recv.bytes
	switch {
	case len(rest) < t.cfg.InPlace:
	case s.memory == MemoryHeap && cap(rest) <= 2*len(rest) && t.pool.take(cap(rest), held):
		cost := cap(rest)
		b := t.pool.refer(rest, heapBlock, 0)
		b.cost = int32(cost)
		c.recv.push(b)
		return len(s.Payload)
	case s.memory == MemoryFrame:
		c.recv.push(t.pool.refer(rest, frameBlock, s.frame))
		t.kept = true
		return len(s.Payload)
	}
	t.counts[Copied]++
	n := c.recv.write(&t.pool, rest)
	for n < len(rest) && t.reclaim(&c.outOfOrder, c.recv.bytes) {
		n += c.recv.write(&t.pool, rest[n:])
	}
	return len(s.Payload) - len(rest) + n
}

// advance moves the out-of-order data that RCV.NXT has reached to the receive queue, and
// returns how many bytes it has moved.
func (c *Conn) advance() (n int) {
	q := &c.outOfOrder
	for !q.empty() && q.first().AtOrBefore(c.rcvNxt) {
		r := q.pop(c.table)
		at := r.left
		for b := r.head; b != nil; {
			next, end := b.next, at.Add(uint32(len(b.data)))
			b.next = nil
			if c.hasPeerFin { // data behind the peer's FIN is invalid
				end = seq.Min(end, c.peerFin)
			}
			if end.After(c.rcvNxt) {
				n += c.receive(b, b.data[c.rcvNxt.From(at):end.From(at)])
			} else {
				c.table.pool.put(b)
			}
			b, at = next, end
		}
	}
	return n
}

// receive appends data, a part of the block b, to the receive queue, and returns its length.
func (c *Conn) receive(b *block, data []byte) int {
	p := &c.table.pool
	n := len(data)
	c.rcvNxt = c.rcvNxt.Add(uint32(n))
	b.data = data
	switch tail := c.recv.tail; {
	case c.readClosed:
		c.table.counts[DataDiscarded] += uint64(n)
		p.put(b)
	case tail != nil && tail.kind == chunkBlock && tail.room() >= n:
		tail.data = append(tail.data, data...)
		c.recv.bytes += n
		p.put(b)
	default:
		c.recv.push(b)
	}
	return n
}

// The receive window, and the buffers of both directions, which grow with the
// bandwidth-delay product of the path unless their sizes have been set.
//
// The receive buffer grows as Linux's does (dynamic right-sizing). What the application
// reads in a round trip is what the path delivers in a round trip. The window must be twice
// that, or it would limit the sender, and four times that while the rate doubles each round
// trip. A slow reader reads little, so its buffer does not grow. The send buffer grows to twice what may be in
// flight, if a writer waits for room.
//
// Where a round trip takes growRound or less, no buffer grows beyond DefaultBuffer, which
// is more than any such path holds.

const (
	// Initial sizes of buffers that grow, bytes.
	initialSendBuffer    = 256 << 10
	initialReceiveBuffer = 128 << 10
	// growRound is the least time over which reads are measured: a tick of the timestamps.
	growRound = Time(time.Millisecond)
)

// growth is the state of the growth of the receive buffer.
type growth struct {
	rtt, lastRTT Time       // least round trip of this period and of the last; 0: not known
	period       Time       // when this period began
	until        seq.Number // right edge of the window at askedAt
	askedAt      Time
	echoed       uint32     // the last of our timestamps that the peer has echoed
	nextAt       Time       // when growReceive is due
	readAt       Time       // when growReceive last ran
	read         seq.Number // the next byte to be read at readAt
	most         int        // most bytes read in a round trip so far
}

// startGrowth is called when the connection is established.
func (c *Conn) startGrowth(now Time) {
	g := &c.growth
	g.nextAt = Never
	if c.opts.growReceive {
		g.until, g.askedAt, g.period = c.rcvAdv, now, now
		g.read, g.readAt, g.nextAt = c.rcvNxt, now, now.add(time.Duration(growRound))
		g.most = initialSegments * c.rcvMSS()
	}
}

// measureRound measures a round trip by data that has arrived: by the timestamp that it
// echoes, or by the time since the window that it lies in was advertised. Both may be too
// long, since the peer may send later than it could.
func (c *Conn) measureRound(now Time, s *segment) {
	g := &c.growth
	rtt := Time(0)
	if c.timestamps && s.Timestamps && s.TSEcr != g.echoed {
		g.echoed = s.TSEcr
		if ms := int32(c.timestamp(now) - s.TSEcr); ms >= 0 {
			rtt = max(Time(ms)*Time(time.Millisecond), growRound)
		}
	}
	if c.rcvNxt.After(g.until) {
		if d := now - g.askedAt; rtt == 0 || d < rtt {
			rtt = d
		}
		g.until, g.askedAt = c.rcvAdv, now
	}
	if rtt == 0 {
		return
	}
	if now-g.period > minRTTWindow {
		g.lastRTT, g.rtt, g.period = g.rtt, 0, now
	}
	if g.rtt == 0 || rtt < g.rtt {
		g.rtt = rtt
	}
}

// round is the time of a round trip for growth, at least growRound.
func (c *Conn) round() Time {
	g := &c.growth
	rtt := cmp.Or(g.rtt, g.lastRTT)
	if g.lastRTT != 0 && g.lastRTT < rtt {
		rtt = g.lastRTT
	}
	return max(cmp.Or(rtt, Time(c.minRTT)), growRound)
}

// growReceive enlarges the receive buffer if more was read in this round trip than in any
// before.
func (c *Conn) growReceive(now Time) {
	g := &c.growth
	round := c.round()
	took := now - g.readAt
	if took < round {
		g.nextAt = g.readAt + round
		return
	}
	read := c.rcvNxt.Back(uint32(c.recv.bytes))
	n := int(int64(read.From(g.read)) * int64(round) / int64(took))
	g.read, g.readAt, g.nextAt = read, now, now+round
	if n <= g.most {
		return
	}
	want := 2*n + 16*c.rcvMSS() + 2*n*(n-g.most)/g.most
	g.most = n
	c.opts.ReceiveBuffer = c.grown(c.opts.ReceiveBuffer, want, c.table.cfg.MaxReceiveBuffer, round)
}

// growSend is called when a writer waits for room.
func (c *Conn) growSend() {
	if c.opts.growSend {
		want := 2 * min(c.window, int(c.maxSndWnd))
		c.opts.SendBuffer = c.grown(c.opts.SendBuffer, want, c.table.cfg.MaxSendBuffer, Time(c.srtt))
	}
}

// grown is the new size of a buffer of size bytes that should have want: want, but at most
// most; size if that is less, or if the table's memory is under pressure.
func (c *Conn) grown(size, want, most int, round Time) int {
	if round <= growRound {
		most = min(most, DefaultBuffer)
	}
	if want = min(want, most); want <= size || c.table.pool.pressed() {
		return size
	}
	return want
}

// mostReceive is the limit of the receive buffer's growth. The scale of the window must be
// enough for it.
func (t *Table) mostReceive(o *Options) int {
	if o.growReceive {
		return max(o.ReceiveBuffer, t.cfg.MaxReceiveBuffer)
	}
	return o.ReceiveBuffer
}

// synWindow is the window of a SYN, which is never scaled.
func (c *Conn) synWindow() uint32 { return uint32(min(c.opts.ReceiveBuffer, 0xffff)) }

// freeReceive is how many more bytes may be received. While the table's memory is under
// pressure the buffer counts as 16 KiB (guaranteed) or 4 segments, whichever is more.
func (c *Conn) freeReceive() int {
	size := c.opts.ReceiveBuffer
	if c.table.pool.pressed() {
		size = min(size, max(guaranteed, 4*c.rcvMSS()))
	}
	return max(0, size-c.recv.bytes)
}

// windowField advertises the window: it advances the right edge and returns the window field
// of the header. The right edge never moves left (RFC 9293, section 3.8.6), and it advances
// by at least a segment or half the buffer (section 3.8.6.2.2).
func (c *Conn) windowField() uint16 {
	offered := c.rcvAdv.From(c.rcvNxt)
	wnd := offered
	if free := c.freeReceive(); free >= int(wnd)+min(c.opts.ReceiveBuffer/2, c.opts.MTU-c.headers) {
		wnd = uint32(free)
	}
	// A window that is not a multiple of the scale is rounded up, or the edge
	// would move left (RFC 7323, section 2.4).
	field := min((wnd+1<<c.rcvScale-1)>>c.rcvScale, 0xffff)
	if wnd = field << c.rcvScale; wnd > offered {
		c.rcvAdv = c.rcvNxt.Add(wnd)
	}
	return uint16(field)
}

// windowUpdateDue reports whether the application has read enough for a window update: two
// segments or half the buffer, and more if the advertised window is still large.
func (c *Conn) windowUpdateDue() bool {
	if c.state < Established || c.gotFin || c.state == TimeWait {
		return false
	}
	offered := int(c.rcvAdv.From(c.rcvNxt))
	grow := min(c.freeReceive(), 0xffff<<c.rcvScale) - offered
	return grow >= min(c.opts.ReceiveBuffer/2, 2*c.rcvMSS()) && (offered < c.opts.ReceiveBuffer/2 || grow >= c.opts.ReceiveBuffer/4)
}

// The calls of an application that receives. None blocks.

// Readable reports whether Read would return something: data, its end or an
// error.
func (c *Conn) Readable() bool {
	return c.recv.bytes > 0 || c.posted > 0 || c.atEnd()
}

// atEnd reports whether no data will follow the queued data.
func (c *Conn) atEnd() bool {
	return c.gotFin || c.readClosed || c.closed || c.state == Closed || c.state == TimeWait
}

// Buffered is how many bytes of data wait to be read.
func (c *Conn) Buffered() int { return c.recv.bytes }

// Read moves data to p. If there is none now, it returns 0 without an error, and when there
// is some the event Readable follows. After the last data it returns the error that ended the
// connection, if neither Read nor Write has returned it yet, and otherwise io.EOF.
func (c *Conn) Read(now Time, p []byte) (int, error) {
	switch {
	case c.recv.head != nil:
		n := c.recv.read(&c.table.pool, p)
		c.hasRead(now)
		return n, nil
	case !c.atEnd():
		c.wantsRead = c.wantsRead || len(p) > 0 // another reader may wait
		return 0, nil
	case c.err != 0 && !c.errTaken && !c.gotFin && !c.readClosed:
		c.errTaken = true // from now on a write is EPIPE and a read the end, as in the kernel
		return 0, c.err
	}
	return 0, io.EOF
}

// hasRead is called after data has been read: buffer and window may grow.
func (c *Conn) hasRead(now Time) {
	if c.quiet {
		c.change()
	}
	if now >= c.growth.nextAt {
		c.growReceive(now)
	}
	// An ACK that is due contains the window anyway. One that waits does not stop a peer which may send
	// two full segments.
	if !c.ackNow && (c.ackAt == Never || c.rcvAdv.From(c.rcvNxt) < uint32(2*c.rcvMSS())) && c.windowUpdateDue() {
		c.ackNow = true
		c.update(now)
	}
}

// Post gives the engine the memory of a reader that waits, and sends corked bytes as Flush
// does. Data in order is copied to p while its checksum is computed. The reader calls Unpost
// after the event Readable, or when it stops waiting. ok is false, and nothing is done, if
// Readable is true already: then Read returns at once.
func (c *Conn) Post(now Time, p []byte) (ok bool) {
	if c.recv.head != nil || c.posted > 0 || c.atEnd() {
		return false
	}
	if c.send.cursor != nil {
		c.Flush(now)
	}
	c.post, c.posted, c.wantsRead = p, 0, true
	return true
}

// Unpost ends Post and returns how many bytes of p were filled. The engine does not use p
// any more. If it returns 0, Read returns the end or the error, if there is one.
func (c *Conn) Unpost(now Time) int {
	n := c.posted
	c.post, c.posted = nil, 0
	if n > 0 {
		c.hasRead(now)
	}
	return n
}

// Loan is received data in the memory in which it was received.
type Loan struct {
	Data  []byte // valid until Return
	block *block
}

// Borrow takes the first piece of data off the queue without a copy. ok is false
// if there is none; Read returns the end or the error, if there is one. [Table.Return] gives
// the piece back, also after the connection has ended.
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

// Return gives borrowed data back. l is empty afterwards. It panics if l is empty.
func (t *Table) Return(l *Loan) {
	if l.block == nil {
		panic("BUG: tcp: data is returned that was not borrowed, or has been returned")
	}
	t.pool.put(l.block)
	*l = Loan{}
}

// CloseRead ends reading. Data that arrives is acknowledged and discarded, as with
// shutdown(2).
func (c *Conn) CloseRead(now Time) {
	if c.readClosed {
		return
	}
	c.readClosed = true
	c.recv.clear(&c.table.pool)
	c.hasRead(now)
	c.notify(Readable)
}
