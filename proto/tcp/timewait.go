package tcp

import (
	"cmp"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// timeWait is what is left of a connection in TIME-WAIT: enough to acknowledge
// the peer's FIN again, and to distinguish a new incarnation from the old one.
type timeWait struct {
	id         tuple
	sndNxt     seq.Number
	rcvNxt     seq.Number
	window     uint32 // bytes
	tsRecent   uint32
	tsOffset   uint32
	timestamps bool
	pair       *pairUse // its entry in Table.pairs; nil: the peer opened the connection
	scale      uint8
	expiresAt  Time
	challenges challenges
	queue      *waitQueue
	waiting    links[timeWait]
}

// waitQueue has records that last equally long, so it is sorted by expiresAt.
type waitQueue struct {
	list[timeWait]
	lasts time.Duration
}

// timeWaits are the records of a table.
type timeWaits struct {
	records   map[tuple]*timeWait
	near, far waitQueue
}

func newTimeWaits(cfg *Config) timeWaits {
	l := list[timeWait]{links: func(w *timeWait) *links[timeWait] { return &w.waiting }}
	return timeWaits{
		records: make(map[tuple]*timeWait),
		near:    waitQueue{l, cmp.Or(cfg.TimeWait, DefaultTimeWait)},
		far:     waitQueue{l, cmp.Or(cfg.TimeWait, DefaultTimeWaitFar)},
	}
}

// first is the record that expires first, or nil.
func (t *timeWaits) first() *timeWait {
	near, far := t.near.first, t.far.first
	if near == nil || far != nil && far.expiresAt < near.expiresAt {
		return far
	}
	return near
}

// start puts w at the end of its queue, for the whole time.
func (w *timeWait) start(now Time) {
	w.expiresAt = now.add(w.queue.lasts)
	w.queue.push(w)
}

// enterTimeWait replaces the connection in the table by a record. Received data can still be
// read from the connection.
func (c *Conn) enterTimeWait(now Time) {
	t := c.table
	t.counts[TimeWaits]++
	if len(t.waits.records) >= t.cfg.MaxTimeWaits {
		t.counts[TimeWaitGone]++
		t.removeWait(t.waits.first())
	}
	queue := &t.waits.near
	if !c.sampled || c.minRTT > farRound {
		queue = &t.waits.far
	}
	w := &timeWait{
		id: c.id, sndNxt: c.sndMax, rcvNxt: c.rcvNxt, window: uint32(c.windowField()) << c.rcvScale, scale: c.rcvScale,
		tsRecent: c.tsRecent, tsOffset: c.tsOffset, timestamps: c.timestamps,
		pair: c.pair, challenges: newChallenges(now), queue: queue,
	}
	t.waits.records[w.id] = w
	w.start(now)
	if w.pair != nil {
		_, bit := pairBlock(w.id)
		w.pair.waits |= bit
	}
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
	if s.Flags&(wire.TCPSyn|wire.TCPAck|wire.TCPRst) == wire.TCPSyn && w.isNewer(s) && t.listenerFor(s.id) != nil {
		t.counts[TimeWaitUsed]++
		t.removeWait(w)
		return true
	}
	inWindow := s.seq.InWindow(w.rcvNxt, w.window)
	if s.has(wire.TCPRst) { // second
		switch {
		case s.seq == w.rcvNxt:
			t.counts[ResetsReceived]++
			t.removeWait(w)
		case inWindow:
			t.counts[ResetsIgnored]++
			t.answerBare(now, w)
		default:
			t.counts[ResetsIgnored]++
		}
		return false
	}
	if w.timestamps && !s.Timestamps {
		t.counts[NoTimestamp]++ // as in acceptable
	} else if w.timestamps && int32(s.TSVal-w.tsRecent) < 0 {
		t.counts[PawsDropped]++
		t.answerBare(now, w)
		return false
	}
	// First.
	if !inWindow && (s.length() == 0 || !s.end().Back(1).InWindow(w.rcvNxt, w.window)) {
		t.counts[OutOfWindow]++
		if s.length() == 0 || s.has(wire.TCPSyn) {
			t.answerBare(now, w)
			return false
		}
		if s.has(wire.TCPFin) && s.end() == w.rcvNxt {
			// The FIN again: our ACK of it was lost. The time starts again.
			w.queue.remove(w)
			w.start(now)
			t.setDeadline()
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
	switch {
	case s.length() > 0: // data behind the FIN is ignored, but is answered with an ACK
		t.counts[DataAfterFin] += uint64(s.length())
		t.acknowledgeFrom(now, w)
	case s.ack.After(w.sndNxt):
		t.counts[AckUnsent]++
		t.answerBare(now, w)
	case s.seq != w.rcvNxt || s.ack != w.sndNxt:
		t.answerBare(now, w)
	}
	// Otherwise it is the ACK that a peer in TIME-WAIT sends. An answer would cause the next
	// one.
	return false
}

// isNewer reports whether a SYN belongs to a new connection.
func (w *timeWait) isNewer(s *segment) bool {
	if w.timestamps && s.Timestamps {
		d := int32(s.TSVal - w.tsRecent)
		return d > 0 || d == 0 && s.seq.After(w.rcvNxt)
	}
	return s.seq.After(w.rcvNxt)
}

// newer is the initial sequence number of the next incarnation of the pair: n, but at least
// 2^16 above the old SND.NXT.
func (w *timeWait) newer(n seq.Number) seq.Number { return seq.Max(n, w.sndNxt.Add(1<<16)) }

// answerBare answers with a challenge ACK, within the limit of challenges.
func (t *Table) answerBare(now Time, w *timeWait) {
	if w.challenges.take(t, now) {
		t.acknowledgeFrom(now, w)
	}
}

func (t *Table) acknowledgeFrom(now Time, w *timeWait) {
	s := segment{id: w.id}
	t.answer(&s, wire.TCPAck, w.sndNxt, w.rcvNxt, uint16(w.window>>w.scale))
	if w.timestamps {
		o := &t.reply.options
		o.HasTimestamps, o.TSVal, o.TSEcr = true, now.milliseconds()+w.tsOffset, w.tsRecent
	}
}

// removeWait deletes a record.
func (t *Table) removeWait(w *timeWait) {
	delete(t.waits.records, w.id)
	w.queue.remove(w)
	t.setDeadline()
	t.leavePair(w.pair, w.id, true)
}
