package tcp

import (
	"cmp"
	"syscall"

	"github.com/unet-go/unet/wire"
)

// The states that a connection of the table can be in. The functions follow RFC 9293,
// section 3.10.7.3 for SYN-SENT and section 3.10.7.4 for the others, in the order of
// its steps; most steps are in steps.go.
// There is no third step: security labels are not supported.

// synSent is the state SYN-SENT (section 3.10.7.3).
func (c *Conn) synSent(now Time, s *segment) {
	t := c.table
	// First, check the ACK bit.
	if s.has(wire.TCPAck) && (s.ack.AtOrBefore(c.iss) || s.ack.After(c.sndMax)) {
		t.counts[AckUnsent]++
		t.refuse(s)
		if c.synRetries == 0 && !s.has(wire.TCPRst) {
			// The peer has an old connection, which our RST ends (RFC 9293, figure 9).
			// The SYN is sent again sooner than its timer, as in Linux; but only once.
			c.rtxAt = min(c.rtxAt, now.add(cmp.Or(t.cfg.MinRTO, DefaultMinRTO)))
		}
		return
	}
	// Second, check the RST bit. A RST without an ACK may be forged.
	if s.has(wire.TCPRst) {
		if !s.has(wire.TCPAck) {
			t.counts[ResetsIgnored]++
			return
		}
		t.counts[ResetsReceived]++
		c.fail(syscall.ECONNREFUSED)
		return
	}
	// Fourth, check the SYN bit.
	if !s.has(wire.TCPSyn) {
		t.counts[NoSyn]++
		return // fifth: neither SYN nor RST, drop
	}
	c.heardAt = now
	c.agree(now, s)
	if !s.has(wire.TCPAck) {
		// Simultaneous open: both SYNs are under way (figure 7).
		c.state = SynReceived
		c.sndNxt = c.iss // to be sent again, now with an ACK
		c.timing = false
		return
	}
	c.acknowledged(now, s)
	c.becomeEstablished(now)
	c.ackNow = true
	// Other controls and data are looked at from the sixth step on.
	s.seq = c.rcvNxt
	s.Flags &^= wire.TCPSyn
	c.trim(s)
	c.data(now, s)
	c.fin(now, s)
}

// synReceived is the state SYN-RECEIVED.
func (c *Conn) synReceived(now Time, s *segment) {
	t := c.table
	// A repeated SYN is answered with our SYN,ACK. RFC 9293 answers with an ACK, since it is
	// left of the window, and sends the SYN,ACK when the timer expires. Our answer echoes the
	// timestamp of the later SYN, or the peer would measure its own timeout as a round trip.
	if s.Flags&(wire.TCPSyn|wire.TCPRst|wire.TCPAck) == wire.TCPSyn && s.seq == c.irs {
		c.sndNxt = c.iss
		c.timing = false
		if c.timestamps && s.Timestamps && int32(s.TSVal-c.tsRecent) > 0 {
			c.tsRecent, c.tsRecentAt = s.TSVal, now
		}
		c.agreeECN(s) // the repeated SYN may not request ECN
		return
	}
	// After a simultaneous open the peer's SYN,ACK (figure 7, line 6) is left of the window
	// too. Its ACK completes the handshake.
	if s.Flags&(wire.TCPSyn|wire.TCPRst|wire.TCPAck) == wire.TCPSyn|wire.TCPAck && s.seq == c.irs && !c.passive {
		s.Flags &^= wire.TCPSyn
		s.seq = c.rcvNxt
		s.Window >>= c.sndScale // a SYN's window is never scaled
	}
	if !c.acceptable(now, s) { // first
		return
	}
	// Second, check the RST bit: a connection from LISTEN is removed; one that we opened
	// ends with ECONNREFUSED.
	if s.has(wire.TCPRst) {
		c.reset(now, s, syscall.ECONNREFUSED)
		return
	}
	// Fourth, check the SYN bit.
	if s.has(wire.TCPSyn) {
		t.counts[SynInWindow]++
		if c.passive {
			c.fail(syscall.ECONNRESET)
			return
		}
		c.challenge(now)
		return
	}
	// Fifth, check the ACK field.
	if !s.has(wire.TCPAck) {
		t.counts[NoAck]++
		return
	}
	if s.ack.AtOrBefore(c.sndUna) || s.ack.After(c.sndMax) {
		t.counts[AckUnsent]++
		t.refuse(s)
		return
	}
	if l := c.listener; l != nil && l.full() {
		// This ACK is dropped: the timer sends our SYN,ACK again, and the peer another ACK.
		t.counts[AcceptOverflows]++
		return
	}
	c.heardAt = now
	c.noteTimestamp(now, s)
	c.ackNow = c.ackNow || s.trimmed
	c.acknowledged(now, s)
	c.setSendWindow(now, s)
	c.becomeEstablished(now)
	if c.ecn {
		c.noteECN(now, s)
	}
	c.data(now, s)
	c.fin(now, s)
}

// expects is header prediction (Van Jacobson, 1990): it reports whether s, in ESTABLISHED, has
// the next data or acknowledges more, and nothing else about it or the connection needs the
// steps of synchronized. Then inOrder processes it.
func (c *Conn) expects(s *segment) bool {
	return c.state == Established && s.Flags&^wire.TCPPsh == wire.TCPAck &&
		s.seq == c.rcvNxt && uint32(len(s.Payload)) <= c.rcvAdv.From(c.rcvNxt) &&
		s.ack.From(c.sndUna) <= c.sndMax.From(c.sndUna) && (len(s.Payload) > 0 || s.ack != c.sndUna) &&
		s.Timestamps == c.timestamps && (len(s.Options) == 0 || c.timestamps && int32(s.TSVal-c.tsRecent) >= 0) &&
		c.phase == open && c.board.sacked == 0 && c.dupAcks == 0 && !c.persisting &&
		len(c.outOfOrder.runs) == 0 && !c.hasPeerFin && !s.seq.Before(c.sndWL1) &&
		!(c.ecn && (c.reducing || s.ecn == wire.ECNMarked))
}

// inOrder is what the steps of synchronized do with a segment that was expected.
func (c *Conn) inOrder(now Time, s *segment) {
	c.heardAt, c.keepaliveProbes = now, 0
	if c.timestamps && c.lastAckSent == c.rcvNxt {
		c.tsRecent, c.tsRecentAt = s.TSVal, now
	}
	c.board.delivered = 0
	if s.ack != c.sndUna {
		c.acknowledged(now, s)
	}
	c.sndWnd = uint32(s.Window) << c.sndScale
	c.maxSndWnd = max(c.maxSndWnd, c.sndWnd)
	c.sndWL1, c.sndWL2 = s.seq, s.ack
	if len(s.Payload) > 0 {
		c.received(now, s)
	}
	if c.ackNow && c.sndUna == c.sndMax && c.send.cursor == nil && !c.opts.AdaptiveAck {
		// What update finds here: only the ACK is to be sent, and no timer is due sooner.
		c.next.action, c.next.fin, c.next.corked, c.next.data = sendAck, false, false, 0
		c.corkAt = Never
		c.setReady(true)
		return
	}
	c.update(now)
}

// synchronized is the states from ESTABLISHED on, but for TIME-WAIT.
func (c *Conn) synchronized(now Time, s *segment) {
	if !c.acceptable(now, s) { // first
		return
	}
	if s.has(wire.TCPRst) { // second
		c.reset(now, s, syscall.ECONNRESET)
		return
	}
	if s.has(wire.TCPSyn) { // fourth
		c.table.counts[SynInWindow]++
		c.challenge(now)
		return
	}
	c.heardAt = now
	c.keepaliveProbes = 0
	if !c.checkAck(now, s) { // fifth
		return
	}
	switch c.state {
	case FinWait1: // our FIN was sent or is queued, the peer's has not come
		if c.finAcked {
			c.state = FinWait2
			if c.closed {
				c.waitAt = now.add(c.table.cfg.FinWait)
			}
		}
		fallthrough
	case Established, FinWait2:
		c.data(now, s) // sixth and seventh
		c.fin(now, s)  // eighth
		return
	}
	// The peer has sent its FIN: data behind it is ignored.
	c.table.counts[DataAfterFin] += uint64(s.length())
	switch {
	case c.state == Closing && c.finAcked: // both sides closed at the same time
		c.enterTimeWait(now)
	case c.state == LastAck && c.finAcked: // the peer has closed, then we
		c.finish(Closed)
	}
}
