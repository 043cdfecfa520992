package fate

import (
	"math"
	"math/rand/v2"
	"time"
)

// Cause is why a frame is lost.
type Cause uint8

const (
	Arrives Cause = iota // it is not
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

// Fate is what happens to a frame.
type Fate struct {
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

// Lost is how many frames were lost, for whatever reason.
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

// Set changes the rule for the next frames. A burst goes on if the new rule has bursts.
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

// Restart begins again with the random numbers of a new model. Counters go on.
func (m *Model) Restart(now time.Duration, seed uint64, r Rule) {
	m.rand, m.bad = rand.New(rand.NewPCG(seed, 0)), false
	m.Set(now, r)
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
func (m *Model) Next(now time.Duration, f Frame) (fate Fate) {
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
		return Fate{Lost: ByBlackout}
	case r.MaxSize > 0 && f.Size > r.MaxSize:
		c.LostForSize++
		return Fate{Lost: BySize}
	case m.bad && d.keep >= r.Burst.Keep:
		c.LostInBursts++
		return Fate{Lost: ByBurst}
	case d.loss < r.Loss:
		c.LostByChance++
		return Fate{Lost: ByChance}
	}
	left := now // the line
	if waiting := m.queue.bytes(now); r.Rate > 0 {
		if waiting > 0 && waiting+f.Size > r.Queue {
			c.LostInQueue++
			return Fate{Lost: ByQueue}
		}
		if f.ECT && r.MarkAbove > 0 && waiting > r.MarkAbove {
			fate.Mark = true
			c.Marked++
		}
		left = m.queue.add(now, f.Size, r.Rate)
	}
	fate.Copies = 1
	if d.duplicate < r.Duplicate {
		fate.Copies = 2
		c.Duplicated++
	}
	for i := range fate.Copies {
		d, to := &d.copies[i], &fate.Copy[i]
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
	return fate
}

// part is a share of a time.
func part(of time.Duration, share float64) time.Duration { return time.Duration(share * float64(of)) }

// queue is the frames that wait for the line, and the one on it.
type queue struct {
	frames []waiting // those before head have left
	head   int
	total  int // bytes
}

type waiting struct {
	left time.Duration // when it has left the line
	size int
}

// bytes is how much waits.
func (q *queue) bytes(now time.Duration) int {
	for q.head < len(q.frames) && q.frames[q.head].left <= now {
		q.total -= q.frames[q.head].size
		q.head++
	}
	if q.head == len(q.frames) {
		q.frames, q.head = q.frames[:0], 0
	}
	return q.total
}

// add appends a frame and says when it will have left.
func (q *queue) add(now time.Duration, size int, rate int64) time.Duration {
	if n := len(q.frames); n > 0 {
		now = max(now, q.frames[n-1].left)
	}
	if q.head > 64 && q.head*2 > len(q.frames) {
		q.frames = q.frames[:copy(q.frames, q.frames[q.head:])]
		q.head = 0
	}
	left := now + time.Duration(math.Ceil(float64(size)*8e9/float64(rate)))
	q.frames = append(q.frames, waiting{left, size})
	q.total += size
	return left
}
