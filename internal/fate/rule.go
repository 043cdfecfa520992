package fate

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Rule says what one direction of a link does. The zero value passes everything on
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
// moment in which the rule was set. What was under way before arrives.
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
