package rdma

import "time"

const (
	firstWindow = 10 // packets, as in RFC 6928
	minWindow   = 2
	cnpInterval = Time(50 * time.Microsecond) // at least, between two CNPs of a queue pair
)

// congestion is the congestion window of an RC queue pair, in packets: those that it sends, and
// the READ responses that it asks for. It is NewReno's (RFC 5681): slow start, one packet a
// round trip above the threshold, halved once a window by a loss or a CNP, 1 after a timeout.
type congestion struct {
	window    uint32
	threshold uint32
	acked     uint32 // above the threshold: since the window grew
	limited   bool   // the window has held back a packet since it grew
	halvedAt  uint32 // PSN: until all before it is acknowledged, the window is not halved again
	halved    bool

	timing     bool // a round trip is being measured
	timed      uint32
	timedAt    Time
	srtt, rttv Time // RFC 6298; 0: no sample yet
}

func (c *congestion) init(limit int) {
	*c = congestion{window: min(firstWindow, uint32(limit)), threshold: 1 << 30}
}

// grow is called when n packets have been acknowledged.
func (c *congestion) grow(n uint32, limit int) {
	if !c.limited || c.window >= uint32(limit) {
		return
	}
	if c.window < c.threshold {
		c.window += n
	} else if c.acked += n; c.acked >= c.window {
		c.acked -= c.window
		c.window++
	} else {
		return
	}
	c.window = min(c.window, uint32(limit))
	c.limited = false
}

// halve reacts to a loss or a CNP, once a window of requests or of responses, which take the same way.
// It reports whether it has halved.
func (q *QP) halve(now Time) bool {
	r, p := &q.req, &q.resp.pacing
	c := &r.congestion
	if c.halved || now < p.halvedUntil {
		return false
	}
	c.threshold = max(c.window/2, minWindow)
	c.window, c.acked = c.threshold, 0
	c.halved, c.halvedAt = r.una != r.max, r.max
	p.window, p.acked, p.changedAt, p.congested = max(p.window/2, minWindow), 0, now, true
	if p.inFlight > 0 {
		p.halvedUntil = now + q.responseTurn()
	}
	return true
}

// collapse reacts to a timeout.
func (r *requester) collapse() {
	c := &r.congestion
	c.threshold = max(c.window/2, minWindow)
	c.window, c.acked = 1, 0
	c.halved, c.halvedAt = true, r.max
}

// sample takes a round-trip time (RFC 6298, section 2).
func (c *congestion) sample(rtt Time) {
	if c.srtt == 0 {
		c.srtt, c.rttv = max(rtt, 1), rtt/2
		return
	}
	d := c.srtt - rtt
	if d < 0 {
		d = -d
	}
	c.rttv += (d - c.rttv) / 4
	c.srtt = max(c.srtt+(rtt-c.srtt)/8, 1)
}

// roundTrip is the longest round trip to be expected (RFC 6298, section 2).
func (c *congestion) roundTrip() Time {
	if c.srtt == 0 {
		return Time(time.Second)
	}
	return c.srtt + 4*c.rttv
}

// congested takes a CNP.
func (q *QP) congested(now Time) {
	q.drain(now)
	if q.req.una != q.req.max || q.resp.inFlight > 0 {
		if q.halve(now) {
			q.resp.silence = 8 * q.responseTurn() // of CNPs: queues mark before they lose
		}
	}
}

// sendCNP answers a packet that experienced congestion.
func (q *QP) sendCNP(now Time) {
	if q.cnpAt == 0 || now-q.cnpAt >= cnpInterval {
		q.cnpDue = true
	}
}
