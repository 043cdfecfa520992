package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// timeWait is what is left of a connection in TIME-WAIT: enough to acknowledge
// the peer's FIN again, and to tell a new incarnation from the old one.
type timeWait struct {
	id         tuple
	sndNxt     seq.Number
	rcvNxt     seq.Number
	window     uint32 // bytes
	tsRecent   uint32
	tsOffset   uint32
	timestamps bool
	scale      uint8
	since      Time // when the peer's FIN came
	expiresAt  Time
	answeredAt Time // when a bare segment was last answered
	next, prev *timeWait
}

// timeWaits are the records of a table. All of them live equally long, so the
// list is in order of their ends.
type timeWaits struct {
	records        map[tuple]*timeWait
	oldest, newest *timeWait
}

// timeWaitReuse is how long after its end a connection must not be replaced by
// one that we open: then our timestamps are later than any we sent on it.
const timeWaitReuse = time.Second

// enterTimeWait turns the connection into a record. What it has received can
// still be read from it.
func (c *Conn) enterTimeWait(now Time) {
	t := c.table
	t.counts[TimeWaits]++
	if len(t.waits.records) >= t.cfg.MaxTimeWaits {
		t.counts[TimeWaitGone]++
		t.waits.remove(t.waits.oldest)
	}
	w := &timeWait{
		id: c.id, sndNxt: c.sndMax, rcvNxt: c.rcvNxt, window: uint32(c.windowField()) << c.rcvScale, scale: c.rcvScale,
		tsRecent: c.tsRecent, tsOffset: c.tsOffset, timestamps: c.timestamps,
		since: now, answeredAt: now, expiresAt: now.add(t.cfg.TimeWait),
	}
	t.waits.add(w)
	if c.ackNow {
		t.acknowledgeFrom(now, w)
	}
	c.finish(TimeWait)
}

// timeWait is the state TIME-WAIT (RFC 9293, section 3.10.7.4). It reports
// whether the segment opens a new connection in place of the old one, whose
// record is gone then.
func (t *Table) timeWait(now Time, w *timeWait, s *segment) (reopen bool) {
	// Fourth, and before the first because a new connection's number need not
	// lie in the old one's window: a SYN that can only be new (RFC 6191, RFC
	// 1122 section 4.2.2.13).
	if s.flags&(wire.TCPSyn|wire.TCPAck|wire.TCPRst) == wire.TCPSyn && w.isNewer(s) && t.listenerFor(s.id) != nil {
		t.counts[TimeWaitUsed]++
		t.waits.remove(w)
		return true
	}
	inWindow := s.seq.InWindow(w.rcvNxt, w.window)
	if s.has(wire.TCPRst) { // second
		switch {
		case s.seq == w.rcvNxt:
			t.counts[ResetsReceived]++
			t.waits.remove(w)
		case inWindow:
			t.counts[ResetsIgnored]++
			t.answerBare(now, w)
		default:
			t.counts[ResetsIgnored]++
		}
		return false
	}
	if w.timestamps && !s.hasTimestamps && !s.has(wire.TCPSyn) {
		t.counts[NoTimestamp]++ // as in acceptable
		return false
	}
	if w.timestamps && s.hasTimestamps && int32(s.tsVal-w.tsRecent) < 0 {
		t.counts[PawsDropped]++
		t.answerBare(now, w)
		return false
	}
	// First: nothing that is acceptable has come before.
	if !inWindow && (s.length() == 0 || !s.end().Back(1).InWindow(w.rcvNxt, w.window)) {
		t.counts[OutOfWindow]++
		if s.length() == 0 || s.has(wire.TCPSyn) {
			t.answerBare(now, w)
			return false
		}
		if s.has(wire.TCPFin) && s.end() == w.rcvNxt {
			// The FIN again, for our ACK of it was lost: the wait begins anew.
			w.expiresAt = now.add(t.cfg.TimeWait)
			t.waits.remove(w)
			t.waits.add(w)
		}
		t.acknowledgeFrom(now, w)
		return false
	}
	if s.has(wire.TCPSyn) { // fourth
		t.counts[SynInWindow]++
		t.answerBare(now, w)
		return false
	}
	if !s.has(wire.TCPAck) { // fifth
		t.counts[NoAck]++
		return false
	}
	if s.length() > 0 { // nothing can follow the FIN, but it asks for an ACK
		t.afterFin(s)
		t.acknowledgeFrom(now, w)
	}
	return false
}

// isNewer reports whether a SYN belongs to a new connection.
func (w *timeWait) isNewer(s *segment) bool {
	if w.timestamps && s.hasTimestamps {
		d := int32(s.tsVal - w.tsRecent)
		return d > 0 || d == 0 && s.seq.After(w.rcvNxt)
	}
	return s.seq.After(w.rcvNxt)
}

// newer is a first sequence number for the next incarnation of the pair.
func (w *timeWait) newer(n seq.Number) seq.Number { return seq.Max(n, w.sndNxt.Add(1<<16)) }

// reusable reports whether we may open a new connection in place of w.
func (w *timeWait) reusable(now Time) bool {
	return w.timestamps && now-w.since >= Time(timeWaitReuse)
}

// answerBare is a challenge ACK, but not one for every segment.
func (t *Table) answerBare(now Time, w *timeWait) {
	if now-w.answeredAt < Time(challengeInterval) {
		t.counts[AcksLimited]++
		return
	}
	w.answeredAt = now
	t.counts[ChallengeAcks]++
	t.acknowledgeFrom(now, w)
}

func (t *Table) acknowledgeFrom(now Time, w *timeWait) {
	s := segment{id: w.id}
	t.answer(&s, wire.TCPAck, w.sndNxt, w.rcvNxt, uint16(w.window>>w.scale))
	if w.timestamps {
		o := &t.reply.options
		o.HasTimestamps, o.TSVal, o.TSEcr = true, now.milliseconds()+w.tsOffset, w.tsRecent
	}
}

func (l *timeWaits) add(w *timeWait) {
	l.records[w.id] = w
	w.next, w.prev = nil, l.newest
	if l.newest == nil {
		l.oldest = w
	} else {
		l.newest.next = w
	}
	l.newest = w
}

func (l *timeWaits) remove(w *timeWait) {
	delete(l.records, w.id)
	if w.prev == nil {
		l.oldest = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.newest = w.prev
	} else {
		w.next.prev = w.prev
	}
}

func (l *timeWaits) nextDeadline() Time {
	if l.oldest == nil {
		return Never
	}
	return l.oldest.expiresAt
}

func (l *timeWaits) expire(now Time) {
	for l.oldest != nil && l.oldest.expiresAt <= now {
		l.remove(l.oldest)
	}
}
