package tcp

import (
	"io"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Data that is received.
//
// In order, it goes straight to a reader that waits (Post), summed on the way;
// or it stays in the frame it came in, if that is worth a frame; or it is copied
// to the end of the queue. Out of order it is always copied, so that a peer cannot
// hold the link's frames with data that has holes.

// mayPlace reports whether the data of s may be copied to the reader's memory while its
// checksum is computed. If the segment is then found to be bad, the bytes after posted are
// invalid.
func (c *Conn) mayPlace(s *segment) bool {
	return len(s.data) > 0 && len(s.data) <= len(c.post)-c.posted &&
		s.seq == c.rcvNxt && c.state >= Established && !c.gotFin && c.recv.head == nil &&
		uint32(len(s.data)) <= c.rcvAdv.From(c.rcvNxt)
}

// data is the sixth and the seventh step: it takes the data of a segment, which has been
// cut to the window. Urgent data is delivered in line (RFC 6093), and where it ends is not
// reported.
func (c *Conn) data(now Time, s *segment) {
	if s.has(wire.TCPUrg) {
		c.table.counts[UrgentPointers]++
	}
	// The end of the data is stored before any is taken: data out of order that lies behind
	// it must not be taken.
	if s.has(wire.TCPFin) && !c.hasPeerFin {
		c.hasPeerFin = true
		c.peerFin = s.seq.Add(uint32(len(s.data)))
	}
	if len(s.data) == 0 || c.gotFin || c.state == Closed {
		return
	}
	t := c.table
	if c.hasPeerFin { // nothing follows its FIN
		keep := min(uint32(len(s.data)), c.peerFin.From(seq.Min(s.seq, c.peerFin)))
		t.counts[DataAfterFin] += uint64(uint32(len(s.data)) - keep)
		s.data = s.data[:keep]
		if len(s.data) == 0 {
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
	if !c.outOfOrder.empty() {
		c.noteTwice(c.outOfOrder.overlap(s.seq, s.seq.Add(uint32(len(s.data)))))
	}
	if s.seq != c.rcvNxt {
		t.counts[OutOfOrder]++
		c.stat.outOfOrder++
		c.ackNow = true // RFC 5681, section 4.2
		c.outOfOrder.insert(t, c.opts.ReceiveBuffer, s.seq, s.data)
		return
	}
	if q := &c.outOfOrder; !q.empty() {
		// Data that has arrived before stays, as in oooQueue.
		if gap := q.first().From(s.seq); gap < uint32(len(s.data)) {
			q.insert(t, c.opts.ReceiveBuffer, q.first(), s.data[gap:])
			s.data = s.data[:gap]
		}
	}
	n := c.deliver(s)
	c.rcvNxt = c.rcvNxt.Add(uint32(n))
	if !c.outOfOrder.empty() {
		n += c.advance()
		c.ackNow = true
	}
	if n < len(s.data) {
		t.counts[NoMemory]++
	}
	if n == 0 {
		return
	}
	if g := &c.growth; c.opts.growReceive && (s.tsEcr != g.echoed || c.rcvNxt.After(g.until)) {
		c.measureRound(now, s)
	}
	t.counts[BytesReceived] += uint64(n)
	c.stat.bytesIn += uint64(n)
	c.acknowledgeData(now, n)
	if c.wantsRead || c.posted > 0 {
		c.wantsRead = false
		c.notify(Readable)
	}
}

// deliver takes data that begins at RCV.NXT and returns how many bytes of it
// there was memory for.
func (c *Conn) deliver(s *segment) int {
	t := c.table
	if s.placed {
		t.counts[Placed]++
		c.posted += len(s.data)
		return len(s.data)
	}
	if c.readClosed {
		t.counts[DataDiscarded] += uint64(len(s.data))
		return len(s.data)
	}
	rest := s.data
	if c.posted < len(c.post) && c.recv.head == nil {
		n := copy(c.post[c.posted:], rest)
		c.posted += n
		rest = rest[n:]
		t.counts[Placed]++
		if len(rest) == 0 {
			return len(s.data)
		}
	}
	held := c.recv.bytes
	switch {
	case len(rest) < t.cfg.InPlace:
	case s.memory == MemoryHeap && cap(rest) <= 2*len(rest) && t.pool.take(cap(rest), held):
		cost := cap(rest)
		b := t.pool.refer(rest, heapBlock, 0)
		b.cost = cost
		c.recv.push(b)
		return len(s.data)
	case s.memory == MemoryFrame:
		c.recv.push(t.pool.refer(rest, frameBlock, s.frame))
		t.kept = true
		return len(s.data)
	}
	t.counts[Copied]++
	n := c.recv.write(&t.pool, rest)
	for n < len(rest) && t.reclaim(&c.outOfOrder, c.recv.bytes) {
		n += c.recv.write(&t.pool, rest[n:])
	}
	return len(s.data) - len(rest) + n
}

// advance moves to the receive queue what lies at RCV.NXT out of order, and
// returns how many bytes that were.
func (c *Conn) advance() (n int) {
	q := &c.outOfOrder
	for !q.empty() && q.first().AtOrBefore(c.rcvNxt) {
		r := q.pop(c.table)
		at := r.left
		for b := r.head; b != nil; {
			next, end := b.next, at.Add(uint32(len(b.data)))
			b.next = nil
			if c.hasPeerFin { // nothing follows it
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

// receive puts data, which lies in the block b, at the end of the receive queue.
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
// reads in a round trip is what the path delivers in one. The window must be twice that,
// or it would limit the sender, and four times while that doubles. A slow reader reads
// little, so its buffer does not grow. The send buffer grows to twice what may be in
// flight, if a writer waits for room.
//
// Where a round trip takes less than growRound, no buffer grows beyond DefaultBuffer, which
// is more than any such path holds.

const (
	// What the buffers begin with.
	initialSendBuffer    = 256 << 10
	initialReceiveBuffer = 128 << 10
	// growRound is the least time over which reads are measured: the unit of timestamps.
	growRound = Time(time.Millisecond)
)

// growth is the state of the growth of the receive buffer.
type growth struct {
	rtt, lastRTT Time       // least round trip of this period and the last; 0: not known
	period       Time       // when this began
	until        seq.Number // the right edge of the window at askedAt
	askedAt      Time
	echoed       uint32 // the last of our timestamps that the peer has echoed
	nextAt       Time   // when growReceive is due
	readAt       Time   // when growReceive last ran, and what had been read then
	read         seq.Number
	most         int // bytes read in a round trip
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
	if c.timestamps && s.tsEcr != g.echoed {
		g.echoed = s.tsEcr
		if ms := int32(c.timestamp(now) - s.tsEcr); ms >= 0 {
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
	rtt := or(g.rtt, g.lastRTT)
	if g.lastRTT != 0 && g.lastRTT < rtt {
		rtt = g.lastRTT
	}
	return max(or(rtt, Time(c.minRTT)), growRound)
}

// growReceive enlarges the receive buffer if more was read in a round trip than ever.
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

// grown is the new size of a buffer that should be at least want: size, if there is no
// memory.
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
// pressure it is no more than there is room for in any case.
func (c *Conn) freeReceive() int {
	size := c.opts.ReceiveBuffer
	if c.table.pool.pressed() {
		size = min(size, max(guaranteed, 4*c.rcvMSS()))
	}
	return max(0, size-c.recv.bytes)
}

// windowField advertises the window: it moves the right edge and returns what
// the header says. It never takes back what has been advertised (RFC 9293, section
// 3.8.6), and the window grows only by what is worth sending (section 3.8.6.2.2).
func (c *Conn) windowField() uint16 {
	wnd := c.rcvAdv.From(c.rcvNxt)
	if free := c.freeReceive(); free >= int(wnd)+min(c.opts.ReceiveBuffer/2, c.rcvMSS()) {
		wnd = uint32(free)
	}
	// A window that is not a multiple of the scale is rounded up, or the edge
	// would move left (RFC 7323, section 2.4).
	field := min((wnd+1<<c.rcvScale-1)>>c.rcvScale, 0xffff)
	if edge := c.rcvNxt.Add(field << c.rcvScale); edge.After(c.rcvAdv) {
		c.rcvAdv = edge
	}
	return uint16(field)
}

// windowUpdateDue reports whether the application has read enough to make a
// window update worth it.
func (c *Conn) windowUpdateDue() bool {
	if !c.state.synchronized() || c.gotFin || c.state == TimeWait {
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

// atEnd reports whether no more data will come than is queued.
func (c *Conn) atEnd() bool {
	return c.gotFin || c.readClosed || c.closed || c.state == Closed || c.state == TimeWait
}

// Buffered is how many bytes of data wait to be read.
func (c *Conn) Buffered() int { return c.recv.bytes }

// Read moves data to p. If there is none now it returns 0 without an error, and the event
// Readable follows. After the last data it returns io.EOF, or the error that ended the
// connection.
func (c *Conn) Read(now Time, p []byte) (int, error) {
	switch {
	case c.recv.head != nil:
		n := c.recv.read(&c.table.pool, p)
		c.hasRead(now)
		return n, nil
	case !c.atEnd():
		c.wantsRead = c.wantsRead || len(p) > 0 // another reader may wait
		return 0, nil
	case c.err != 0 && !c.gotFin && !c.readClosed:
		c.errTaken = true // a write is EPIPE from now on, as in the kernel
		return 0, c.err
	}
	return 0, io.EOF
}

// hasRead is called after the receive queue has become shorter.
func (c *Conn) hasRead(now Time) {
	if now >= c.growth.nextAt {
		c.growReceive(now)
	}
	if !c.ackNow && c.windowUpdateDue() { // an ACK that is due contains the window anyway
		c.ackNow = true
		c.update(now)
	}
}

// Post gives the engine the memory of a reader that waits. Data in order is copied there
// while its checksum is computed. The reader calls Unpost after the event Readable, or
// when it stops waiting. ok is false if there is something to read already.
func (c *Conn) Post(p []byte) (ok bool) {
	if c.Readable() {
		return false
	}
	c.post, c.posted, c.wantsRead = p, 0, true
	return true
}

// Unpost ends Post and returns how many bytes of p were filled. p is the caller's again.
// If it is 0, Read has the reason.
func (c *Conn) Unpost(now Time) int {
	n := c.posted
	c.post, c.posted = nil, 0
	if n > 0 {
		c.hasRead(now)
	}
	return n
}

// Loan is data in the memory it came in.
type Loan struct {
	Data  []byte // the borrower's until Return
	block *block
}

// Borrow takes the first piece of data off the queue without a copy. ok is false
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
