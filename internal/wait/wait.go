// Package wait is how a goroutine waits for frames: it spins, sleeps, or spins
// for a budget and then sleeps.
package wait

import (
	"github.com/unet-go/unet/endpoint"
	"time"
)

const (
	// DefaultBudget is how long WaitAdaptive spins: about what a wake-up costs.
	DefaultBudget = 50 * time.Microsecond
	// Looks is how many times a goroutine looks in a round, about a microsecond.
	Looks = 256
	// mostSkipped is how many waits in a row sleep at once, at most.
	mostSkipped = 7
	// lostProcessor is how long a round lasts, at least, if something else got the processor.
	lostProcessor = 100 * time.Microsecond
	// The first and the longest rest after the processor was lost. It is the first again if the last one
	// ended more than forgetRest times its length ago.
	firstRest, longestRest = 5 * time.Millisecond, 320 * time.Millisecond
	forgetRest             = 4
	// beginsPerLook is in how many waits GOMAXPROCS is read once, which takes a lock of the scheduler.
	beginsPerLook = 64
)

// Spinner decides how long waits spin. Its owner writes the loop, so that a look
// costs no call:
//
//	spinner.Begin()
//	for spinner.On() {
//		wait.Yield()
//		for range wait.Looks {
//			if something() {
//				spinner.Found()
//				return
//			}
//		}
//		spinner.Round(now)
//	}
//
// A goroutine looks only while no other goroutine of its processor can run: these run before each
// round.
//
// WaitAdaptive does not spin where that is of no use. After two budgets in a row that have
// been used up, one wait sleeps at once, after three in a row three, after that seven; the next one
// spins again. What is found while it spins halves these numbers. So a process with a message now
// and then spares most of the processor time. Where something else computes on the processor, no wait spins
// for a while, a rest: another thread of the processor, since the kernel runs one that has slept sooner than one
// that spins; or another goroutine, since looks are of no use behind it.
type Spinner struct {
	Mode   endpoint.WaitMode
	Budget time.Duration // of WaitAdaptive

	until time.Duration // when the budget is used up; 0: no round has ended yet
	last  time.Duration // end of the last round
	over  bool
	begun uint8 // how many waits have begun
	skip  uint8 // waits that are to sleep at once
	skips uint8 // after the next budget that is used up

	resting bool // no wait spins before restEnd
	restEnd time.Time
	rest    time.Duration // the length of the last rest
}

// Begin begins a wait, or another part of it with a budget of its own, because something has arrived.
func (s *Spinner) Begin() {
	if s.begun%beginsPerLook == 0 {
		noteProcessors()
	}
	s.begun++
	s.until, s.over = 0, s.skip > 0
	switch {
	case s.over:
		s.skip--
	case s.resting:
		s.resting = time.Now().Before(s.restEnd)
		s.over = s.resting
	}
}

// Found says that something has arrived.
func (s *Spinner) Found() {
	if !s.over {
		s.skips /= 2
	}
}

// On reports whether to spin for another round, and not to sleep.
func (s *Spinner) On() bool {
	return s.Mode == endpoint.WaitSpin || s.Mode == endpoint.WaitAdaptive && !s.over
}

// Round ends a round that found nothing. now is the time on a clock that does not go
// back.
func (s *Spinner) Round(now time.Duration) {
	switch {
	case s.until == 0:
		s.until = now + s.Budget
	case s.Mode == endpoint.WaitAdaptive && now-s.last >= lostProcessor:
		s.over = true
		s.beginRest(time.Now())
	case now >= s.until:
		s.over = true
		s.skip, s.skips = s.skips, min(2*s.skips+1, mostSkipped)
	}
	s.last = now
}

func (s *Spinner) beginRest(now time.Time) {
	if now.Sub(s.restEnd) > forgetRest*s.rest {
		s.rest = firstRest
	} else {
		s.rest = min(2*s.rest, longestRest)
	}
	s.resting, s.restEnd = true, now.Add(s.rest)
}

// SleepsAgain reports whether the next wait will sleep at once because of what this one or earlier ones have
// found. A rest, which can end before, does not count.
func (s *Spinner) SleepsAgain() bool {
	return s.Mode == endpoint.WaitBlock || s.Mode == endpoint.WaitAdaptive && s.skip > 0
}
