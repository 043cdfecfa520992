package tcp

import (
	"time"
)

// The tail loss probe (RFC 8985, section 7). Nothing follows the last segments of a
// flight that could tell of their loss. So the first time the retransmission timer runs
// out it sends something new, or the last segment again, and the answer tells; only
// the second time is a timeout. If two full segments are in flight, which no peer
// delays an acknowledgment of, the first time comes after two round trips.

// probeTimeout is RFC 8985's PTO for a flight of two full segments or more. It is not
// less than the least timeout either: on a busy machine a peer may take that long.
func (c *Conn) probeTimeout() time.Duration { return max(2*c.srtt, c.table.cfg.MinRTO) }

// probeSooner starts the timer for a probe, if that is sooner: two full segments are in
// flight.
func (c *Conn) probeSooner(now Time) {
	if at := now.add(c.probeTimeout()); at < c.rtxAt && c.mayProbe() {
		c.rtxAt, c.rtxFor = at, forProbe
	}
}

// mayProbe reports whether a timeout would begin with a probe.
func (c *Conn) mayProbe() bool {
	return c.sack && c.sampled && c.phase == open && c.backoff == 0 && c.board.sacked == 0 &&
		c.state.synchronized() && c.sndNxt == c.sndMax && c.sndNxt != c.sndUna && c.sndWnd > 0
}

// probeExpired is the end of the retransmission timer, the first time.
func (c *Conn) probeExpired(now Time) {
	flight := int(c.sndNxt.From(c.sndUna))
	if flight >= 2*c.mss { // the timer counts from the first of them, a probe from the last
		if at := c.board.at.add(c.probeTimeout()); at > now && c.rtxFor == forProbe {
			c.rtxAt = at
			return
		}
	}
	c.table.counts[LossProbes]++
	c.phase, c.recoverSeq = probing, c.sndNxt
	unsent := c.send.bytes - flight
	if n := min(unsent, c.mss, int(c.sndWnd)-flight); n > 0 {
		c.window = max(c.window, c.pipe()+n)
		c.flushed = true
		c.tailAgain, c.tailDue = false, false
	} else {
		c.tailAgain, c.tailDue = true, true
		// As for a timeout: perhaps it is too early for this peer.
		n, _ := c.tail()
		c.retransmitTS, c.retransmitSeq, c.doubted = c.timestamp(now), c.sndNxt.Back(uint32(n)), flight < 2*c.mss
	}
	c.startRetransmit(now)
}

// tail is how long the last segment is that was sent, and whether it has a FIN.
func (c *Conn) tail() (length int, fin bool) {
	flight := int(c.sndNxt.From(c.sndUna))
	fin = flight > c.send.bytes
	if fin {
		return min(flight, c.mss+1), true
	}
	return min(flight, c.mss), false
}

// planTail is the last segment, once more, unless the peer has told of something by now.
func (c *Conn) planTail() plan {
	n, fin := c.tail()
	if fin {
		n--
	}
	if !c.tailDue || c.phase != probing || c.board.sacked > 0 || n == 0 && !fin || int(c.sndWnd) < int(c.sndNxt.From(c.sndUna)) {
		return plan{}
	}
	return plan{action: sendTail, text: n, fin: fin}
}

// emitTail writes it.
func (c *Conn) emitTail(now Time, h *header, b []byte, n int, fin bool) int {
	c.putOptions(now, h, b)
	n = min(n, c.room(h, b))
	length := n
	if fin {
		length++
	}
	c.tailDue = false
	start := c.sndNxt.Back(uint32(length))
	c.complete()
	board, p := &c.board, &c.table.spans
	at := c.sndUna
	for s := board.head; s != nil; at, s = s.end, s.next {
		switch {
		case at.AtOrAfter(start):
			s.marks, s.at = again, now
		case s.end.After(start):
			board.split(p, s, start)
		}
	}
	return c.writeAgain(now, h, b, start, n, fin)
}

// probeAnswered looks at an ACK after a probe (section 7.4). twice says that it has told
// of something received twice.
func (c *Conn) probeAnswered(now Time, advanced, twice bool) {
	end := c.recoverSeq
	if !c.tailAgain && c.sndNxt.After(end) {
		end = end.Add(1) // something of what was new
	}
	switch {
	case c.sndUna.Before(end):
		return
	case !c.tailAgain, c.tailDue, twice: // the first transmission has arrived
	case c.sndUna.After(end):
		// What was lost, the probe has repaired. It was a loss all the same.
		c.reduce(now, int(c.sndNxt.From(c.sndUna)))
	case advanced:
		return // which of the two was it?
	}
	c.phase, c.tailDue = open, false
	c.window = c.congestion.Window()
}
