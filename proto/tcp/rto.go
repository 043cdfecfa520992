package tcp

import (
	"cmp"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// clockGranularity is G of RFC 6298.
const clockGranularity = time.Millisecond

// longestAckDelay is how long common peers delay an acknowledgment at most (Linux: 200 ms).
const longestAckDelay = 200 * time.Millisecond

// measure takes a round-trip time from the timestamp that an acknowledgment echoes (RFC
// 7323, section 4), after a timeout or a loss probe. Our clock, which acknowledged uses, is
// finer but can time only data that has been sent once (Karn). An echoed timestamp identifies
// which of several transmissions the peer has answered.
//
// If that was not the last, either the timeout was too short for a peer that delays
// its acknowledgments, or acknowledgments were lost. These cases cannot be told apart,
// and neither gives a round-trip time. The connection's least timeout rises to that
// time.
//
// The answer to a SYN is not delayed. But if a peer's SYN,ACK was lost, the peer sends it
// again after its own timeout and echoes the first SYN: an echo as old as the initial
// timeout is no round-trip time either.
//
// It reports whether there was a measurement. Until there is one, a timeout that has been
// backed off stays so: without timestamps nothing else makes the timeout as long as a peer
// with delayed acknowledgments needs.
func (c *Conn) measure(now Time, s *segment) (measured bool) {
	if c.backoff == 0 && c.phase != lossProbing || !c.timestamps || !s.Timestamps || s.TSEcr == 0 {
		return false
	}
	ms := int32(c.timestamp(now) - s.TSEcr)
	rtt := time.Duration(ms) * time.Millisecond
	switch last := int32(s.TSEcr-c.retransmitTS) >= 0; {
	case ms < 0: // not a timestamp of ours
		return false
	case !c.state.synchronized() && (!last || rtt >= c.table.cfg.InitialRTO):
		return false
	case last:
		c.sample(now, rtt)
	default:
		c.raisePeerDelay(rtt)
	}
	return true
}

// duplicate processes a D-SACK: the peer has received the data from l on twice (RFC
// 2883). A peer that delays its acknowledgment answers the retransmission at once and with
// its timestamp, as if it had been needed; only the D-SACK shows that it was not. If it
// reports the data that the timer was for, and not what was sent again after it, the timer
// expired too early. By how much is not known, so the timeout doubles until it is long
// enough.
func (c *Conn) duplicate(l seq.Number) {
	if c.doubted && l == c.retransmitSeq {
		c.raisePeerDelay(2 * c.rto)
	}
}

// raisePeerDelay raises the connection's least timeout to d, at most longestAckDelay.
func (c *Conn) raisePeerDelay(d time.Duration) {
	c.doubted = false
	c.peerDelay = max(c.peerDelay, min(d, longestAckDelay)+clockGranularity)
	c.rto = max(c.rto, c.peerDelay)
}

// sample is RFC 6298, sections 2.2 to 2.5, except that the minimum is added to the smoothed
// round trip, as in Linux: on a long path with little variance, SACKs of later segments, which
// may take a little longer than a round trip, should detect a loss before the timeout.
//
// Unless Config.MinRTO is set, ten round trips are added too, at most longestAckDelay. So on
// long paths a peer may delay an acknowledgment by that and none is sent again, as with
// WCDelAckT of RFC 8985, section 7.2. In a LAN peers are faster, and the minimum decides.
func (c *Conn) sample(now Time, r time.Duration) {
	if r <= c.minRTT || !c.sampled || now-c.minRTTAt > minRTTWindow {
		c.minRTT, c.minRTTAt = r, now
	}
	if !c.sampled {
		c.sampled = true
		c.srtt, c.rttvar = r, r/2
	} else {
		c.rttvar += ((c.srtt - r).Abs() - c.rttvar) / 4
		c.srtt += (r - c.srtt) / 8
	}
	cfg := &c.table.cfg
	least, delay := cfg.MinRTO, time.Duration(0)
	if least == 0 {
		least, delay = DefaultMinRTO, min(10*c.srtt, longestAckDelay)
	}
	c.rto = min(max(c.srtt+max(clockGranularity, 4*c.rttvar+delay, least), c.peerDelay), cfg.MaxRTO)
}

// rtxPurpose is what the retransmission timer is armed for. It is the persist timer too.
type rtxPurpose uint8

const (
	forTimeout    rtxPurpose = iota // a timeout, or a loss probe before it
	forLossProbe                    // a loss probe, sooner than the timeout
	forReordering                   // to look for losses again, see findLost
)

// startRetransmit starts the retransmission timer from now. It expires after the
// retransmission timeout with its backoff (RFC 6298, section 5.5), and not after the
// user timeout.
func (c *Conn) startRetransmit(now Time) {
	c.rtxAt, c.rtxFor = now+Time(min(c.rto<<min(c.backoff, 20), c.table.cfg.MaxRTO)), forTimeout
	if limit := c.giveUpAt(); c.rtxAt > limit {
		c.rtxAt = max(limit, now+1)
	}
	if c.sndNxt.From(c.sndUna) >= uint32(2*c.mss) {
		c.lossProbeSooner(now)
	}
}

// giveUpAt is the end of the user timeout (RFC 9293, section 3.8.3). A connection that the
// application has closed always has one.
func (c *Conn) giveUpAt() Time {
	switch {
	case c.state < Established:
		return Never
	case c.opts.UserTimeout >= 0:
		return c.progressAt + Time(c.opts.UserTimeout)
	case c.closed:
		return c.progressAt + Time(DefaultUserTimeout)
	}
	return Never
}

// retransmitExpired is called when the retransmission timer expires: all that is neither
// acknowledged nor SACKed is lost, and is sent again from the first byte on (RFC 6298,
// section 5.4 and following).
func (c *Conn) retransmitExpired(now Time) {
	t := c.table
	if now >= c.giveUpAt() {
		c.abort(c.timeoutError())
		return
	}
	c.timing = false
	c.retransmitTS, c.retransmitSeq, c.doubted = c.timestamp(now), c.sndUna, true
	if c.sndWnd == 0 && c.state.synchronized() {
		// Nothing is lost: the peer drops data, since its window has closed. What is in
		// flight counts as not sent.
		c.persisting = true
		c.board.clear(&t.spans, c.sndUna)
		c.phase, c.undoable, c.tailDue = open, false, false
		c.window = c.congestion.Window()
		c.sndNxt = c.sndUna
		c.send.cursor, c.send.offset = c.send.head, 0
		c.persistExpired(now)
		return
	}
	t.counts[Timeouts]++
	c.stat.timeouts++
	c.backoff = min(c.backoff+1, 30)
	if !c.state.synchronized() {
		if c.synRetries++; c.passive && c.synRetries > synAckRetries {
			c.fail(c.timeoutError())
			return
		}
		c.sndNxt = c.iss
		c.startRetransmit(now)
		return
	}
	// A timeout in fast recovery, or after a timeout with nothing acknowledged since, does
	// not reduce the window again.
	first := c.phase <= lossProbing
	if first || c.repairing || c.phase == collapsed && c.backoff == 1 {
		c.leaveOpen(collapsed)
		c.reduce(now, int(c.sndMax.From(c.sndUna)))
	}
	// F-RTO begins, unless something else has been sent again lately (RFC 5682, section 2.1,
	// step 1). It continues if the last timeout has not been answered.
	if c.timestamps || !first && c.forward != firstAck {
		c.forward = notForward
	} else {
		c.forward, c.early = firstAck, false
	}
	c.phase, c.recoverSeq = collapsed, c.sndNxt
	c.congestion.Collapse()
	c.window = c.congestion.Window()
	c.dupAcks = 0
	c.complete()
	c.board.lose(&t.spans, c.sndUna)
	mss := c.mss
	if c.blackHole(now); c.mss != mss {
		c.forward = notForward // the cause is the segment size, not an early timeout
	}
	c.startRetransmit(now)
}

// The persist timer (RFC 9293, section 3.8.6.1) is the retransmission timer while nothing
// is in flight and the peer's window does not permit to send. It sends a window probe of
// one octet, or as much as the window permits in spite of silly window avoidance. Its
// interval doubles. It continues as long as the peer answers.

func (c *Conn) startPersist(now Time) {
	if !c.persisting {
		c.persisting = true
		c.backoff = 0
		c.progressAt = now
		c.startRetransmit(now)
	}
}

func (c *Conn) stopPersist(now Time) {
	c.persisting, c.windowProbeDue = false, false
	c.backoff = 0
	if c.rtxAt = Never; c.sndUna != c.sndMax {
		c.startRetransmit(now)
	}
}

func (c *Conn) persistExpired(now Time) {
	if now >= c.giveUpAt() {
		c.abort(c.timeoutError())
		return
	}
	c.windowProbeDue = true
	c.backoff = min(c.backoff+1, 30)
	c.startRetransmit(now)
}

// Keepalive (RFC 9293, section 3.8.4). Received segments do not move the timer: when it
// expires, and a segment was received meanwhile, it is armed again.

func (c *Conn) startKeepAlive(now Time) {
	c.keepaliveProbes = 0
	c.keepAt = Never
	if c.opts.KeepAlive.Enable && c.state.synchronized() && c.state != TimeWait {
		c.keepAt = now.add(c.opts.KeepAlive.Idle)
	}
}

func (c *Conn) keepAliveExpired(now Time) {
	k := &c.opts.KeepAlive
	if c.keepaliveProbes == 0 {
		if at := c.heardAt.add(k.Idle); at > now {
			c.keepAt = at
			return
		}
	}
	if c.sndUna != c.sndMax || c.persisting {
		c.keepAt = now.add(k.Interval) // the other timers watch the peer
		return
	}
	if int(c.keepaliveProbes) >= k.Count {
		c.abort(c.timeoutError())
		return
	}
	c.keepaliveProbes++
	c.keepaliveDue = true
	c.keepAt = now.add(k.Interval)
}

// The tail loss probe (RFC 8985, section 7). No segments follow the last ones of a flight,
// so no SACK shows their loss. When the retransmission timer expires for the first time, a
// loss probe is sent: new data, or the last segment again. The answer shows what is lost.
// Only the second expiry is a timeout. If two full segments are in flight, which every peer
// acknowledges without delay, the first expiry is after two round trips.

// lossProbeTimeout is RFC 8985's PTO for a flight of two full segments or more. It is at
// least MinRTO: on a busy machine a peer may take that long.
func (c *Conn) lossProbeTimeout() time.Duration {
	return max(2*c.srtt, cmp.Or(c.table.cfg.MinRTO, DefaultMinRTO))
}

// lossProbeSooner arms the timer for a loss probe, if that is sooner. Two full segments
// must be in flight.
func (c *Conn) lossProbeSooner(now Time) {
	if at := now.add(c.lossProbeTimeout()); at < c.rtxAt && c.mayProbeLoss() {
		c.rtxAt, c.rtxFor = at, forLossProbe
	}
}

// mayProbeLoss reports whether a timeout would begin with a loss probe.
func (c *Conn) mayProbeLoss() bool {
	return c.sack && c.sampled && c.phase == open && c.backoff == 0 && c.board.sacked == 0 &&
		c.state.synchronized() && c.sndNxt == c.sndMax && c.sndNxt != c.sndUna && c.sndWnd > 0
}

// lossProbeExpired is called when the retransmission timer expires for the first time.
func (c *Conn) lossProbeExpired(now Time) {
	flight := int(c.sndNxt.From(c.sndUna))
	if flight >= 2*c.mss { // the timer was armed at the first of them; the loss probe is due so long after the last
		if at := c.board.at.add(c.lossProbeTimeout()); at > now && c.rtxFor == forLossProbe {
			c.rtxAt = at
			return
		}
	}
	c.table.counts[LossProbes]++
	c.phase, c.recoverSeq = lossProbing, c.sndNxt
	unsent := c.send.bytes - flight
	if n := min(unsent, c.mss, int(c.sndWnd)-flight); n > 0 {
		c.window = max(c.window, c.pipe()+n)
		c.flushed = true
		c.tailAgain, c.tailDue = false, false
	} else {
		c.tailAgain, c.tailDue = true, true
		// As for a timeout: the loss probe may be too early for this peer.
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

// planTail plans the last segment again as a loss probe, unless an ACK has arrived since
// that reports something new.
func (c *Conn) planTail() plan {
	n, fin := c.tail()
	if fin {
		n--
	}
	if !c.tailDue || c.phase != lossProbing || c.board.sacked > 0 || n == 0 && !fin || int(c.sndWnd) < int(c.sndNxt.From(c.sndUna)) {
		return plan{}
	}
	return plan{action: sendTail, data: n, fin: fin}
}

// emitTail writes the last n bytes that were sent, and the FIN if it was sent.
func (c *Conn) emitTail(now Time, h *header, b []byte, n int) {
	fin, length := c.next.fin, n
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
	c.writeAgain(now, h, b, start, n, fin)
}

// lossProbeAnswered processes an ACK after a loss probe (section 7.4). twice: it has a
// D-SACK.
func (c *Conn) lossProbeAnswered(now Time, advanced, twice bool) {
	end := c.recoverSeq
	if !c.tailAgain && c.sndNxt.After(end) {
		end = end.Add(1) // an ACK of new data
	}
	switch {
	case c.sndUna.Before(end):
		return
	case !c.tailAgain, c.tailDue, twice: // the first transmission has arrived
	case c.sndUna.After(end):
		// The loss probe has repaired the loss. The loss still counts as congestion.
		c.reduce(now, int(c.sndNxt.From(c.sndUna)))
	case advanced:
		return // it may be due to either transmission
	}
	c.phase, c.tailDue = open, false
	c.window = c.congestion.Window()
}

// Forward RTO-recovery (F-RTO, RFC 5682) detects a timeout that was too early. The first
// segment is sent again. If the next ACK acknowledges some of the data in flight, but not
// all, new data is sent next. If the ACK after it acknowledges data that was sent before the
// timeout and not again, the timeout was too early, and the recovery is undone. If it
// acknowledges only new data, or nothing, the loss was real.
//
// With timestamps the first ACK already shows whether the timeout was early (RFC 3522), and
// F-RTO is not used.

// forward is the state of F-RTO.
type forward uint8

const (
	notForward forward = iota // not used, or ended
	firstAck                  // waiting for the answer to what was sent again
	secondAck                 // waiting for the answer to new data
)

// goForward processes an ACK: section 2.1, and section 3.1 if the peer has SACK.
func (c *Conn) goForward(advanced bool) {
	news, early := c.board.delivered > 0, c.early
	c.early = false
	if !c.sack {
		news, early = c.dupAcks > 0, advanced
	}
	switch {
	case c.forward == firstAck && advanced: // step 2b
		c.forward = secondAck
		c.window = min(c.window, c.pipe()+2*c.mss)
		c.flushed = true
		if p := c.planData(); p.data == 0 && !p.fin {
			c.forward = notForward // there is nothing new, or no room for it
		}
	case c.forward == firstAck && !c.sack && news: // step 2a
		c.forward = notForward
	case c.forward == secondAck && early: // step 3b
		c.undo()
		c.raisePeerDelay(2 * c.rto)
	case c.forward == secondAck && news: // step 3a
		c.forward = notForward
	}
}
