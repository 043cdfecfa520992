package stack

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type alarm struct {
	timer timer
	rang  []instant
}

func (a *alarm) expired(s *Stack) { a.rang = append(a.rang, s.now) }

// Timers that are started, moved and stopped at random expire at the times of a model, an
// unordered list.
func TestTimers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	s := &Stack{timerAt: never}
	alarms := make([]alarm, 40)
	due := make([]instant, len(alarms))
	for i := range alarms {
		alarms[i].timer.owner = &alarms[i]
		due[i] = never
	}
	for range 20_000 {
		i := rnd.IntN(len(alarms))
		switch rnd.IntN(4) {
		case 0, 1:
			due[i] = s.now + 1 + instant(rnd.IntN(100))
			s.startTimer(&alarms[i].timer, due[i])
		case 2:
			due[i] = never
			s.stopTimer(&alarms[i].timer)
		case 3:
			s.now += instant(rnd.IntN(20))
			s.runTimers()
			for k := range alarms {
				want := due[k] <= s.now
				if got := len(alarms[k].rang) == 1; got != want || len(alarms[k].rang) > 1 {
					t.Fatalf("at %d: timer for %d rang at %v", s.now, due[k], alarms[k].rang)
				}
				alarms[k].rang = nil
				if want {
					due[k] = never
				}
			}
		}
		if first := slices.Min(due); s.timerAt != first {
			t.Fatalf("the first is due at %d, not at %d", first, s.timerAt)
		}
	}
}
