package tcp

import (
	"math"
	"time"
)

// The timers of a connection are instants in its struct. Its entry in the table's heap is at the earliest
// of them or before.

func (c *Conn) earliestTimer() Time {
	return min(c.rtxAt, c.ackAt, c.corkAt, c.keepAt, c.waitAt, c.paceAt)
}

// setDeadline is called after each change of the heap or of the records of TIME-WAIT.
func (t *Table) setDeadline() {
	t.Deadline = t.timers.First()
	if w := t.waits.first(); w != nil {
		t.Deadline = min(t.Deadline, w.expiresAt)
	}
}

// Expire runs the timers that are due. Afterwards Deadline is after now.
func (t *Table) Expire(now Time) {
	for c := t.timers.Due(now); c != nil; c = t.timers.Due(now) {
		if c.earliestTimer() <= now {
			c.expire(now)
			c.update(now)
		}
		t.timers.Set(&c.timer, c.earliestTimer())
	}
	for w := t.waits.first(); w != nil && w.expiresAt <= now; w = t.waits.first() {
		t.removeWait(w)
	}
	t.setDeadline()
}

// LinkUp expires the retransmission timers that have backed off: what was lost while the
// link was down is sent again now, and the next timeout is as short as the first.
func (t *Table) LinkUp(now Time) {
	for _, c := range t.timers.Owners() {
		if c.backoff > 0 && c.rtxAt != Never && c.rtxAt > now {
			c.backoff = 0
			c.rtxAt, c.rtxFor = now, forTimeout
			t.timers.Advance(&c.timer, now)
		}
	}
	t.Expire(now)
}

// expire runs the timers of a connection that are due.
func (c *Conn) expire(now Time) {
	if now >= c.waitAt {
		c.waitAt = Never
		if c.state == FinWait2 { // closed, and the peer has not sent its FIN in time
			c.finish(Closed)
		} else { // the handshake took too long
			c.fail(c.timeoutError())
		}
	}
	if now >= c.ackAt {
		// It has not waited in vain if it was due before, or if an answer waits to be sent.
		c.ackInVain = !c.ackNow && c.send.cursor == nil
		c.ackAt, c.ackNow = Never, true
	}
	if now >= c.paceAt {
		c.paced, c.paceAt = false, Never
	}
	if now >= c.corkAt {
		c.corkAt = Never
		c.flushed = true
	}
	if now >= c.rtxAt {
		switch {
		case c.persisting:
			c.persistExpired(now)
		case c.rtxFor == forReordering:
			c.startRetransmit(now)
			c.board.delivered = 0
			c.findLost(now, false, true)
		case c.claimHeld() && now < c.giveUpAt() && c.sndWnd > 0:
			// The segment that the claim quotes is not acknowledged in time: the claim is accepted.
			c.acceptClaim(now)
			if c.rtxAt <= now { // nothing in flight was larger
				c.retransmitExpired(now)
			}
		case c.mayProbeLoss() && now < c.giveUpAt():
			c.lossProbeExpired(now)
		case c.rtxFor == forLossProbe && now < c.giveUpAt():
			c.startRetransmit(now) // a loss probe would not help any more
		default:
			c.retransmitExpired(now)
		}
	}
	if now >= c.keepAt {
		c.keepAliveExpired(now)
	}
}

// Time is an instant: nanoseconds since an epoch that the driver of the engine
// chooses. The engine has no clock; every call that needs the time takes it as an
// argument. It may be equal in two calls but must not go back.
type Time int64

// Never is later than every other instant.
const Never Time = math.MaxInt64

func (t Time) add(d time.Duration) Time { return t + Time(d) }

// milliseconds is the clock of the timestamps option (RFC 7323, section 5.4: a tick of 1
// ms to 1 s).
func (t Time) milliseconds() uint32 { return uint32(int64(t) / int64(time.Millisecond)) }
