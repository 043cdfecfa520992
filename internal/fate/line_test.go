package fate_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

// TestLineDeliversWhatWasDecided holds a line against the fates that it has told.
func TestLineDeliversWhatWasDecided(t *testing.T) {
	r := rand.New(rand.NewPCG(seed, 9))
	l := fate.NewLine[int](seed, fate.Rule{Loss: 0.1, Duplicate: 0.1, Corrupt: 0.1, Delay: 50 * time.Microsecond, Jitter: 100 * time.Microsecond, Reorder: 0.3, HoldBack: time.Millisecond,
		Rate: 1e9, MarkAbove: 5000})
	type copy struct {
		item int
		fate.Copy
		mark bool
	}
	expected := map[copy]int{}
	now, last := time.Duration(0), time.Duration(0)
	overtaken, item, lastItem := 0, 0, -1
	for item < 20_000 || l.UnderWay() > 0 {
		now += time.Duration(r.IntN(30_000))
		for range r.IntN(3) {
			if item < 20_000 {
				f := l.Send(now, fate.Frame{Size: 60 + r.IntN(1455), ECT: true}, item)
				for _, c := range f.Copy[:f.Copies] {
					expected[copy{item, c, f.Mark}]++
				}
				item++
			}
		}
		for {
			next, underWay := l.Next()
			a, ok := l.Receive(now)
			if ok != (underWay && next <= now) || ok && a.At != next {
				t.Fatalf("next at %v (%t), received at %v: %+v (%t)", next, underWay, now, a, ok)
			}
			if !ok {
				break
			}
			if a.At < last {
				t.Fatalf("%v after %v", a.At, last)
			}
			last = a.At
			if a.Item < lastItem {
				overtaken++
			}
			lastItem = a.Item
			c := copy{a.Item, fate.Copy{At: a.At, Flip: a.Flip}, a.Mark}
			if expected[c]--; expected[c] < 0 {
				t.Fatalf("%+v was not to arrive", c)
			}
		}
	}
	for c, n := range expected {
		if n != 0 {
			t.Fatalf("%+v has not arrived", c)
		}
	}
	if overtaken == 0 {
		t.Error("nothing was overtaken")
	}
}

// TestOneMomentKeepsTheOrder: what is due at the same time arrives as it was sent.
func TestOneMomentKeepsTheOrder(t *testing.T) {
	l := fate.NewLine[int](seed, fate.Rule{})
	for i := range 1000 {
		l.Send(0, fate.Frame{Size: 60}, i)
	}
	for i := range 1000 {
		if a, ok := l.Receive(0); !ok || a.Item != i {
			t.Fatalf("%+v, %t instead of %d", a, ok, i)
		}
	}
}
