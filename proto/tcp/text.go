package tcp

import "github.com/unet-go/unet/proto/tcp/seq"

// Text that is received.
//
// In order, it goes straight to a reader that waits (Post), summed on the way;
// or it stays in the frame it came in, if that is worth a frame; or it is copied
// to the end of the queue. Out of order it is always copied, so that nobody can
// tie the link's frames up with holes.

// mayPlace reports whether the text of s, which nobody has checked yet, may be
// copied to where the reader wants it while its checksum is computed. If it
// turns out not to be acceptable, there is nothing but garbage after posted.
func (c *Conn) mayPlace(s *segment) bool {
	return len(s.text) > 0 && len(s.text) <= len(c.post)-c.posted &&
		s.seq == c.rcvNxt && c.state >= Established && !c.gotFin && c.recv.head == nil &&
		uint32(len(s.text)) <= c.rcvAdv.From(c.rcvNxt)
}

// text is the seventh step: take the text of a segment, which has been cut to
// the window.
func (c *Conn) text(now Time, s *segment) {
	c.noteFin(s)
	if len(s.text) == 0 || c.gotFin || c.state == Closed {
		return
	}
	t := c.table
	if c.hasPeerFin { // nothing follows its FIN
		keep := min(uint32(len(s.text)), c.peerFin.From(seq.Min(s.seq, c.peerFin)))
		t.counts[TextAfterFin] += uint64(uint32(len(s.text)) - keep)
		s.text = s.text[:keep]
		if len(s.text) == 0 {
			c.ackNow = true
			return
		}
	}
	if c.closed {
		// RFC 1122, section 4.2.2.13: nobody will ever read it, and the peer
		// should know.
		t.counts[TextAfterClose]++
		c.abort(0)
		return
	}
	if !c.outOfOrder.empty() {
		c.noteTwice(c.outOfOrder.overlap(s.seq, s.seq.Add(uint32(len(s.text)))))
	}
	if s.seq != c.rcvNxt {
		t.counts[OutOfOrder]++
		c.stat.outOfOrder++
		c.ackNow = true // RFC 5681, section 4.2
		c.outOfOrder.insert(t, c.opts.ReceiveBuffer, s.seq, s.text)
		return
	}
	if q := &c.outOfOrder; !q.empty() {
		// What has come before stays, as in oooQueue.
		if gap := q.first().From(s.seq); gap < uint32(len(s.text)) {
			q.insert(t, c.opts.ReceiveBuffer, q.first(), s.text[gap:])
			s.text = s.text[:gap]
		}
	}
	n := c.deliver(s)
	c.rcvNxt = c.rcvNxt.Add(uint32(n))
	if !c.outOfOrder.empty() {
		n += c.advance()
		c.ackNow = true
	}
	if n < len(s.text) {
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
	c.acknowledgeText(now, n)
	if c.wantsRead || c.posted > 0 {
		c.wantsRead = false
		c.notify(Readable)
	}
}

// deliver takes text that begins at RCV.NXT and returns how many bytes of it
// there was memory for.
func (c *Conn) deliver(s *segment) int {
	t := c.table
	if s.placed {
		t.counts[Placed]++
		c.posted += len(s.text)
		return len(s.text)
	}
	if c.readClosed {
		t.counts[TextDiscarded] += uint64(len(s.text))
		return len(s.text)
	}
	rest := s.text
	if c.posted < len(c.post) && c.recv.head == nil {
		n := copy(c.post[c.posted:], rest)
		c.posted += n
		rest = rest[n:]
		t.counts[Placed]++
		if len(rest) == 0 {
			return len(s.text)
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
		return len(s.text)
	case s.memory == MemoryFrame:
		c.recv.push(t.pool.refer(rest, frameBlock, s.frame))
		t.kept = true
		return len(s.text)
	}
	t.counts[Copied]++
	n := c.recv.write(&t.pool, rest)
	for n < len(rest) && t.reclaim(&c.outOfOrder, c.recv.bytes) {
		n += c.recv.write(&t.pool, rest[n:])
	}
	return len(s.text) - len(rest) + n
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

// receive puts text, which lies in the block b, at the end of the receive queue.
func (c *Conn) receive(b *block, text []byte) int {
	p := &c.table.pool
	n := len(text)
	c.rcvNxt = c.rcvNxt.Add(uint32(n))
	b.data = text
	switch tail := c.recv.tail; {
	case c.readClosed:
		c.table.counts[TextDiscarded] += uint64(n)
		p.put(b)
	case tail != nil && tail.kind == chunkBlock && tail.room() >= n:
		tail.data = append(tail.data, text...)
		c.recv.bytes += n
		p.put(b)
	default:
		c.recv.push(b)
	}
	return n
}
