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
)

// Spinner decides how long one wait spins. Its owner writes the loop, so that a look
// costs no call:
//
//	for spinner.On() {
//		for range wait.Looks {
//			if something() {
//				return
//			}
//		}
//		spinner.Round(now)
//	}
type Spinner struct {
	Mode   Mode
	Budget time.Duration // of Adaptive

	rounds uint
	until  time.Duration // when the budget is used up; 0: no round has ended yet
	over   bool
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
	}
	if s.rounds++; s.rounds%roundsPerYield == 0 {
		runtime.Gosched()
	}
}

// Restart gives the whole budget again, because something has arrived.
func (s *Spinner) Restart() { s.until, s.over = 0, false }
