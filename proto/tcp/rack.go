package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// Finding losses by time (RACK, RFC 8985): what was sent a round trip before
// something that has arrived, and a little more for reordering, is lost, be it a
// first transmission or a later one. With three segments above a hole there is no
// such patience, as long as nothing was ever reordered (RFC 6675).

const (
	dupThresh = 3
	// reorderPersist is how many recoveries a longer patience lasts (RFC 8985,
	// section 6.2, step 4).
	reorderPersist = 16
	minRTTWindow   = Time(10 * time.Second)
)

type rack struct {
	at  Time       // when that was sent which was sent last of all that has arrived
	end seq.Number // where it ends
	rtt Time       // how long it took

	fack      seq.Number // the highest number that has arrived
	reordered bool       // something has arrived late

	// D-SACKs tell of a patience that was too short.
	patience   uint8      // times a quarter of the least round trip
	lasting    uint8      // recoveries until it is one again
	roundEnd   seq.Number // until this is acknowledged another D-SACK says nothing new
	roundKnown bool
}

func sentAfter(at Time, end seq.Number, at2 Time, end2 seq.Number) bool {
	return at > at2 || at == at2 && end.After(end2)
}

// delivered notes that the peer has the part of s from start to end, which it had not
// said before the segment g (RFC 8985, section 6.2, steps 1 to 3).
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
			// Is this the answer to the last transmission, or to one before?
			if rtt < Time(c.minRTT) || g.hasTimestamps && int32(g.tsEcr-c.timestamp(s.at)) < 0 {
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

// reorderWindow is the patience (step 4).
func (c *Conn) reorderWindow() Time {
	r := &c.rack
	if !r.reordered && (c.phase > probing || c.dupAcks >= dupThresh || c.board.sacked > (dupThresh-1)*c.mss) {
		return 0
	}
	if !c.sampled {
		return r.rtt / 4
	}
	return min(Time(c.minRTT)/4*Time(max(r.patience, 1)), Time(c.srtt))
}

// sackedTwice takes in a D-SACK: perhaps what it is about was not lost but late.
func (c *Conn) sackedTwice() {
	r := &c.rack
	if r.roundKnown && c.sndUna.Before(r.roundEnd) {
		return
	}
	r.roundKnown, r.roundEnd = true, c.sndNxt
	r.patience = min(max(r.patience, 1)+1, 250)
	r.lasting = reorderPersist
}

// recovered is the end of a recovery.
func (r *rack) recovered() {
	if r.lasting > 0 {
		if r.lasting--; r.lasting == 0 {
			r.patience = 1
		}
	}
}

// detectLost marks what is lost by now (step 5), and returns how long it takes until
// more could be; 0: never.
func (c *Conn) detectLost(now Time) (wait Time) {
	b, r := &c.board, &c.rack
	window := r.rtt + c.reorderWindow()
	start := c.sndUna
	found := false
	for s := b.head; s != nil; start, s = s.end, s.next {
		if s.marks&(sacked|lost) != 0 || !sentAfter(r.at, r.end, s.at, s.end) || s.marks == again && s.at == r.at {
			continue // sent later, or nobody knows
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
