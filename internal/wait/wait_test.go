package wait_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/wait"
)

// TestSpinnerSleepsAfterBudget counts the rounds of 10 us until each mode sleeps, with a budget of
// 50 us that begins when the first round ends, and after a restart.
func TestSpinnerSleepsAfterBudget(t *testing.T) {
	const most = 100
	for mode, want := range map[endpoint.WaitMode]int{endpoint.WaitAdaptive: 6, endpoint.WaitSpin: most, endpoint.WaitBlock: 0} {
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
	s.Mode = endpoint.WaitSpin
	if got := waits(3, true); got != "sss" {
		t.Errorf("spin: waits %s", got)
	}
}

// TestSpinnerRestsAfterItLostTheProcessor: when something else had the processor during a round, no wait spins
// for 5 ms; when that is repeated, for 10, 20 and at most 320 ms; long after the last rest for 5 ms again.
func TestSpinnerRestsAfterItLostTheProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := wait.Spinner{Budget: wait.DefaultBudget}
		for _, c := range []struct{ after, want time.Duration }{{0, 5}, {0, 10}, {5, 20}, {79, 40}, {0, 80}, {0, 160}, {0, 320}, {0, 320}, {1281, 5}, {0, 10}} {
			time.Sleep(c.after * time.Millisecond)
			s.Begin()
			s.Round(time.Since(start))
			if !s.On() {
				t.Fatal("it does not spin")
			}
			time.Sleep(500 * time.Microsecond)
			s.Round(time.Since(start))
			lost := time.Now()
			if s.On() {
				t.Error("it spins on without the processor")
			}
			for s.Begin(); !s.On(); s.Begin() {
				time.Sleep(time.Millisecond)
			}
			if rest := time.Since(lost); rest != c.want*time.Millisecond {
				t.Errorf("no wait spun for %v, want %d ms", rest, c.want)
			}
		}
	})
}

// TestSpinnerKnowsWhetherTheNextWaitSleeps compares SleepsAgain with the next wait.
func TestSpinnerKnowsWhetherTheNextWaitSleeps(t *testing.T) {
	now := time.Hour
	for _, mode := range []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitSpin, endpoint.WaitBlock} {
		s := wait.Spinner{Mode: mode, Budget: wait.DefaultBudget}
		s.Begin()
		for n := range 50 {
			for i := 0; s.On() && i < 10; i++ {
				now += 10 * time.Microsecond
				s.Round(now)
			}
			again := s.SleepsAgain()
			if s.Begin(); again == s.On() {
				t.Errorf("%v: after %d waits SleepsAgain %v, and the next wait spins %v", mode, n, again, s.On())
			}
		}
	}
}

// TestYieldServesTheGlobalQueue: with GOMAXPROCS 1, in every mode, a goroutine that calls runtime.Gosched runs once
// for each Yield of one that waits, and not once for many.
func TestYieldServesTheGlobalQueue(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, mode := range []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitSpin, endpoint.WaitBlock} {
		s := wait.Spinner{Mode: mode, Budget: wait.DefaultBudget}
		s.Begin()
		var turns atomic.Int64
		var stop atomic.Bool
		done := make(chan bool)
		go func() {
			for !stop.Load() {
				turns.Add(1)
				runtime.Gosched()
			}
			close(done)
		}()
		runtime.Gosched()
		before := turns.Load()
		const yields = 1000
		for range yields {
			wait.Yield()
		}
		// The runtime's own goroutines take turns too.
		if n := turns.Load() - before; n < yields/2 {
			t.Errorf("%v: %d turns for %d yields", mode, n, yields)
		}
		stop.Store(true)
		<-done
	}
}
