package wait_test

import (
	"testing"
	"time"

	"github.com/unet-go/unet/internal/wait"
)

// TestParseReadsModeNames: Parse reads the text of each mode and no other.
func TestParseReadsModeNames(t *testing.T) {
	for _, m := range []wait.Mode{wait.Adaptive, wait.Spin, wait.Block} {
		if got, err := wait.Parse(m.String()); err != nil || got != m {
			t.Errorf("%v read back as %v, %v", m, got, err)
		}
	}
	for _, s := range []string{"", "Spin", "poll", wait.Mode(3).String()} {
		if m, err := wait.Parse(s); err == nil {
			t.Errorf("Parse(%q) = %v", s, m)
		}
	}
}

// TestSpinnerSleepsAfterBudget counts the rounds of 10 us until each mode sleeps, with a budget of
// 50 us that begins when the first round ends, and after a restart.
func TestSpinnerSleepsAfterBudget(t *testing.T) {
	const most = 100
	for mode, want := range map[wait.Mode]int{wait.Adaptive: 6, wait.Spin: most, wait.Block: 0} {
		now := time.Hour
		s := wait.Spinner{Mode: mode, Budget: wait.DefaultBudget}
		for turn := range 2 {
			rounds := 0
			for ; s.On() && rounds < most; rounds++ {
				now += 10 * time.Microsecond
				s.Round(now)
			}
			if rounds != want {
				t.Errorf("%v, turn %d: sleeps after %d rounds, want %d", mode, turn, rounds, want)
			}
			s.Begin()
		}
	}
}

// TestSpinnerSkipsSpinsThatFindNothing: the more spins in a row have found nothing, the more waits sleep at once
// (s: it spins, .: it sleeps). After a spin that found something all waits spin again. What arrives during a sleep
// has no effect.
func TestSpinnerSkipsSpinsThatFindNothing(t *testing.T) {
	now := time.Hour
	s := wait.Spinner{Budget: wait.DefaultBudget}
	waits := func(n int, found bool) (spun string) {
		for range n {
			s.Begin()
			if !s.On() {
				spun += "."
			} else if spun += "s"; !found {
				for s.On() {
					now += 10 * time.Microsecond
					s.Round(now)
				}
			}
			s.Found()
		}
		return spun
	}
	for _, c := range []struct {
		found bool
		want  string
	}{{false, "ss.s...s.......s......."}, {false, "s......."}, {true, "ssss"}, {false, "ss.s"}, {true, "...ss"}} {
		if got := waits(len(c.want), c.found); got != c.want {
			t.Errorf("waits %s, want %s", got, c.want)
		}
	}
	s.Mode = wait.Spin
	if got := waits(3, true); got != "sss" {
		t.Errorf("spin: waits %s", got)
	}
}
