package tcp

import (
	"fmt"
	"math"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Congestion decides how much may be in flight. The engine calls it at the
// moments named here and has no more than Window in flight, except for the few segments
// that loss recovery adds. Congestion does not choose what is sent again. During a
// recovery Window is the target and does not change.
type Congestion interface {
	// Window is the congestion window in bytes.
	Window() int
	// SlowStart: the window is to double in a round trip. Pacing leaves it room.
	SlowStart() bool
	// Acked: an acknowledgment has arrived, and there is no recovery, or one after a
	// timeout. It returns Window.
	Acked(now Time, a Acked) (window int)
	// Reduce: the network is congested. It is called once for all losses of one
	// window, with the bytes that were in flight.
	Reduce(now Time, inFlight int)
	// Collapse: the retransmission timer has expired. At the first timeout of a window
	// Reduce has been called before.
	Collapse()
	// Undo: nothing was lost. It takes back the last Reduce and each Collapse since.
	Undo()
	// Idle: nothing was sent for minutes, until now.
	Idle(now Time)
	// SetMSS changes the size of a full segment.
	SetMSS(mss int)
}

// Acked is an acknowledgment, for congestion control.
type Acked struct {
	Bytes    int           // that it acknowledges
	InFlight int           // bytes that were not acknowledged before it
	RTT      time.Duration // of the data that was sent last of these bytes; 0 if not known
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
	// The most that was in flight in this round trip and in the last, bytes (RFC 7661,
	// pipeACK).
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

// unused reports whether something other than the window limited the sender. Then it is
// not known whether the network would take more (RFC 7661, section 4.3).
func (f *flow) unused(now Time, a Acked) bool {
	if a.Round {
		f.peak, f.lastPeak = 0, f.peak
	}
	f.peak = max(f.peak, a.InFlight)
	if a.InFlight >= f.window/2 {
		f.usedAt = now
		return false
	}
	if f.usedAt == 0 || now-f.usedAt >= Time(longUnused) {
		f.Idle(now)
	}
	return true
}

// congested is the base of a multiplicative decrease: what is in flight or was lately,
// without limited transmit. When the last segments of an answer are found to be lost,
// little may be in flight.
func (f *flow) congested(inFlight int) int {
	return min(max(inFlight, f.peak, f.lastPeak), f.window)
}

func (f *flow) grow(n int) { f.window = min(f.window+n, maxBuffer) }

// Idle halves the window for each five minutes in which it was not used (RFC 7661,
// section 4.4.3).
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

func (r *reno) Acked(now Time, a Acked) (window int) {
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
	return r.window
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

func (c *cubic) Acked(now Time, a Acked) (window int) {
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
	return c.window
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

// HyStart++ (RFC 9406) controls the first slow start. If the round trips of a round are
// longer than those of the last, queues are filling: the window grows more slowly, and
// slow start ends unless the round trips become shorter again.
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

// Pacing. If all new data that the window allows, above all after a pause, were sent at
// once, it would arrive at a bottleneck at once, and what the queue there cannot hold
// would be lost. So it is sent over a round trip: at a rate of 6/5 of the window for each
// round trip, and of twice the window in slow start. Where acknowledgments arrive one by
// one, they limit the rate below this, and nothing waits.
//
// There is a credit: what paceCredit of silence, or of a lower rate, has saved is sent at
// once. If the round trip is shorter than paceCredit, that is the whole window: in a LAN
// nothing is paced, and no timer runs. The initial window is always sent at once.
// Retransmissions, and what recovery allows, are not paced.

const (
	paceCredit = time.Millisecond
	// paceGrain is added to each wait, so that several segments are sent after it.
	paceGrain = paceCredit / 4
)

// pace records that n bytes of data have been sent, and delays the following data if they
// were ahead of the rate.
func (c *Conn) pace(now Time, n int) {
	round, window := Time(c.srtt), Time(max(c.window, 1))
	if round <= Time(paceCredit) || c.phase > lossProbing || c.table.cfg.noPacing {
		return
	}
	if c.congestion.SlowStart() {
		round /= 2
	} else {
		round = round * 5 / 6
	}
	credit := max(Time(paceCredit), Time(initialWindow(c.mss))*round/window)
	c.paceNext = max(c.paceNext, now-credit) + Time(n)*round/window
	if c.paceNext > now {
		c.paced, c.paceAt = true, c.paceNext.add(paceGrain)
	}
}

// Explicit congestion notification (RFC 3168). A congested router marks packets (CE)
// instead of dropping them. A receiver of marked data sets ECE in all its ACKs until the
// sender answers with CWR. The sender reduces its window once for a window of data, as for
// a loss. Only data that is sent for the first time may be marked (ECT); the driver writes
// that into the IP header, see [Conn.ECT].

// ECN is the use of explicit congestion notification by the connections of a [Table]. The
// values are those of Linux's net.ipv4.tcp_ecn in another order.
type ECN uint8

const (
	ECNAccept ECN = iota // if the peer requests it (Linux: 2)
	ECNOff               // never (Linux: 0)
	ECNOn                // request it, too (Linux: 1)
)

const ecnSetup = wire.TCPEce | wire.TCPCwr // of a SYN that requests ECN

// explicit is the ECN state of a connection.
type explicit struct {
	ecn      bool          // agreed on
	mayMark  bool          // and data sent may be marked
	cwrDue   bool          // the next new data has CWR
	reducing bool          // the window was reduced, and the peer may not have received CWR
	reduced  seq.Number    // SND.NXT at that time
	echo     wire.TCPFlags // ECE until the peer sends CWR, or 0
}

// agreeECN looks at the flags of the peer's SYN.
func (c *Conn) agreeECN(s *segment) {
	mode := c.table.cfg.ECN
	flags := s.Flags & ecnSetup
	switch {
	case mode == ECNOff, s.ecn != 0: // no implementation of ECN permits marks on its SYN
		c.ecn = false
	case s.has(wire.TCPAck):
		// A SYN that is sent again does not request ECN. But the peer has received the
		// first, so what it sends may be marked (section 6.1.1).
		c.ecn = mode == ECNOn && flags == wire.TCPEce
	default:
		c.ecn = flags == ecnSetup
	}
	c.mayMark = c.ecn && (c.passive || mode == ECNOn && c.synRetries == 0)
}

// synECN is the ECN flags of our SYN. A SYN that requests ECN may be lost because of that
// (section 6.1.1.1), so it is sent again without the request.
func (c *Conn) synECN() wire.TCPFlags {
	switch {
	case c.state == SynReceived && c.ecn:
		return wire.TCPEce
	case c.state == SynSent && c.table.cfg.ECN == ECNOn && c.synRetries == 0:
		return ecnSetup
	}
	return 0
}

// noteECN processes the ECN marks of a segment: CE and CWR for what we receive, ECE for
// what we send.
func (c *Conn) noteECN(now Time, s *segment) {
	if s.has(wire.TCPCwr) {
		c.echo = 0
	}
	if s.ecn == wire.ECNMarked && len(s.Payload) > 0 {
		c.table.counts[CongestionMarks]++
		c.echo = wire.TCPEce
	}
	// CWR is sent with the first new data, so ECE counts again when that is acknowledged.
	if c.reducing && s.ack.After(c.reduced) {
		c.reducing = false
	}
	if !s.has(wire.TCPEce) {
		return
	}
	c.undoable = false // there is congestion, whether something was lost or not (RFC 4015, section 3)
	if c.phase > lossProbing || c.reducing || c.sndUna == c.sndMax {
		return
	}
	c.table.counts[CongestionEchoes]++
	c.reduce(now, int(c.sndNxt.From(c.sndUna)))
	c.window = c.congestion.Window()
}

// reduce reports congestion to congestion control, once for a window of data.
func (c *Conn) reduce(now Time, inFlight int) {
	if c.ecn {
		if c.reducing && c.sndUna.Before(c.reduced) {
			c.undoable = false // ECE has reported the same congestion
			return
		}
		c.cwrDue, c.reducing, c.reduced = true, true, c.sndNxt
	}
	c.congestion.Reduce(now, inFlight)
}

// markNew is for a segment of new data.
func (c *Conn) markNew(h *header) {
	c.ECT = c.mayMark
	if c.cwrDue {
		c.cwrDue = false
		h.fields.Flags |= wire.TCPCwr
	}
}
