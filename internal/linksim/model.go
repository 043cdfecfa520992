package linksim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Rule is how one direction of a link treats frames. The zero value passes all frames on
// at once.
type Rule struct {
	Loss      float64 // probability that a frame is lost, each by itself
	Burst     Burst   // losses in a row
	Duplicate float64 // probability that a frame arrives twice
	Corrupt   float64 // probability that one bit of a copy is flipped

	Delay    time.Duration // until a frame arrives, after it has left the line
	Jitter   time.Duration // as much as that longer, evenly distributed; keeps the order
	Reorder  float64       // probability that a copy is held back and may be overtaken
	HoldBack time.Duration // by how much at most, evenly distributed

	Rate      int64 // of the line, bits a second; 0: there is no limit and no queue
	Queue     int   // bytes that may wait for the line, with the frame on it; 0: DefaultQueue
	MarkAbove int   // bytes in the queue above which frames are marked (ECN CE); 0: none is

	MaxSize int // bytes; larger frames are lost; 0: none is too large

	Blackout Blackout // when the link loses everything
}

// DefaultQueue is the queue of a rule without one, in bytes: some hundred full frames of an
// Ethernet.
const DefaultQueue = 150_000

// Burst is the model of Gilbert and Elliott: the link is in a good state, in which
// only Rule.Loss counts, or in a bad one. The zero value stays in the good state.
// On average a share of Enter/(Enter+Leave) of the frames finds the bad state, in
// runs of 1/Leave.
type Burst struct {
	Enter float64 // probability that the bad state begins with a frame
	Leave float64 // probability that it ends with a frame
	Keep  float64 // share of the frames that survive the bad state
}

// Blackout is a time in which the link loses everything. It is counted from the
// moment in which the rule was set. Frames that are in flight when it begins arrive.
type Blackout struct {
	After  time.Duration // until it begins
	Length time.Duration // 0: there is none
	Every  time.Duration // until it begins again; 0: it comes once
}

// Down is a blackout without an end.
var Down = Blackout{Length: math.MaxInt64}

// at reports whether the link is down at this time after the rule was set.
func (b Blackout) at(t time.Duration) bool {
	if t -= b.After; t < 0 {
		return false
	}
	if b.Every > 0 {
		t %= b.Every
	}
	return t < b.Length
}

// Validate is an error if the rule is not valid.
func (r Rule) Validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{{"Loss", r.Loss}, {"Burst.Enter", r.Burst.Enter}, {"Burst.Leave", r.Burst.Leave}, {"Burst.Keep", r.Burst.Keep},
		{"Duplicate", r.Duplicate}, {"Corrupt", r.Corrupt}, {"Reorder", r.Reorder}} {
		if !(p.value >= 0 && p.value <= 1) {
			return fmt.Errorf("%s is %v, not a probability", p.name, p.value)
		}
	}
	for _, d := range []struct {
		name  string
		value int64
	}{{"Delay", int64(r.Delay)}, {"Jitter", int64(r.Jitter)}, {"HoldBack", int64(r.HoldBack)}, {"Rate", r.Rate}, {"Queue", int64(r.Queue)},
		{"MarkAbove", int64(r.MarkAbove)}, {"MaxSize", int64(r.MaxSize)}, {"Blackout.After", int64(r.Blackout.After)}, {"Blackout.Length", int64(r.Blackout.Length)}, {"Blackout.Every", int64(r.Blackout.Every)}} {
		if d.value < 0 {
			return fmt.Errorf("%s is negative", d.name)
		}
	}
	switch {
	case r.Reorder > 0 && r.HoldBack == 0:
		return errors.New("without HoldBack, Reorder changes no order")
	case r.Rate == 0 && (r.Queue > 0 || r.MarkAbove > 0):
		return errors.New("without Rate there is no queue for Queue and MarkAbove")
	}
	return nil
}

// Plausible reports whether k of n independent events of probability p are within chance.
// It rejects a right model with a probability of at most 1e-9: Chernoff's bound, 2 exp(-n
// D(k/n || p)) with D the relative entropy.
func Plausible(k, n uint64, p float64) bool {
	if n == 0 {
		return k == 0
	}
	share := float64(k) / float64(n)
	entropy := func(a, b float64) float64 { // of events that happen in a share a instead of b
		if a == 0 {
			return 0
		}
		return a * math.Log(a/b) // +Inf if b is 0
	}
	return float64(n)*(entropy(share, p)+entropy(1-share, 1-p)) <= math.Log(2e9)
}

// Cause is why a frame is lost.
type Cause uint8

const (
	Arrives Cause = iota // it is not lost
	ByChance
	ByBurst
	ByQueue // it was full
	ByBlackout
	BySize // it was larger than the path takes
)

// Frame is what a decision depends on.
type Frame struct {
	Size int  // bytes
	ECT  bool // ECN-capable: it may be marked
}

// Outcome is what the link does to a frame.
type Outcome struct {
	Lost   Cause
	Mark   bool    // congestion was experienced
	Copies int     // that arrive: 0, 1 or 2
	Copy   [2]Copy // the first Copies are valid
}

// Copy is the arrival of a frame.
type Copy struct {
	At   time.Duration
	Flip int // the number of the bit that is flipped, of 8 in each byte; -1: none
}

// Counters is what a model has decided so far.
type Counters struct {
	Frames, Bytes uint64 // that came

	LostByChance, LostInBursts, LostInQueue, LostInBlackouts, LostForSize uint64

	Marked     uint64 // frames
	Duplicated uint64 // frames
	Corrupted  uint64 // copies
	HeldBack   uint64 // copies
}

// Lost is how many frames were lost, for any reason.
func (c Counters) Lost() uint64 {
	return c.LostByChance + c.LostInBursts + c.LostInQueue + c.LostInBlackouts + c.LostForSize
}

// Copies is how many copies of frames arrive.
func (c Counters) Copies() uint64 { return c.Frames - c.Lost() + c.Duplicated }

// Model is one direction of a link. It is made by [New], and used by one goroutine
// at a time. Time is counted from any instant; it does not go back.
type Model struct {
	rule     Rule
	since    time.Duration // when rule was set
	rand     *rand.Rand
	bad      bool // the state of Burst
	queue    queue
	last     time.Duration // when the last copy arrives that was not held back
	counters Counters
}

// New makes a model. It panics if the rule is not valid, as Set does.
func New(seed uint64, r Rule) *Model {
	m := &Model{rand: rand.New(rand.NewPCG(seed, 0))}
	m.Set(0, r)
	return m
}

// Set changes the rule for the next frames. A burst continues if the new rule has bursts.
func (m *Model) Set(now time.Duration, r Rule) {
	if err := r.Validate(); err != nil {
		panic("BUG: rule of a link: " + err.Error())
	}
	if r.Queue == 0 {
		r.Queue = DefaultQueue
	}
	m.rule, m.since = r, now
	m.bad = m.bad && r.Burst != (Burst{}) // nothing would end it
}

// Rule is the rule that holds.
func (m *Model) Rule() Rule { return m.rule }

// Counters is what was decided so far.
func (m *Model) Counters() Counters { return m.counters }

// draws are the random numbers of a frame, all in [0, 1).
type draws struct {
	burst, keep, loss, duplicate float64
	copies                       [2]struct{ corrupt, bit, jitter, reorder, holdBack float64 }
}

func (m *Model) draw() (d draws) {
	for _, p := range []*float64{&d.burst, &d.keep, &d.loss, &d.duplicate} {
		*p = m.rand.Float64()
	}
	for i := range d.copies {
		c := &d.copies[i]
		for _, p := range []*float64{&c.corrupt, &c.bit, &c.jitter, &c.reorder, &c.holdBack} {
			*p = m.rand.Float64()
		}
	}
	return d
}

// Next decides about the next frame, which enters the link now.
func (m *Model) Next(now time.Duration, f Frame) (out Outcome) {
	d := m.draw()
	r, c := &m.rule, &m.counters
	c.Frames++
	c.Bytes += uint64(f.Size)
	if m.bad {
		m.bad = d.burst >= r.Burst.Leave
	} else {
		m.bad = d.burst < r.Burst.Enter
	}
	switch {
	case r.Blackout.at(now - m.since):
		c.LostInBlackouts++
		return Outcome{Lost: ByBlackout}
	case r.MaxSize > 0 && f.Size > r.MaxSize:
		c.LostForSize++
		return Outcome{Lost: BySize}
	case m.bad && d.keep >= r.Burst.Keep:
		c.LostInBursts++
		return Outcome{Lost: ByBurst}
	case d.loss < r.Loss:
		c.LostByChance++
		return Outcome{Lost: ByChance}
	}
	left := now // the line
	if waiting := m.queue.bytes(now); r.Rate > 0 {
		if waiting > 0 && waiting+f.Size > r.Queue {
			c.LostInQueue++
			return Outcome{Lost: ByQueue}
		}
		if f.ECT && r.MarkAbove > 0 && waiting > r.MarkAbove {
			out.Mark = true
			c.Marked++
		}
		left = m.queue.add(now, f.Size, r.Rate)
	}
	out.Copies = 1
	if d.duplicate < r.Duplicate {
		out.Copies = 2
		c.Duplicated++
	}
	for i := range out.Copies {
		d, to := &d.copies[i], &out.Copy[i]
		to.Flip = -1
		if d.corrupt < r.Corrupt && f.Size > 0 {
			to.Flip = int(d.bit * float64(8*f.Size))
			c.Corrupted++
		}
		to.At = max(left+r.Delay+part(r.Jitter, d.jitter), m.last)
		if d.reorder < r.Reorder {
			to.At += part(r.HoldBack, d.holdBack)
			c.HeldBack++
		} else {
			m.last = to.At
		}
	}
	return out
}

// part is a share of a time.
func part(of time.Duration, share float64) time.Duration { return time.Duration(share * float64(of)) }

// queue is the frames that wait for the line, and the one on it.
type queue struct {
	frames []waiting
	total  int // bytes
}

type waiting struct {
	left time.Duration // when it has left the line
	size int
}

// bytes is how much waits.
func (q *queue) bytes(now time.Duration) int {
	for len(q.frames) > 0 && q.frames[0].left <= now {
		q.total -= q.frames[0].size
		q.frames = q.frames[1:]
	}
	return q.total
}

// add appends a frame and returns the time at which it will have left.
func (q *queue) add(now time.Duration, size int, rate int64) time.Duration {
	if n := len(q.frames); n > 0 {
		now = max(now, q.frames[n-1].left)
	}
	left := now + time.Duration(math.Ceil(float64(size)*8e9/float64(rate)))
	q.frames = append(q.frames, waiting{left, size})
	q.total += size
	return left
}

// Link is a model and the frames in flight, of type T.
type Link[T any] struct {
	Model
	flights []Arrival[T] // in the order of arrival
}

// Arrival is a frame that has arrived. Copies of one frame have the same Item, which must
// not be changed.
type Arrival[T any] struct {
	Item T
	At   time.Duration // when it was due
	Flip int           // as in Copy
	Mark bool          // as in Outcome
}

// NewLink makes a link. It panics if the rule is not valid.
func NewLink[T any](seed uint64, r Rule) *Link[T] { return &Link[T]{Model: *New(seed, r)} }

// Send puts a frame on the link.
func (l *Link[T]) Send(now time.Duration, f Frame, item T) Outcome {
	out := l.Model.Next(now, f)
	for _, c := range out.Copy[:out.Copies] {
		// Behind those that arrive at the same time: they were sent before.
		i, _ := slices.BinarySearchFunc(l.flights, c.At, func(a Arrival[T], at time.Duration) int {
			if a.At <= at {
				return -1
			}
			return 1
		})
		l.flights = slices.Insert(l.flights, i, Arrival[T]{item, c.At, c.Flip, out.Mark})
	}
	return out
}

// Next is when the next copy arrives; not ok if none is in flight.
func (l *Link[T]) Next() (at time.Duration, ok bool) {
	if len(l.flights) == 0 {
		return 0, false
	}
	return l.flights[0].At, true
}

// Receive takes one copy that has arrived by now.
func (l *Link[T]) Receive(now time.Duration) (a Arrival[T], ok bool) {
	if len(l.flights) == 0 || l.flights[0].At > now {
		return a, false
	}
	a, l.flights[0] = l.flights[0], a // for the garbage collector
	l.flights = l.flights[1:]
	return a, true
}

// InFlight is how many copies are in flight.
func (l *Link[T]) InFlight() int { return len(l.flights) }
