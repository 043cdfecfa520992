package tcp

import (
	"math"
	"slices"
	"time"
)

// The timers of a connection are instants in its struct. A heap in the table has one entry
// for each connection, at its earliest timer or before. A timer that is moved to a later
// time, as the retransmission timer is by every acknowledgment, does not change the heap.
// When the time of an entry has come and no timer is due, the entry is moved to the earliest
// timer.

// timerHeap is a heap of connections by queuedAt. Entries have a copy of it, so that
// comparisons do not read the connections.
type timerHeap []timerEntry

type timerEntry struct {
	at   Time
	conn *Conn
}

func (c *Conn) earliestTimer() Time {
	return min(c.rtxAt, c.ackAt, c.corkAt, c.keepAt, c.waitAt, c.paceAt)
}

// schedule moves the heap's entry to at, which must not be later, or adds it.
func (h *timerHeap) schedule(c *Conn, at Time) {
	c.queuedAt = at
	if c.slot == 0 {
		*h = append(*h, timerEntry{conn: c})
		c.slot = int32(len(*h))
	}
	h.up(int(c.slot), timerEntry{at, c})
}

// stop removes the entry of a connection that has no timers any more.
func (h *timerHeap) stop(c *Conn) {
	if c.slot == 0 {
		return
	}
	i, n := int(c.slot), len(*h)
	last := (*h)[n-1]
	(*h)[n-1] = timerEntry{}
	*h = (*h)[:n-1]
	c.slot, c.queuedAt = 0, Never
	if last.conn != c {
		h.move(i, last)
	}
}

// move replaces the entry at i, counted from 1, by e, and moves e to its place.
func (h timerHeap) move(i int, e timerEntry) {
	if i > 1 && e.at < h[i/2-1].at {
		h.up(i, e)
	} else {
		h.down(i, e)
	}
}

func (h timerHeap) set(i int, e timerEntry) {
	h[i-1] = e
	e.conn.slot = int32(i)
}

func (h timerHeap) up(i int, e timerEntry) {
	for ; i > 1 && e.at < h[i/2-1].at; i /= 2 {
		h.set(i, h[i/2-1])
	}
	h.set(i, e)
}

func (h timerHeap) down(i int, e timerEntry) {
	for {
		k := 2 * i
		if k > len(h) {
			break
		}
		if k < len(h) && h[k].at < h[k-1].at {
			k++
		}
		if h[k-1].at >= e.at {
			break
		}
		h.set(i, h[k-1])
		i = k
	}
	h.set(i, e)
}

// setDeadline is called after each change of the heap or of the records of TIME-WAIT.
func (t *Table) setDeadline() {
	t.Deadline = Never
	if len(t.timers) > 0 {
		t.Deadline = t.timers[0].at
	}
	if w := t.waits.first(); w != nil {
		t.Deadline = min(t.Deadline, w.expiresAt)
	}
}

// Expire runs the timers that are due. Afterwards Deadline is after now.
func (t *Table) Expire(now Time) {
	for len(t.timers) > 0 && t.timers[0].at <= now {
		c := t.timers[0].conn
		if c.earliestTimer() <= now {
			c.expire(now)
			c.update(now)
		}
		if c.slot == 0 {
			continue // the connection has ended
		}
		if c.queuedAt = c.earliestTimer(); c.queuedAt == Never {
			t.timers.stop(c)
		} else {
			t.timers.move(int(c.slot), timerEntry{c.queuedAt, c})
		}
	}
	for w := t.waits.first(); w != nil && w.expiresAt <= now; w = t.waits.first() {
		t.removeWait(w)
	}
	t.setDeadline()
}

// LinkUp expires the retransmission timers that have backed off: what was lost while the
// link was down is sent again now, and the next timeout is as short as the first.
func (t *Table) LinkUp(now Time) {
	for _, c := range slices.Clone(t.timers) {
		if c := c.conn; c.backoff > 0 && c.rtxAt != Never && c.rtxAt > now {
			c.backoff = 0
			c.rtxAt, c.rtxFor = now, forTimeout
			t.timers.schedule(c, min(now, c.queuedAt))
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
