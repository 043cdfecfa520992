package rdma

import "time"

const (
	// minTurn is the shortest time in which a window of READ responses leaves while nothing shows
	// that they arrive.
	minTurn = Time(time.Millisecond)
	// lossNotice is how long a requester usually takes to ask again for a response: its timeout of
	// 67 ms.
	lossNotice = Time(64 * time.Millisecond)
)

// pacing limits what has no acknowledgments: the READ responses of an RC queue pair, and the packets of a UC
// queue pair, of which a window leaves in each millisecond, or less after CNPs.
//
// On RC the rate is found out. A requester may ask for 2 GiB by one packet. A response counts as in
// flight until a request shows that it has arrived, or until its share of a turn has passed: one
// window leaves in each turn. The window begins with Config.Window, as most requesters limit what
// they ask for, and the turn is long: what exceeds the window begins slowly. The rate doubles until
// the first loss or CNP.
type pacing struct {
	window   uint32 // packets
	acked    uint32 // packets shown to have arrived since the window grew
	inFlight uint32 // packets
	unproven uint32 // packets sent since a request showed that all had arrived
	drained  Time   // inFlight is as of then
	waitAt   Time   // the next response is held back until then; Never: it is not
	turn     Time   // at least minTurn

	changedAt   Time // the window was halved then, or grew without proof
	congested   bool // it has been halved
	halvedUntil Time // it is not halved again before
	limited     bool // the window has held back a response since it grew

	silence Time // without losses and CNPs, after which it grows without proof

	// The stream of responses without a known loss. A duplicate READ shows how many arrived.
	since    Time
	sincePSN uint32
}

func (q *QP) initPacing() {
	p := &q.resp.pacing
	*p = pacing{window: uint32(q.d.cfg.Window), waitAt: Never, turn: lossNotice, silence: 4 * lossNotice}
	if q.typ == UC {
		p.turn = minTurn
	}
}

// share is the part of a window for the requester or the responder: what the other one, which has so many packets in
// flight, leaves, and at least half.
func share(window, other uint32) uint32 { return window - min(other, window/2) }

// responseTurn is the time in which a window of responses leaves.
func (q *QP) responseTurn() Time {
	return max(min(q.resp.turn, q.maxTurn()), min(q.req.srtt, lossNotice))
}

// maxTurn is the longest turn. The peer must not take a response that is held back for a lost one. Its
// timeout is usually that of this side.
func (q *QP) maxTurn() Time {
	if q.attr.Timeout == 0 {
		return lossNotice / 4
	}
	return min(4096<<q.attr.Timeout, lossNotice) / 4
}

// drain takes the responses out of flight whose share of a turn has passed.
func (q *QP) drain(now Time) {
	p, turn := &q.resp.pacing, q.responseTurn()
	n := min(now-p.drained, 1<<40) * Time(p.window) / turn
	if n >= Time(p.inFlight) {
		p.inFlight, p.drained = 0, now
		return
	}
	p.inFlight -= uint32(n)
	p.drained += n * turn / Time(p.window)
}

// pace holds the next response, or packet of UC, back if the window does not admit it.
func (q *QP) pace(now Time) {
	p := &q.resp.pacing
	if p.waitAt != Never || q.resp.owed == 0 && (q.typ != UC || q.sq.next == q.sq.tail) {
		return
	}
	limit := share(p.window, q.req.inFlight())
	if p.inFlight < limit {
		return
	}
	if q.drain(now); p.inFlight < limit {
		return
	}
	p.limited = true
	if now-p.changedAt >= p.silence {
		// In a long response nothing shows that it arrives, but congestion would have been noticed.
		p.changedAt = now
		q.growResponses()
	}
	n, w := Time(p.inFlight-limit), Time(p.window)
	n += max(w/4, 1) // several at a time: timers cost, and are late
	p.waitAt = p.drained + (n*q.responseTurn()+w-1)/w
}

// growResponses raises the rate of the responses.
func (q *QP) growResponses() {
	p := &q.resp.pacing
	p.turn = min(p.turn, q.maxTurn())
	switch most := uint32(q.d.cfg.Window); {
	case p.window < most && p.congested:
		p.window++
	case p.window < most:
		p.window = min(2*p.window, most)
	case p.turn > minTurn:
		p.turn = max(p.turn/2, minTurn)
		if p.congested {
			p.window = max(p.window/2, minWindow) // the same rate, in smaller steps from now on
		}
	}
}

// proven is called for a READ or an atomic that is no duplicate. If nothing is owed, its requester is
// taken to have all responses. Otherwise it has that of the request whose resource it takes, as
// it has no more requests in flight than there are resources.
func (q *QP) proven(now Time, psn uint32, replaced *resource) {
	p, n := &q.resp.pacing, q.resp.unproven
	if q.resp.owed == 0 {
		p.inFlight, p.unproven, p.drained = 0, 0, now
		p.since, p.sincePSN = now, psn
	} else if !replaced.atomic {
		n = min(n, replaced.packets)
		p.unproven -= n
		p.inFlight = min(p.inFlight, p.unproven)
	}
	if !p.limited {
		return
	}
	if p.acked += n; p.acked >= p.window {
		p.acked, p.limited = 0, false
		q.growResponses()
	}
}

// lostResponses reacts to a duplicate READ for a response that was sent. The peer has received what is
// before psn, and its rate follows if that is not too little: it took the time in which that was sent, and
// that on the way. A peer that notices a loss by the response of the next READ has had that just now.
func (q *QP) lostResponses(now Time, psn uint32, next *resource) {
	p := &q.resp.pacing
	turn, window := q.responseTurn(), Time(p.window)
	if !q.halve(now) {
		return
	}
	if n := Time(psnDiff(psn, p.sincePSN)); n >= Time(max(p.window/4, 1)) {
		took, most := min(now-p.since, Time(time.Minute)), q.maxTurn()
		if next.begunAt > p.since {
			took = min(took, n*turn/window+now-next.begunAt)
		}
		took += took / 8                                                // so that queues on the way become shorter
		if p.turn = max(p.turn, took*Time(p.window)/n); p.turn > most { // a smaller window instead
			p.turn, p.window = most, max(min(p.window, uint32(most*n/took)), minWindow)
		}
	}
	p.halvedUntil = now + min(max(turn, now-next.begunAt), lossNotice) // what is on the way is for the same loss
	p.silence = 4 * lossNotice
	p.since, p.sincePSN = now, psn
}
