package badday

import (
	"errors"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
	"github.com/unet-go/unet/internal/netlab/impair"
)

const (
	ms = time.Millisecond
	mb = 1 << 20
)

// days are rules for both directions, and how much is sent each way.
var days = []struct {
	name string
	rule impair.Rule
	size int
}{
	{"clean", impair.Rule{}, mb},
	{"loss 0.1 %", impair.Rule{Loss: 0.001}, mb},
	{"loss 1 %", impair.Rule{Loss: 0.01}, mb},
	{"loss 5 %", impair.Rule{Loss: 0.05}, mb},
	{"loss 30 %", impair.Rule{Loss: 0.3}, 64 << 10},
	{"bursts", impair.Rule{Burst: fate.Burst{Enter: 0.005, Leave: 0.25}}, mb},
	{"doubled", impair.Rule{Duplicate: 0.2}, mb},
	{"reordered", impair.Rule{Reorder: 0.1, HoldBack: 2 * ms}, mb},
	{"damaged", impair.Rule{Corrupt: 0.03}, mb},
	{"delay 1 ms", impair.Rule{Delay: ms}, mb},
	{"delay 10 ms and jitter", impair.Rule{Delay: 10 * ms, Jitter: 5 * ms}, mb},
	{"delay 50 ms", impair.Rule{Delay: 50 * ms}, mb},
	{"delay 50 ms and loss", impair.Rule{Delay: 50 * ms, Loss: 0.005}, mb},
	{"bottleneck", impair.Rule{Rate: 50e6, Queue: 30_000, Delay: 2 * ms}, mb},
	{"all at once", impair.Rule{Loss: 0.02, Duplicate: 0.02, Corrupt: 0.01, Reorder: 0.05, HoldBack: ms, Delay: 2 * ms, Jitter: ms}, mb},
	{"blackout", impair.Rule{Rate: 20e6, Blackout: fate.Blackout{After: 100 * ms, Length: time.Second}}, mb},
}

// TestExchange sends a text each way on each of the days, on connections that either
// side has dialled.
func TestExchange(t *testing.T) {
	for _, day := range days {
		t.Run(day.name, func(t *testing.T) {
			s := openScene(t)
			for _, dial := range []bool{true, false} {
				s.impair(day.rule, day.rule)
				if day.rule.Loss >= 0.3 { // a SYN that is lost costs a second, and a timeout that remembers it
					s.impair(impair.Rule{}, impair.Rule{})
				}
				ours, kernel := s.connect(t, dial)
				s.impair(day.rule, day.rule)
				if err := exchange(ours, kernel, day.size); err != nil {
					t.Errorf("dialled by us: %t: %v", dial, err)
				}
			}
			for d := range impair.Direction(2) {
				s.happened(t, d, day.rule)
			}
			if day.rule.Corrupt >= 0.03 && (s.counters()["tcp_bad_checksum"] == 0 || s.kernelFound(t) == 0) {
				t.Error("nobody has found damage")
			}
		})
	}
}

// happened looks whether a direction of the link was as bad as its rule says.
func (s *scene) happened(t *testing.T, d impair.Direction, r impair.Rule) {
	t.Helper()
	c := s.link.Counters(d)
	if c.Missed+c.Refused > 0 {
		t.Errorf("direction %d: the link itself has lost frames: %+v", d, c)
	}
	for _, x := range []struct {
		what     string
		expected bool
		n        uint64
	}{
		{"lost", r.Loss >= 0.01, c.LostByChance},
		{"lost in bursts", r.Burst.Enter > 0, c.LostInBursts},
		{"lost in the queue", r.Queue > 0, c.LostInQueue},
		{"lost in the blackout", r.Blackout.Length > 0, c.LostInBlackouts},
		{"doubled", r.Duplicate > 0, c.Duplicated},
		{"damaged", r.Corrupt > 0, c.Corrupted},
		{"held back", r.Reorder > 0, c.HeldBack},
	} {
		if x.expected && x.n == 0 {
			t.Errorf("direction %d: nothing was %s: %+v", d, x.what, c)
		}
	}
}

// TestOneWay: only one direction is bad, so that either only text or only
// acknowledgments are lost, of either side.
func TestOneWay(t *testing.T) {
	bad := impair.Rule{Loss: 0.1, Reorder: 0.1, HoldBack: ms}
	for _, c := range []struct {
		name       string
		aToB, bToA impair.Rule
	}{{"to the kernel", bad, impair.Rule{}}, {"to us", impair.Rule{}, bad}} {
		for _, sender := range []string{"we send", "the kernel sends"} {
			t.Run(c.name+"/"+sender, func(t *testing.T) {
				s := openScene(t)
				ours, kernel := s.connect(t, true)
				s.impair(c.aToB, c.bToA)
				from, to := ours, kernel
				if sender != "we send" {
					from, to = kernel, ours
				}
				if err := errors.Join(transfer(from, to, 1, mb), from.Close(), to.Close()); err != nil {
					t.Error(err)
				}
				s.happened(t, impair.AtoB, c.aToB)
				s.happened(t, impair.BtoA, c.bToA)
			})
		}
	}
}

// TestWeather changes the rules while text is under way, every fifty frames.
func TestWeather(t *testing.T) {
	const rate = 100e6 // so that it takes a while
	s := openScene(t)
	ours, kernel := s.connect(t, true)
	done := make(chan error, 1)
	s.impair(impair.Rule{Rate: rate}, impair.Rule{Rate: rate})
	go func() { done <- exchange(ours, kernel, 3*mb) }()
	changes := 0
	for frames := uint64(0); ; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			if changes < 10 {
				t.Errorf("the rules have changed %d times", changes)
			}
			for d := range impair.Direction(2) {
				s.happened(t, d, impair.Rule{Loss: 1, Duplicate: 1, Reorder: 1}) // the others are rare
			}
			return
		case <-time.After(ms):
		}
		if n := s.link.Counters(impair.AtoB).Frames; n >= frames+50 {
			frames = n
			changes++
			for d, k := range []int{changes % 10, (changes * 3) % 10} { // the days without a long delay
				r := days[k].rule
				r.Rate = rate
				s.link.Set(impair.Direction(d), r)
			}
		} else if s.link.Rule(impair.AtoB).Loss >= 0.3 || s.link.Rule(impair.BtoA).Loss >= 0.3 {
			s.impair(impair.Rule{Rate: rate}, impair.Rule{Rate: rate}) // a storm is short
		}
	}
}
