package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// When text is acknowledged.
//
// By default at once: the segment is ready to be emitted when Process returns,
// and it carries whatever the application has written before it is. A driver
// that lets the application run before it emits thus gets replies and
// acknowledgments in one segment.
//
// With Options.AdaptiveAck an acknowledgment may wait Options.AckDelay: where the
// application has answered at once three times in a row, for its next answer to
// ride on; and in a stream of full segments, for the second of two (RFC 9293,
// section 3.8.6.3). Whenever the wait was in vain, it is at once again.

// answersForInteractive is how many answers make a connection interactive.
const answersForInteractive = 3

// acknowledgeText is called when n bytes of text have been taken in order.
func (c *Conn) acknowledgeText(now Time, n int) {
	c.textAt = now
	c.ackPending += uint32(n)
	full := c.rcvMSS()
	if c.timestamps {
		full -= wire.TCPTimestampsLen
	}
	switch {
	case !c.opts.AdaptiveAck,
		int(c.ackPending) >= 2*full,
		!c.outOfOrder.empty(), // RFC 5681, section 4.2
		n < full && c.interactive < answersForInteractive:
		c.ackNow = true
	case c.ackAt == Never:
		c.ackAt = now.add(c.opts.AckDelay)
	}
}

// answered notes that the application has written, perhaps in answer to text.
func (c *Conn) answered(now Time) {
	if c.textAt != 0 && now-c.textAt <= Time(c.opts.AckDelay) && c.interactive < answersForInteractive {
		c.interactive++
	}
	c.textAt = 0
}

// ackExpired is the end of the wait for something to ride on.
func (c *Conn) ackExpired() {
	c.ackAt = Never
	c.interactive = 0
	c.ackNow = true
}

// noteTwice notes that text has come twice, for the next ACK to tell (D-SACK, RFC 2883,
// section 4): of a segment the first part of which that is so, and of several segments
// that one ACK answers the first, with what follows it without a hole.
func (c *Conn) noteTwice(at, end seq.Number) {
	if !c.sack || at == end {
		return
	}
	if c.again != (wire.SACKBlock{}) {
		left, right := seq.New(c.again.Left), seq.New(c.again.Right)
		if at.After(right) || end.Before(left) {
			return
		}
		at, end = seq.Min(left, at), seq.Max(right, end)
	}
	c.again = wire.SACKBlock{Left: at.Uint32(), Right: end.Uint32()}
}

// acked is called when a segment that acknowledges RCV.NXT has been written.
func (c *Conn) acked() {
	c.ackNow, c.ackPending, c.ackAt = false, 0, Never
	c.lastAckSent = c.rcvNxt
}

// acknowledged takes in an acknowledgment of something new: SND.UNA < SEG.ACK =<
// SND.NXT.
func (c *Conn) acknowledged(now Time, s *segment) {
	t := c.table
	n := s.ack.From(c.sndUna)
	inFlight := c.sndMax.From(c.sndUna)
	if !c.state.synchronized() {
		n-- // our SYN
	}
	if int(n) > c.send.bytes {
		n-- // our FIN
		c.finAcked = true
		c.notify(Drained)
	}
	if c.board.head == nil {
		c.rack.inOrder(now, c.board.at, s.ack)
	} else {
		c.acknowledgeSpans(now, s, s.ack)
	}
	c.sndUna = s.ack
	if c.sndNxt.Before(c.sndUna) {
		c.sndNxt = c.sndUna
	}
	timing := c.timing
	if c.measure(now, s) || !c.state.synchronized() {
		c.backoff = 0
	}
	if n > 0 {
		returned := c.send.returned
		c.send.acknowledge(&t.pool, int(n))
		c.stat.bytesOut += uint64(n)
		if c.send.returned != returned {
			c.notify(Returned)
		}
		if c.phase != recovering && !(c.ecn && s.has(wire.TCPEce)) {
			c.congestion.Acked(now, Acked{int(n), int(inFlight), time.Duration(c.rack.rtt), timing && !c.timing})
			c.window = c.congestion.Window()
		}
		if c.wantsWrite {
			c.growSend()
			c.tellWriter()
		}
	}
	if p := &c.path; p.watched|p.claim != 0 || now >= p.searchAt {
		c.pathAcked(now)
	}
	c.progressAt = now
	// RFC 6298, sections 5.2 and 5.3.
	if c.rtxAt = Never; c.sndUna != c.sndMax {
		c.startRetransmit(now)
	}
	if c.persisting {
		c.stopPersist(now)
	}
}
