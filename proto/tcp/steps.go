package tcp

import (
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// The steps of RFC 9293, section 3.10.7.4.

// The limit of ACKs that answer invalid segments (RFC 5961, section 7). Each connection
// has its own limit: by a shared one an attacker could detect activity of other connections.
const (
	challengeBurst    = 10
	challengeInterval = 100 * time.Millisecond // after which one more is allowed
)

// maxTimestampAge is how long the peer's last timestamp can be compared with the next one
// (RFC 7323, section 5.5).
const maxTimestampAge = Time(24 * 24 * time.Hour)

// challenges is a token bucket for challenge ACKs.
type challenges struct {
	at     Time // when a token was last added
	tokens uint8
}

func newChallenges(now Time) challenges { return challenges{now, challengeBurst} }

// take reports whether a challenge ACK may be sent now, and counts it as sent or not sent.
func (l *challenges) take(t *Table, now Time) bool {
	if back := int((now - l.at) / Time(challengeInterval)); back > 0 {
		l.tokens = uint8(min(int(l.tokens)+min(back, challengeBurst), challengeBurst))
		l.at += Time(back) * Time(challengeInterval)
	}
	if l.tokens == 0 {
		t.counts[AcksLimited]++
		return false
	}
	l.tokens--
	t.counts[ChallengeAcks]++
	return true
}

// acceptable is the first step: the sequence number, and before it the timestamp
// (RFC 7323, section 5.3). A segment that passes is cut to the window.
func (c *Conn) acceptable(now Time, s *segment) bool {
	t := c.table
	wnd := c.rcvAdv.From(c.rcvNxt)
	if s.has(wire.TCPRst) {
		// SEG.SEQ alone decides; the length of data in a RST is ignored.
		if s.seq != c.rcvNxt && !s.seq.InWindow(c.rcvNxt, wnd) {
			t.counts[ResetsIgnored]++
			return false
		}
		return true
	}
	if c.timestamps && !s.Timestamps {
		// RFC 7323, section 3.2, would drop it. But some peers send keepalives without, and some
		// middleboxes remove the option: as in Linux it is taken, without PAWS.
		t.counts[NoTimestamp]++
	} else if c.timestamps && int32(s.TSVal-c.tsRecent) < 0 && now-c.tsRecentAt <= maxTimestampAge {
		t.counts[PawsDropped]++
		c.challengeUnlessData(now, s)
		return false
	}
	ok := false
	switch n := s.length(); {
	case wnd == 0:
		// A closed window takes no data, but the rest of the segment is processed.
		ok = s.seq == c.rcvNxt
	case n == 0:
		ok = s.seq.InWindow(c.rcvNxt, wnd)
	default:
		ok = s.seq.InWindow(c.rcvNxt, wnd) || s.end().Back(1).InWindow(c.rcvNxt, wnd)
	}
	if !ok {
		t.counts[OutOfWindow]++
		if end := s.end(); !s.has(wire.TCPSyn) && end.AtOrBefore(c.rcvNxt) {
			c.noteTwice(s.seq, end)
		}
		c.challengeUnlessData(now, s)
		return false
	}
	s.echo = c.timestamps && s.Timestamps && s.seq.AtOrBefore(c.lastAckSent)
	if !s.has(wire.TCPSyn) {
		c.trim(s)
	}
	return true
}

// noteTimestamp stores the timestamp of a segment, which is echoed from then on (RFC 7323,
// section 4.3). The acknowledgment must have been found valid: otherwise an attacker who
// has guessed a number in the window could make all later segments of the peer look old.
func (c *Conn) noteTimestamp(now Time, s *segment) {
	if s.echo {
		c.tsRecent, c.tsRecentAt = s.TSVal, now
	}
}

// challengeUnlessData answers an invalid segment with an ACK. Data, or a FIN, may be a
// retransmission because our ACK was lost: it is always answered, and the answer cannot
// cause another. If both ends answered each other's bare ACKs they would never stop, so
// these answers are limited.
func (c *Conn) challengeUnlessData(now Time, s *segment) {
	if s.length() > 0 && !s.has(wire.TCPSyn) {
		c.ackNow = true
		return
	}
	c.challenge(now)
}

// challenge sends an ACK. A peer that does not have the connection answers it with a RST
// of the right sequence number (RFC 5961).
func (c *Conn) challenge(now Time) {
	c.ackNow = c.challenges.take(c.table, now) || c.ackNow
}

// reset is the second step: only a RST with exactly the next sequence number ends the
// connection, and any other is answered with a challenge (RFC 5961, section 3.2).
func (c *Conn) reset(now Time, s *segment, err syscall.Errno) {
	if s.seq != c.rcvNxt {
		c.table.counts[ResetsIgnored]++
		c.challenge(now)
		return
	}
	c.table.counts[ResetsReceived]++
	c.fail(err)
}

// trim cuts a segment to the window: on the left the part received before, on the right the
// part beyond the window, FIN included. Such a segment is acknowledged if it passes the fifth
// step.
func (c *Conn) trim(s *segment) {
	if s.seq.Before(c.rcvNxt) {
		dup := c.rcvNxt.From(s.seq)
		cut := min(dup, uint32(len(s.Payload)))
		c.table.counts[DuplicateBytes] += uint64(cut)
		c.noteTwice(s.seq, s.seq.Add(cut))
		s.Payload = s.Payload[cut:]
		if cut < dup {
			s.Flags &^= wire.TCPFin
		}
		s.seq = c.rcvNxt
		s.placed = false
		s.trimmed = true
	}
	if s.length() == 0 {
		return
	}
	room := c.rcvAdv.From(c.rcvNxt)
	at := s.seq.From(c.rcvNxt)
	if at+uint32(len(s.Payload)) > room {
		keep := room - min(at, room)
		c.table.counts[BeyondWindow] += uint64(uint32(len(s.Payload)) - keep)
		s.Payload = s.Payload[:keep]
		s.Flags &^= wire.TCPFin
		s.placed = false
		s.trimmed = true
	} else if s.has(wire.TCPFin) && at+uint32(len(s.Payload)) == room {
		c.table.counts[BeyondWindow]++
		s.Flags &^= wire.TCPFin
		s.trimmed = true
	}
}

// checkAck is the fifth step in the synchronized states. It reports whether the
// segment goes on to the sixth.
func (c *Conn) checkAck(now Time, s *segment) bool {
	t := c.table
	if !s.has(wire.TCPAck) {
		t.counts[NoAck]++
		return false
	}
	if s.ack.After(c.sndMax) {
		t.counts[AckUnsent]++
		c.challenge(now)
		return false
	}
	if s.ack.Before(c.sndUna.Back(c.maxSndWnd)) { // RFC 5961, section 5.2
		t.counts[AckTooOld]++
		c.challenge(now)
		return false
	}
	c.noteTimestamp(now, s)
	if s.trimmed {
		c.ackNow = true
	}
	if c.ecn {
		c.noteECN(now, s)
	}
	before := c.sndUna
	c.board.delivered = 0
	if s.ack.After(c.sndUna) {
		c.acknowledged(now, s)
	} else if s.ack == c.sndUna && len(s.Payload) == 0 && c.sndUna != c.sndMax && uint32(s.Window)<<c.sndScale == c.sndWnd {
		t.counts[DuplicateAcks]++ // RFC 5681, section 2, but for the FIN
		c.stat.duplicateAcks++
		if !c.sack {
			c.duplicateAck()
		}
	}
	if s.options.SACKBlocks > 0 && c.sack {
		c.noteSack(now, s)
	}
	// A segment that advances SND.UNA has the peer's latest window, even if its sequence
	// number is older than SND.WL1. The old window at the new SND.UNA would end beyond every
	// right edge that the peer has advertised.
	if s.ack.After(before) || s.ack == c.sndUna && (c.sndWL1.Before(s.seq) || c.sndWL1 == s.seq && c.sndWL2.AtOrBefore(s.ack)) {
		c.setSendWindow(now, s)
	}
	if c.board.sacked > 0 || c.dupAcks > 0 || c.phase != open {
		c.recover(now, s, before)
	}
	return true
}

// setSendWindow takes over the window that the peer advertises.
func (c *Conn) setSendWindow(now Time, s *segment) {
	wnd := uint32(s.Window) << c.sndScale
	if c.persisting {
		if !c.closed { // otherwise a peer could keep a closed connection without limit
			c.progressAt = now // the peer answers our window probes
		}
		if wnd > 0 {
			c.stopPersist(now)
		}
	}
	c.sndWnd = wnd
	c.maxSndWnd = max(c.maxSndWnd, wnd)
	c.sndWL1, c.sndWL2 = s.seq, s.ack
}

// fin is the eighth step. A FIN is processed when all data before it has been received.
func (c *Conn) fin(now Time, s *segment) {
	if c.state == Closed {
		return
	}
	if !c.hasPeerFin || c.rcvNxt != c.peerFin || c.gotFin {
		if s.has(wire.TCPFin) && len(s.Payload) == 0 {
			c.table.counts[OutOfOrder]++
			c.stat.outOfOrder++
			c.ackNow = true // as for data, RFC 5681, section 4.2
		}
		return
	}
	c.gotFin = true
	c.rcvNxt = c.rcvNxt.Add(1)
	c.rcvAdv = seq.Max(c.rcvAdv, c.rcvNxt)
	c.outOfOrder.clear(c.table)
	c.notify(Readable)
	if c.state == Established && c.opts.AdaptiveAck && c.interactive == answersForInteractive && !c.ackInVain {
		c.ackSoon(now) // until the application's FIN
	} else {
		c.ackNow = true
	}
	switch c.state {
	case Established:
		c.state = CloseWait
	case FinWait1: // our FIN is not acknowledged, otherwise the state would be FIN-WAIT-2
		c.state = Closing
	case FinWait2:
		c.enterTimeWait(now)
	}
}

// When data is acknowledged.
//
// By default at once: an ACK is ready to be emitted when Process returns. Data that the
// application writes before the driver emits is in the same segment.
//
// With Options.AdaptiveAck an acknowledgment may wait: for the application's answer, if the connection is
// interactive, and in a stream of full segments for the second of two (RFC 9293, section 3.8.6.3). A
// connection is interactive at first. When an acknowledgment has waited in vain, and the peer sends more
// before there is an answer, the connection is not interactive until there were three answers: the
// peer may have waited for the acknowledgment (RFC 896).
//
// In an interactive connection an acknowledgment waits for Options.AckDelay plus the smoothed time of
// recent waits: a server with many connections answers each after milliseconds. Peers with our
// timeouts do not retransmit meanwhile. Their retransmission timeout is at least DefaultMinRTO
// plus the smoothed round trip, which contains what our acknowledgments have waited.

const (
	// answersForInteractive is how many answers make a connection interactive.
	answersForInteractive = 3
	// mostAckDelay is the longest that an acknowledgment waits for an answer, if Options.AckDelay is less.
	// With more than 10 ms peers would take the path for a long one ([DefaultTimeWaitFar]).
	mostAckDelay = Time(8 * time.Millisecond)
	// mostUnacked is how many segments may wait for their acknowledgment. Peers that count segments, such as
	// Linux, have a window of ten at first.
	mostUnacked = 8
)

// answered is called when the application answers data that was received d ago. A late answer counts
// against an earlier one.
func (c *Conn) answered(d Time) {
	c.dataAt, c.ackInVain = 0, false
	switch late := d > max(mostAckDelay, Time(c.opts.AckDelay)); {
	case late && c.interactive > 0:
		c.interactive--
	case !late && c.interactive < answersForInteractive:
		c.interactive++
	}
}

// delayAck is called when n bytes of data have been queued in order: it delays their
// acknowledgment, or requests it.
func (c *Conn) delayAck(now Time, n int) {
	if c.ackPending == 0 {
		c.pendingAt, c.unacked = now, 0
	}
	c.ackPending += uint32(n)
	c.unacked++
	if c.ackInVain {
		c.interactive, c.ackInVain = 0, false
	}
	full := c.rcvMSS()
	if c.timestamps {
		full -= wire.TCPTimestampsLen
	}
	switch {
	case int(c.ackPending) >= 2*full,
		c.unacked >= mostUnacked,
		len(c.outOfOrder.runs) > 0, // RFC 5681, section 4.2
		n < full && c.interactive < answersForInteractive:
		c.ackNow = true
	default:
		c.ackSoon(now)
	}
}

// ackSoon lets an acknowledgment wait.
func (c *Conn) ackSoon(now Time) {
	if c.ackAt != Never {
		return
	}
	delay := Time(c.opts.AckDelay)
	if c.interactive == answersForInteractive {
		delay = max(min(delay+c.ackWaited, mostAckDelay), delay)
	}
	c.ackAt = now + delay
}

// noteTwice records data that has arrived twice, which the next ACK reports (D-SACK, RFC
// 2883, section 4). An ACK reports only one range: the first, extended by ranges that touch
// or overlap it.
func (c *Conn) noteTwice(at, end seq.Number) {
	if !c.sack || at == end {
		return
	}
	if c.dsack != (wire.SACKBlock{}) {
		left, right := seq.New(c.dsack.Left), seq.New(c.dsack.Right)
		if at.After(right) || end.Before(left) {
			return
		}
		at, end = seq.Min(left, at), seq.Max(right, end)
	}
	c.dsack = wire.SACKBlock{Left: at.Uint32(), Right: end.Uint32()}
}

// acknowledged processes an ACK that advances SND.UNA: SND.UNA < SEG.ACK =< sndMax.
func (c *Conn) acknowledged(now Time, s *segment) {
	t := c.table
	n := s.ack.From(c.sndUna)
	inFlight := c.sndMax.From(c.sndUna)
	if c.state < Established {
		n-- // our SYN
	}
	if int(n) > c.send.bytes {
		n-- // our FIN
		c.finAcked = true
		c.notify(Drained)
	}
	from := c.sndUna
	if c.board.head != nil {
		from = c.acknowledgeSpans(now, s, s.ack)
	}
	if b, r := &c.board, &c.rack; from != s.ack {
		// All data has arrived, of which the last, without a span, was sent at b.at.
		b.delivered += int(s.ack.From(from))
		if r.fack = s.ack; b.at >= r.at {
			r.at, r.end, r.rtt = b.at, s.ack, now-b.at
		}
	}
	c.sndUna = s.ack
	if c.board.head == nil {
		c.board.end = s.ack
	}
	if c.sndNxt.Before(c.sndUna) {
		c.sndNxt = c.sndUna
	}
	round := c.timing && !s.ack.Before(c.timedSeq)
	if round {
		c.timing, c.backoff = false, 0
		c.sample(now, time.Duration(now-c.timedAt))
	} else if c.measure(now, s) || c.state < Established {
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
			c.window = c.congestion.Acked(now, Acked{int(n), int(inFlight), time.Duration(c.rack.rtt), round})
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
