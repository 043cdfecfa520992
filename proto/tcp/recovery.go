package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Loss recovery. Losses are detected by RACK (below) or, if the peer has no SACK, by
// three duplicate ACKs (RFC 5681, RFC 6582). The scoreboard marks them, and planAgain sends
// them before new data. This file decides how much may be sent meanwhile, when a recovery
// ends, and when it is undone.

// phase is the loss state of a connection.
type phase uint8

const (
	open        phase = iota // nothing is lost
	lossProbing              // a loss probe was sent; until recoverSeq is acknowledged
	recovering               // fast recovery, until recoverSeq is acknowledged
	collapsed                // after a timeout, likewise
)

// recovery is the state of one.
type recovery struct {
	phase      phase
	tailAgain  bool       // the loss probe is the last segment again
	tailDue    bool       // and has not been sent yet
	wasTwice   bool       // the current ACK has a D-SACK
	dupAcks    uint8      // in a row: with SACK, ACKs that SACKed something new
	undoable   bool       // the recovery may still prove needless, and is undone then
	resent     bool       // something has been sent again since it began
	repairing  bool       // the loss was due to the size of the segment: pathmtu.go
	recoverSeq seq.Number // SND.NXT when it began
	undoSeq    seq.Number // SND.UNA when it began
	undoTS     uint32     // our timestamp when something was first sent again
	undoByTS   bool       // that was at SND.UNA: the next ACK that advances it echoes the timestamp of the transmission that arrived
	unproved   int        // bytes that were sent again and that no D-SACK has reported

	forward forward // see rto.go
	early   bool    // an ACK has reported data that was sent before recovery began, and not again

	// Proportional rate reduction (RFC 9937).
	prrDelivered, prrOut, prrFlight int
}

// leaveOpen leaves the phase open for p.
func (c *Conn) leaveOpen(p phase) {
	c.phase = p
	c.recoverSeq, c.undoSeq = c.sndNxt, c.sndUna
	c.undoable, c.resent, c.undoByTS, c.unproved = true, false, false, 0
	c.repairing = false
	c.tailDue = false
	c.forward = notForward
}

// enterRecovery begins fast recovery: a loss has been detected.
func (c *Conn) enterRecovery(now Time) {
	b := &c.board
	flight := int(c.sndNxt.From(c.sndUna))
	c.leaveOpen(recovering)
	c.table.counts[FastRecoveries]++
	c.stat.recoveries++
	c.reduce(now, flight)
	c.prrDelivered, c.prrOut = 0, 0
	c.prrFlight = max(flight-b.sacked+b.delivered, 1)
}

// reduceRate sets the window after an ACK that reports delivered bytes (RFC 9937, section
// 6.2), so that at the end of the recovery the target of congestion control is in flight.
// safe: the ACK has advanced SND.UNA and shown no further loss.
func (c *Conn) reduceRate(delivered int, safe bool) {
	target, pipe := c.congestion.Window(), c.pipe()
	c.prrDelivered += delivered
	n := 0
	if pipe > target {
		n = (c.prrDelivered*target+c.prrFlight-1)/c.prrFlight - c.prrOut
	} else {
		n = max(c.prrDelivered-c.prrOut, delivered)
		if safe {
			n += c.mss
		}
		n = min(n, target-pipe)
	}
	if c.prrOut == 0 { // fast retransmit
		n = max(n, c.mss)
	}
	c.window = pipe + max(n, 0)
}

// recover is called for each ACK during a recovery, and while there are SACKed spans or
// duplicate ACKs, after the scoreboard has been updated. before is SND.UNA before this ACK.
func (c *Conn) recover(now Time, g *segment, before seq.Number) {
	b := &c.board
	advanced := c.sndUna != before
	if g.options.SACKBlocks == 0 {
		c.wasTwice = false
	}
	if advanced {
		c.dupAcks = 0
		switch {
		case !c.undoable:
		case c.phase > lossProbing && !c.resent && b.lost == 0: // all data marked lost has arrived, and nothing was sent again
			c.undo()
		case c.undoByTS && c.timestamps && g.Timestamps && int32(g.TSEcr-c.undoTS) < 0:
			c.undo() // the first transmission has arrived (RFC 3522)
		}
		if c.phase > lossProbing && c.sndUna.AtOrAfter(c.recoverSeq) {
			c.endRecovery()
		}
	}
	if c.forward != notForward {
		c.goForward(advanced)
	}
	if c.phase == lossProbing {
		c.lossProbeAnswered(now, advanced, c.wasTwice)
	}
	c.findLost(now, advanced, b.delivered > 0)
}

// findLost looks for losses and begins or continues the recovery. If more data may be found
// lost later, it arms the timer for that, in place of the retransmission timer, which would
// expire later. look is false if nothing has been delivered: then detectLost is not called.
func (c *Conn) findLost(now Time, advanced, look bool) {
	c.complete()
	b := &c.board
	wait, lostBefore := Time(0), b.lost
	if !c.sack {
		c.detectWithoutSack(advanced)
	} else if look {
		b.merge(&c.table.spans)
		wait = c.detectLost(now)
	}
	if b.lost > lostBefore || b.lost > 0 && c.phase <= lossProbing {
		switch {
		case c.claimLost():
			c.acceptClaim(now)
			c.repair(now)
		case c.mtuProbeLost(now):
		case c.phase <= lossProbing || c.repairing:
			c.enterRecovery(now)
		}
	}
	if c.phase == recovering && !c.repairing {
		c.reduceRate(b.delivered, advanced && b.lost <= lostBefore)
	}
	if wait > 0 {
		c.rtxAt, c.rtxFor = now+wait, forReordering
	} else if c.rtxFor == forReordering && c.rtxAt != Never || c.rtxFor == forLossProbe && !c.mayProbeLoss() && c.rtxAt != Never {
		c.startRetransmit(now)
	}
}

// endRecovery is called when all is acknowledged that was in flight when the recovery began.
func (c *Conn) endRecovery() {
	c.phase, c.forward = open, notForward
	c.dupAcks, c.board.guessed = 0, 0
	if r := &c.rack; r.lasting > 0 {
		if r.lasting--; r.lasting == 0 {
			r.reoWndMult = 1
		}
	}
	c.window = c.congestion.Window()
}

// undo ends a needless recovery, in which nothing was lost, and restores the window (RFC
// 4015; RFC 9438, section 4.9).
func (c *Conn) undo() {
	c.undoable = false
	c.table.counts[RecoveriesUndone]++
	c.congestion.Undo()
	c.reducing, c.cwrDue = false, false
	c.board.lost = 0
	for s := c.board.head; s != nil; s = s.next {
		s.marks &^= lost
	}
	c.rack.reordered = c.rack.reordered || c.phase == recovering
	c.endRecovery()
}

// duplicateAck processes a duplicate ACK of a peer without SACK: the peer has received one
// more segment.
func (c *Conn) duplicateAck() {
	b := &c.board
	c.dupAcks = min(c.dupAcks+1, 250)
	flight := int(c.sndNxt.From(c.sndUna))
	b.guessed = max(0, min(b.guessed+c.mss, flight-b.lost-c.mss))
	b.delivered = c.mss
}

// detectWithoutSack is fast retransmit, and NewReno's partial acknowledgments.
func (c *Conn) detectWithoutSack(advanced bool) {
	b := &c.board
	if advanced { // at most one of the acknowledged segments was missing, the others are in guessed
		known := min(b.guessed, max(0, b.delivered-c.mss))
		b.guessed -= known
		b.delivered -= known
		if c.phase == open {
			b.guessed = 0
		}
	}
	// Right after a recovery, duplicate ACKs may be due to what was sent again (RFC 6582,
	// section 4.1).
	fast := c.phase == open && c.dupAcks >= dupThresh && c.sndUna != c.recoverSeq
	if s := b.head; s != nil && s.marks&lost == 0 && (fast || c.phase == recovering && advanced && !c.repairing) {
		n := c.mss
		if c.path.mtuProbeInFlight(n) && c.path.start == c.sndUna {
			n = c.path.watched
		}
		if at := c.sndUna.Add(uint32(n)); at.Before(s.end) {
			b.split(&c.table.spans, s, at)
		}
		s.marks |= lost
		b.lost += int(s.end.From(c.sndUna))
		b.guessed = min(b.guessed, int(c.sndNxt.From(c.sndUna))-b.lost)
	}
}

// noteSack processes the SACK blocks of an ACK. The first may be a D-SACK, a range that the
// peer has received twice (RFC 2883).
func (c *Conn) noteSack(now Time, g *segment) {
	c.table.counts[SackReceived]++
	c.wasTwice = false
	c.complete()
	for i, k := range g.options.SACK[:g.options.SACKBlocks] {
		l, r := seq.New(k.Left), seq.New(k.Right)
		if !l.Before(r) {
			continue
		}
		if i == 0 && r.AtOrBefore(g.ack) || i == 0 && g.options.SACKBlocks > 1 && within(g.options.SACK[1].Left, k.Left, k.Right, g.options.SACK[1].Right) {
			c.duplicate(l)
			c.twice(l, r)
			continue
		}
		if l.AtOrAfter(c.sndUna) && r.AtOrBefore(c.sndNxt) {
			c.sackSpans(now, g, l, r)
		}
	}
	if c.board.delivered > 0 {
		c.dupAcks = min(c.dupAcks+1, 250)
	}
}

// within reports whether b to c lies within a to d.
func within(a, b, c, d uint32) bool {
	return seq.New(a).AtOrBefore(seq.New(b)) && seq.New(c).AtOrBefore(seq.New(d))
}

// twice processes a D-SACK: the peer has received the range from l to r twice. If it has
// received all retransmitted data twice, nothing was lost.
func (c *Conn) twice(l, r seq.Number) {
	c.table.counts[DuplicateSacks]++
	c.wasTwice = true
	if c.phase == lossProbing && c.tailAgain {
		return // due to the loss probe, not to reordering
	}
	c.sackedTwice()
	if !c.undoable || !c.resent || l.Before(c.undoSeq) || r.After(c.recoverSeq) {
		return
	}
	if c.unproved -= int(r.From(l)); c.unproved <= 0 {
		c.undo()
	}
}

// planAgain plans the next retransmission of lost data.
func (c *Conn) planAgain() plan {
	s, start := c.board.firstLost(c.sndUna)
	at, length := int(start.From(c.sndUna)), int(s.end.From(start))
	fin := at+length > c.send.bytes
	if fin {
		length--
	}
	n := min(length, c.mss)
	if pipe := c.pipe(); pipe > 0 && pipe+n > c.window {
		return plan{}
	}
	if n = min(n, int(c.sndWnd)-at); n < 0 || n == 0 && length > 0 {
		return plan{}
	}
	return plan{action: sendAgain, data: n, fin: fin && n == length}
}

// emitAgain writes the first n lost bytes, and the FIN if fin is set.
func (c *Conn) emitAgain(now Time, h *header, b []byte, n int, fin bool) {
	s, start := c.board.firstLost(c.sndUna)
	length := n
	if fin {
		length++
	}
	if end := start.Add(uint32(length)); end.Before(s.end) {
		c.board.split(&c.table.spans, s, end)
	}
	s.marks, s.at = again, now
	c.board.lost -= length
	if c.board.spans > maxSpans/2 {
		c.board.merge(&c.table.spans)
	}
	c.writeAgain(now, h, b, start, n, fin)
}

// writeAgain writes a segment that has been sent before and begins at start: n bytes of
// data, and perhaps the FIN.
func (c *Conn) writeAgain(now Time, h *header, b []byte, start seq.Number, n int, fin bool) {
	at := int(start.From(c.sndUna))
	h.fields.Seq = start.Uint32()
	h.sum = c.send.copyAt(b[h.len:h.len+n], at, h.sum)
	if n > 0 && at+n == c.send.bytes {
		h.fields.Flags |= wire.TCPPsh
	}
	length := n
	if fin {
		h.fields.Flags |= wire.TCPFin
		length++
	}
	c.table.counts[BytesRetransmitted] += uint64(n)
	c.stat.bytesRetransmitted += uint64(n)
	c.stat.retransmitted++
	c.timing = false // Karn
	c.path.watched = 0
	if c.phase == lossProbing {
		return
	}
	if !c.resent {
		// If start is not SND.UNA, a retransmission of an earlier recovery may cause the next
		// ACK that advances SND.UNA.
		c.resent, c.undoTS, c.undoByTS = true, c.timestamp(now), start == c.sndUna
	}
	c.unproved += length
	c.prrOut += length
	if c.phase == recovering { // RFC 6675, section 6
		c.startRetransmit(now)
	}
}

// Loss detection by time (RACK, RFC 8985): data is lost if it was sent earlier than data
// that has arrived, by more than a round trip plus the reordering window. This holds for
// first transmissions and retransmissions. With three segments SACKed above a hole the
// reordering window is 0, until reordering has been seen (RFC 6675).

const (
	dupThresh = 3
	// reorderPersist is for how many recoveries a raised reoWndMult lasts (RFC 8985,
	// section 6.2, step 4: RACK.reo_wnd_persist).
	reorderPersist = 16
	minRTTWindow   = Time(10 * time.Second)
)

type rack struct {
	at  Time       // of the data that has arrived, when the latest was sent (RACK.xmit_ts)
	end seq.Number // where that data ends (RACK.end_seq)
	rtt Time       // its round trip (RACK.rtt)

	fack      seq.Number // the highest number that has arrived
	reordered bool       // data has arrived out of order

	// A D-SACK shows that the reordering window was too short.
	reoWndMult uint8      // RACK.reo_wnd_mult: the window in quarters of minRTT
	lasting    uint8      // recoveries until reoWndMult is 1 again
	roundEnd   seq.Number // until this is acknowledged further D-SACKs are ignored
	roundKnown bool
}

func sentAfter(at Time, end seq.Number, at2 Time, end2 seq.Number) bool {
	return at > at2 || at == at2 && end.After(end2)
}

// delivered records that the peer has received the part of s from start to end, which the
// segment g is the first to report (RFC 8985, section 6.2, steps 1 to 3).
func (c *Conn) delivered(now Time, g *segment, s *span, start, end seq.Number) {
	b, r := &c.board, &c.rack
	n := int(end.From(start))
	b.delivered += n
	rtt := now - s.at
	c.early = c.early || s.marks&again == 0 && end.AtOrBefore(c.recoverSeq)
	if s.marks != 0 {
		if s.marks&lost != 0 {
			b.lost -= n
		}
		if s.marks&again != 0 {
			// An earlier transmission may have arrived: no round-trip time.
			if rtt < Time(c.minRTT) || c.timestamps && g.Timestamps && int32(g.TSEcr-c.timestamp(s.at)) < 0 {
				return
			}
		}
	}
	if end.Before(r.fack) {
		r.reordered = r.reordered || s.marks&again == 0
	} else {
		r.fack = end
	}
	if sentAfter(s.at, end, r.at, r.end) {
		r.at, r.end, r.rtt = s.at, end, rtt
	}
}

// reorderWindow is RACK.reo_wnd (RFC 8985, section 6.2, step 4).
func (c *Conn) reorderWindow() Time {
	r := &c.rack
	if !r.reordered && (c.phase > lossProbing || c.dupAcks >= dupThresh || c.board.sacked > (dupThresh-1)*c.mss) {
		return 0
	}
	if !c.sampled {
		return r.rtt / 4
	}
	return min(Time(c.minRTT)/4*Time(max(r.reoWndMult, 1)), Time(c.srtt))
}

// sackedTwice widens the reordering window after a D-SACK: the retransmitted data may have
// been late, not lost.
func (c *Conn) sackedTwice() {
	r := &c.rack
	if r.roundKnown && c.sndUna.Before(r.roundEnd) {
		return
	}
	r.roundKnown, r.roundEnd = true, c.sndNxt
	r.reoWndMult = min(max(r.reoWndMult, 1)+1, 250)
	r.lasting = reorderPersist
}

// detectLost marks the data that is lost at now (step 5). It returns after what time more
// data may be lost; 0: none.
func (c *Conn) detectLost(now Time) (wait Time) {
	b, r := &c.board, &c.rack
	window := r.rtt + c.reorderWindow()
	start := c.sndUna
	found := false
	for s := b.head; s != nil; start, s = s.end, s.next {
		if s.marks&(sacked|lost) != 0 || !sentAfter(r.at, r.end, s.at, s.end) || s.marks == again && s.at == r.at {
			continue // sent later, or not known to be earlier
		}
		if left := s.at + window - now; left > 0 {
			wait = max(wait, left)
			continue
		}
		s.marks |= lost
		b.lost += int(s.end.From(start))
		found = true
	}
	if found {
		b.merge(&c.table.spans)
	}
	return wait
}
