package stack

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type testTimer struct {
	timer       timer
	expirations []instant
}

func (a *testTimer) expired(s *Stack) { a.expirations = append(a.expirations, s.now) }

// Timers that are started, moved and stopped at random expire at the times of a model, an
// unordered list.
func TestTimers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	s := &Stack{guarded: guarded{timerAt: never}}
	timers := make([]testTimer, 40)
	due := make([]instant, len(timers))
	for i := range timers {
		timers[i].timer.owner = &timers[i]
		due[i] = never
	}
	for range 20_000 {
		i := rnd.IntN(len(timers))
		switch rnd.IntN(4) {
		case 0, 1:
			due[i] = s.now + 1 + instant(rnd.IntN(100))
			s.startTimer(&timers[i].timer, due[i])
		case 2:
			due[i] = never
			s.stopTimer(&timers[i].timer)
		case 3:
			s.now += instant(rnd.IntN(20))
			s.runTimers()
			for k := range timers {
				want := due[k] <= s.now
				if got := len(timers[k].expirations) == 1; got != want || len(timers[k].expirations) > 1 {
					t.Fatalf("at %d: timer for %d expired at %v", s.now, due[k], timers[k].expirations)
				}
				timers[k].expirations = nil
				if want {
					due[k] = never
				}
			}
		}
		if first := slices.Min(due); s.timerAt != first {
			t.Fatalf("the next timer expires at %d, want %d", s.timerAt, first)
		}
	}
}
