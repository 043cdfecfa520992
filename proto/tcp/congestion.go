package tcp

import (
	"fmt"
	"time"
)

// Congestion decides how much may be in flight. The engine calls it at the
// moments named here and, but for the few segments that recovery allows itself,
// has no more than Window in flight. What was lost, and what is sent again, is
// none of its business; while recovery lasts the window is its target and is left
// alone.
type Congestion interface {
	// Window is the congestion window in bytes.
	Window() int
	// SlowStart: the window is to double in a round trip. Pacing leaves it room.
	SlowStart() bool
	// Acked: an acknowledgment has come, and nothing is being recovered, or what is
	// being recovered is so after a timeout.
	Acked(now Time, a Acked)
	// Reduce: the network is congested. It is called once for all that was lost of
	// one window, with what was in flight.
	Reduce(now Time, inFlight int)
	// Collapse: the retransmission timer has run out, so that nothing is known of
	// the network any more. If that is news, Reduce has been called before.
	Collapse()
	// Undo: what caused the last Reduce, and each Collapse since, was a mistake.
	Undo()
	// Idle: nothing was sent for minutes, until now.
	Idle(now Time)
	// SetMSS changes the size of a full segment.
	SetMSS(mss int)
}

// Acked is what an acknowledgment tells congestion control.
type Acked struct {
	Bytes    int           // that it acknowledges
	InFlight int           // bytes that were not acknowledged before it
	RTT      time.Duration // of the text that was sent last of these bytes; 0 if not known
	Round    bool          // a round trip has ended since the last that had Round
}

// NewReno and NewCubic make what Config.NewCongestion may return.
func NewReno(mss int) Congestion  { r := newReno(mss); return &r }
func NewCubic(mss int) Congestion { c := newCubic(mss); return &c }

// CongestionNamed is what Config.NewCongestion is for the congestion control of that
// name, as Linux calls it: "cubic", "reno", or "" for the default.
func CongestionNamed(name string) (func(mss int) Congestion, error) {
	switch name {
	case "", "cubic":
		return nil, nil
	case "reno":
		return NewReno, nil
	}
	return nil, fmt.Errorf("no congestion control is called %q; there are cubic and reno", name)
}

const (
	initialSegments = 10 // RFC 6928
	abcLimit        = 2  // segments that one acknowledgment adds in slow start (RFC 3465)
	// longUnused is how long a window that was not used remains one that may be
	// used (RFC 7661, section 4.2).
	longUnused = 5 * time.Minute
)

// initialWindow is RFC 6928's.
func initialWindow(mss int) int { return min(initialSegments*mss, max(2*mss, 14600)) }

// flow is what congestion controls have in common: RFC 5681 but for the size of the
// steps.
type flow struct {
	mss, window, threshold int
	// The most that was in flight in this round trip and in the last: what the network
	// has shown to take (RFC 7661, pipeACK).
	peak, lastPeak int
	usedAt         Time // when half the window was last in flight
}

func newFlow(mss int) flow {
	return flow{mss: mss, window: initialWindow(mss), threshold: maxBuffer}
}

// Window is the congestion window in bytes.
func (f *flow) Window() int { return f.window }

// SlowStart is RFC 5681, section 3.1.
func (f *flow) SlowStart() bool { return f.window < f.threshold }

// unused reports whether something other than the window held the sender back, so
// that nobody knows whether the network would take more (RFC 7661, section 4.3).
func (f *flow) unused(now Time, a Acked) bool {
	if a.Round {
		f.peak, f.lastPeak = 0, f.peak
	}
	f.peak = max(f.peak, a.InFlight)
	if a.InFlight >= f.window/2 {
		f.usedAt = now
		return false
	}
	f.Idle(now)
	return true
}

// congested is what is in flight, or was lately, but for limited transmit: what a
// multiplicative decrease is of. Little may be left when the last segments of an
// answer turn out to be lost.
func (f *flow) congested(inFlight int) int {
	return min(max(inFlight, f.peak, f.lastPeak), f.window)
}

func (f *flow) grow(n int) { f.window = min(f.window+n, maxBuffer) }

// Idle takes half back for each five minutes in which the window was not used, by
// silence or by sending little (RFC 7661, section 4.4.3).
func (f *flow) Idle(now Time) {
	if f.usedAt == 0 {
		f.usedAt = now
	}
	for least := initialWindow(f.mss); f.window > least && now-f.usedAt >= Time(longUnused); f.usedAt += Time(longUnused) {
		f.threshold = max(f.threshold, f.window/4*3)
		f.window = max(f.window/2, least)
	}
}

// Collapse is the loss window of RFC 5681, section 3.1.
func (f *flow) Collapse() { f.window = f.mss }

// reno is RFC 5681, with the byte counting of RFC 3465.
type reno struct {
	flow
	counted int  // bytes acknowledged since congestion avoidance last added a segment
	before  flow // the last Reduce
}

func newReno(mss int) reno { return reno{flow: newFlow(mss)} }

func (r *reno) Acked(now Time, a Acked) {
	switch {
	case r.unused(now, a):
	case r.SlowStart():
		r.grow(min(a.Bytes, abcLimit*r.mss))
	default:
		if r.counted += a.Bytes; r.counted >= r.window {
			r.counted -= r.window
			r.grow(r.mss)
		}
	}
}

func (r *reno) Reduce(_ Time, inFlight int) {
	r.before = r.flow
	r.threshold = max(r.congested(inFlight)/2, 2*r.mss)
	r.window, r.counted = r.threshold, 0
}

func (r *reno) Undo() {
	r.window = max(r.window, r.before.window)
	r.threshold = max(r.threshold, r.before.threshold)
}

func (r *reno) SetMSS(mss int) {
	r.mss = mss
	r.window = max(r.window, mss)
}
