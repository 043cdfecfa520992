// Package wait is how a goroutine waits for frames: it spins, sleeps, or spins
// for a budget and then sleeps.
package wait

import (
	"fmt"
	"runtime"
	"time"
)

// Mode is how a goroutine waits.
type Mode uint8

const (
	Adaptive Mode = iota // spin for a budget, then sleep
	Spin                 // never sleep: the lowest latency, and a processor of its own
	Block                // sleep at once: a wake-up costs tens of microseconds
)

var names = [...]string{Adaptive: "adaptive", Spin: "spin", Block: "block"}

func (m Mode) String() string {
	if int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("invalid wait mode %d", uint8(m))
}

// Parse is the inverse of [Mode.String].
func Parse(s string) (Mode, error) {
	for m, name := range names {
		if s == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("wait mode %q: want spin, adaptive or block", s)
}

const (
	// DefaultBudget is how long Adaptive spins: about what a wake-up costs.
	DefaultBudget = 50 * time.Microsecond
	// Looks is how many times a goroutine looks in a round, some microseconds.
	Looks = 1024
	// roundsPerYield is how many rounds pass until other goroutines of the
	// processor may run.
	roundsPerYield = 8
	// mostSkipped is how many waits in a row sleep at once, at most.
	mostSkipped = 7
)

// Spinner decides how long waits spin. Its owner writes the loop, so that a look
// costs no call:
//
//	spinner.Begin()
//	for spinner.On() {
//		for range wait.Looks {
//			if something() {
//				spinner.Found()
//				return
//			}
//		}
//		spinner.Round(now)
//	}
//
// Adaptive does not spin where that has been of no use: after two budgets in a row that have
// been used up, one wait sleeps at once, after three in a row three, after that seven; the next one
// spins again. What is found while it spins halves these numbers. So a process with a message now
// and then spares most of the processor time, and two processes whose threads share a processor do
// not keep each other from running.
type Spinner struct {
	Mode   Mode
	Budget time.Duration // of Adaptive

	rounds uint
	until  time.Duration // when the budget is used up; 0: no round has ended yet
	over   bool
	skip   uint8 // waits that are to sleep at once
	skips  uint8 // after the next budget that is used up
}

// Begin begins a wait, or another part of it with a budget of its own, because something has arrived.
func (s *Spinner) Begin() {
	s.until, s.over = 0, s.skip > 0
	if s.over {
		s.skip--
	}
}

// Found says that something has arrived.
func (s *Spinner) Found() {
	if !s.over {
		s.skips /= 2
	}
}

// On reports whether to spin for another round, and not to sleep.
func (s *Spinner) On() bool { return s.Mode == Spin || s.Mode == Adaptive && !s.over }

// Round ends a round that found nothing. now is the time on a clock that does not go
// back. Every 8 rounds other goroutines of the processor run.
func (s *Spinner) Round(now time.Duration) {
	if s.until == 0 {
		s.until = now + s.Budget
	} else if now >= s.until {
		s.over = true
		s.skip, s.skips = s.skips, min(2*s.skips+1, mostSkipped)
	}
	if s.rounds++; s.rounds%roundsPerYield == 0 {
		runtime.Gosched()
	}
}
