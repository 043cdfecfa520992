package tcp

import (
	"math"
	"time"
)

// CUBIC (RFC 9438): in congestion avoidance the window is a cubic function of the
// time since the last congestion event, flat where the window was then, or what
// Reno's would be if that is more. Below the threshold it is slow start, which ends
// when round trips become longer (HyStart++, RFC 9406). In the formulas windows are
// in segments and times in seconds.
const (
	cubicC    = 0.4
	cubicBeta = 0.7
	// cubicAlpha makes the Reno-friendly window as large as Reno's on average.
	cubicAlpha = 3 * (1 - cubicBeta) / (1 + cubicBeta)
)

type cubic struct {
	cubicState
	slow   hyStart
	before cubicState // the last Reduce
}

type cubicState struct {
	flow
	wMax    float64 // the window before the last Reduce; 0: after a timeout, or never
	wPrior  float64 // where it was, whatever fast convergence makes of wMax
	k       float64 // when the cubic function is at wMax
	wEst    float64 // the window that Reno would have
	rest    float64 // of the window, less than a byte
	epoch   Time    // when congestion avoidance began; 0: it has not
	ackedAt Time    // the last Acked since
}

func newCubic(mss int) cubic { return cubic{cubicState: cubicState{flow: newFlow(mss)}} }

func (c *cubic) Acked(now Time, a Acked) {
	switch {
	case c.unused(now, a):
		if c.epoch != 0 { // time that was not used does not count (section 5.8)
			c.epoch += now - c.ackedAt
			c.ackedAt = now
		}
	case c.SlowStart():
		if c.threshold == maxBuffer && c.slow.acked(a) {
			c.threshold = c.window
			break
		}
		c.grow(c.slow.step(a.Bytes, c.mss))
	default:
		c.avoid(now, a)
	}
}

// avoid is congestion avoidance, sections 4.2 to 4.5.
func (c *cubic) avoid(now Time, a Acked) {
	mss := float64(c.mss)
	w := (float64(c.window) + c.rest) / mss
	if c.epoch == 0 {
		c.epoch, c.wEst, c.k = now, w, 0
		if c.wMax > w {
			c.k = math.Cbrt((c.wMax - w) / cubicC)
		} else {
			c.wMax = w
		}
	}
	c.ackedAt = now
	at := func(t float64) float64 { t -= c.k; return cubicC*t*t*t + c.wMax }
	acked := min(float64(a.Bytes)/mss, w)
	alpha := cubicAlpha
	if c.wEst >= c.wPrior {
		alpha = 1
	}
	c.wEst += alpha * acked / w
	t := time.Duration(now - c.epoch).Seconds()
	if at(t) < c.wEst {
		w = max(w, c.wEst)
	} else {
		target := min(max(at(t+a.RTT.Seconds()), w), 1.5*w)
		w += (target - w) / w * acked
	}
	bytes := min(w*mss, maxBuffer)
	c.window = int(bytes)
	c.rest = bytes - float64(c.window)
}

// Reduce is sections 4.6 and 4.7.
func (c *cubic) Reduce(_ Time, inFlight int) {
	c.before = c.cubicState
	w := float64(c.window) / float64(c.mss)
	c.wPrior = w
	if w < c.wMax { // another flow needs room: fast convergence
		c.wMax = w * (1 + cubicBeta) / 2
	} else {
		c.wMax = w
	}
	c.threshold = max(int(float64(c.congested(inFlight))*cubicBeta+0.5), 2*c.mss)
	c.window, c.rest, c.epoch = c.threshold, 0, 0
}

// Collapse is section 4.8.
func (c *cubic) Collapse() {
	c.flow.Collapse()
	c.wMax, c.rest, c.epoch = 0, 0, 0
}

// Undo is section 4.9.1.
func (c *cubic) Undo() {
	if c.window >= c.before.window {
		c.threshold = max(c.threshold, c.before.threshold)
		return
	}
	mss := c.mss
	c.cubicState = c.before
	c.SetMSS(mss)
	c.epoch = 0 // the time since was not congestion avoidance
}

func (c *cubic) SetMSS(mss int) {
	scale := float64(c.mss) / float64(mss)
	c.wMax, c.wPrior, c.wEst = c.wMax*scale, c.wPrior*scale, c.wEst*scale
	c.mss = mss
	c.window = max(c.window, mss)
	c.epoch = 0
}

// HyStart++ (RFC 9406) watches the first slow start. When the round trips of a
// round are longer than those of the last, queues fill: growth slows down, and if
// round trips do not become shorter again slow start ends.
const (
	hyStartSamples = 8
	hyStartRounds  = 5
	hyStartDivisor = 4
	hyStartLimit   = 8 // segments that one acknowledgment adds
	hyStartLeast   = 4 * time.Millisecond
	hyStartMost    = 16 * time.Millisecond
)

type hyStart struct {
	last, current time.Duration // least round-trip time of a round; 0: not known
	baseline      time.Duration // current when conservative slow start began; 0: it has not
	samples       uint8         // in this round
	rounds        uint8         // of conservative slow start
}

// acked reports whether slow start is over.
func (h *hyStart) acked(a Acked) bool {
	if a.Round {
		h.last, h.current, h.samples = h.current, 0, 0
		if h.baseline != 0 {
			if h.rounds++; h.rounds >= hyStartRounds {
				return true
			}
		}
	}
	if a.RTT == 0 {
		return false
	}
	if h.current == 0 || a.RTT < h.current {
		h.current = a.RTT
	}
	if h.samples = min(h.samples+1, hyStartSamples); h.samples < hyStartSamples {
		return false
	}
	switch {
	case h.baseline != 0:
		if h.current < h.baseline { // it was not a queue
			h.baseline, h.rounds = 0, 0
		}
	case h.last != 0 && h.current >= h.last+min(max(h.last/8, hyStartLeast), hyStartMost):
		h.baseline, h.rounds = h.current, 0
	}
	return false
}

// step is what an acknowledgment of n bytes adds.
func (h *hyStart) step(n, mss int) int {
	n = min(n, hyStartLimit*mss)
	if h.baseline != 0 {
		n /= hyStartDivisor
	}
	return n
}
