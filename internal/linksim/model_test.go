package linksim_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
)

const seed = 20261121

var full = linksim.Frame{Size: 1514}

// outcomes are those of n full frames that are sent one a microsecond.
func outcomes(r linksim.Rule, n int) []linksim.Outcome {
	m := linksim.New(seed, r)
	out := make([]linksim.Outcome, n)
	for i := range out {
		out[i] = m.Next(time.Duration(i)*time.Microsecond, full)
	}
	return out
}

func plausible(t *testing.T, what string, k, n uint64, p float64) {
	t.Helper()
	if !linksim.Plausible(k, n, p) {
		t.Errorf("%s: %d of %d, with probability %v", what, k, n, p)
	}
}

// TestPlausibleAgainstBinomialDistribution compares the bound with exact sums of the binomial
// distribution.
func TestPlausibleAgainstBinomialDistribution(t *testing.T) {
	for _, c := range []struct {
		n uint64
		p float64
	}{{40, 0.5}, {1000, 0.01}, {1000, 0.3}, {5000, 0.999}} {
		wrong, all := 0.0, 0.0
		for k := range c.n + 1 {
			lg := func(x uint64) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
			chance := math.Exp(lg(c.n) - lg(k) - lg(c.n-k) + float64(k)*math.Log(c.p) + float64(c.n-k)*math.Log(1-c.p))
			if all += chance; !linksim.Plausible(k, c.n, c.p) {
				wrong += chance
			}
		}
		if math.Abs(all-1) > 1e-6 || wrong > 1e-9 || wrong < 1e-13 {
			t.Errorf("n %d, p %v: a right model is rejected with probability %v; the sum of all probabilities is %v", c.n, c.p, wrong, all)
		}
	}
	for _, c := range []struct {
		k, n uint64
		p    float64
		want bool
	}{{0, 10, 0, true}, {1, 10, 0, false}, {10, 10, 1, true}, {9, 10, 1, false}, {0, 0, 0.5, true}, {300, 1000, 0.1, false}} {
		if got := linksim.Plausible(c.k, c.n, c.p); got != c.want {
			t.Errorf("%d of %d, p %v: %t", c.k, c.n, c.p, got)
		}
	}
}

// TestSharesMatchProbabilities: as many frames are lost, duplicated, corrupted and held back as the
// probabilities of the rule say.
func TestSharesMatchProbabilities(t *testing.T) {
	const n = 200_000
	for _, p := range []float64{0, 0.0001, 0.01, 0.05, 0.3, 1} {
		r := linksim.Rule{Loss: p, Duplicate: p, Corrupt: p, Reorder: p, HoldBack: time.Second}
		m := linksim.New(seed, r)
		for i := range n {
			m.Next(time.Duration(i), full)
		}
		c := m.Counters()
		arrived := c.Frames - c.Lost()
		plausible(t, "lost", c.LostByChance, n, p)
		plausible(t, "duplicated", c.Duplicated, arrived, p)
		plausible(t, "corrupted", c.Corrupted, c.Copies(), p)
		plausible(t, "held back", c.HeldBack, c.Copies(), p)
		if c.Frames != n || c.Bytes != n*1514 || c.Lost() != c.LostByChance || c.Marked != 0 {
			t.Errorf("%+v", c)
		}
	}
}

// TestCountersMatchOutcomes: the counters agree with the outcomes that Next returned.
func TestCountersMatchOutcomes(t *testing.T) {
	r := linksim.Rule{Loss: 0.1, Burst: linksim.Burst{Enter: 0.01, Leave: 0.2, Keep: 0.1}, Duplicate: 0.1, Corrupt: 0.1, Rate: 8e9, Queue: 50_000, MarkAbove: 20_000,
		Blackout: linksim.Blackout{After: time.Millisecond, Length: time.Millisecond, Every: 5 * time.Millisecond}}
	m := linksim.New(seed, r)
	causes := map[linksim.Cause]uint64{}
	var marked, duplicated, flipped, copies uint64
	const n = 100_000
	for i := range n {
		f := m.Next(time.Duration(i)*time.Microsecond, linksim.Frame{Size: 1514, ECT: true})
		causes[f.Lost]++
		if f.Mark {
			marked++
		}
		if f.Copies == 2 {
			duplicated++
		}
		if (f.Lost == linksim.Arrives) != (f.Copies > 0) {
			t.Fatalf("frame %d: %+v", i, f)
		}
		for _, c := range f.Copy[:f.Copies] {
			copies++
			if c.Flip >= 0 {
				flipped++
			}
		}
	}
	c := m.Counters()
	want := linksim.Counters{Frames: n, Bytes: n * 1514, LostByChance: causes[linksim.ByChance], LostInBursts: causes[linksim.ByBurst], LostInQueue: causes[linksim.ByQueue],
		LostInBlackouts: causes[linksim.ByBlackout], Marked: marked, Duplicated: duplicated, Corrupted: flipped}
	if c != want || c.Copies() != copies {
		t.Errorf("counted %+v, want %+v and %d copies", c, want, copies)
	}
	for _, n := range []uint64{c.LostByChance, c.LostInBursts, c.LostInQueue, c.LostInBlackouts, marked, duplicated, flipped} {
		if n == 0 {
			t.Errorf("a kind of loss or change never happens: %+v", c)
		}
	}
}

// TestBurstsMatchProbabilities compares the numbers of bursts that begin and end with their
// probabilities.
func TestBurstsMatchProbabilities(t *testing.T) {
	b := linksim.Burst{Enter: 0.01, Leave: 0.25}
	var good, entered, bad, left uint64
	was := false
	for _, f := range outcomes(linksim.Rule{Burst: b}, 300_000) {
		is := f.Lost == linksim.ByBurst
		if was {
			if bad++; !is {
				left++
			}
		} else {
			if good++; is {
				entered++
			}
		}
		was = is
	}
	plausible(t, "bursts begun", entered, good, b.Enter)
	plausible(t, "bursts ended", left, bad, b.Leave)

	// A rule without bursts ends a burst.
	m := linksim.New(seed, linksim.Rule{Burst: linksim.Burst{Enter: 1}})
	if f := m.Next(0, full); f.Lost != linksim.ByBurst {
		t.Errorf("%+v", f)
	}
	m.Set(0, linksim.Rule{})
	if f := m.Next(0, full); f.Lost != linksim.Arrives {
		t.Errorf("after the change: %+v", f)
	}

	b.Keep = 0.3
	whole, kept := outcomes(linksim.Rule{Burst: linksim.Burst{Enter: b.Enter, Leave: b.Leave}}, 300_000), outcomes(linksim.Rule{Burst: b}, 300_000)
	var in, survived uint64
	for i := range whole {
		if whole[i].Lost == linksim.ByBurst {
			if in++; kept[i].Lost == linksim.Arrives {
				survived++
			}
		} else if kept[i].Lost != linksim.Arrives {
			t.Fatalf("frame %d is lost outside a burst", i)
		}
	}
	plausible(t, "survive a burst", survived, in, b.Keep)
}

// TestOutcomeDependsOnSeedAndFrameNumber: the outcome of a frame does not depend on the time, on its
// size, or on other parts of the rule.
func TestOutcomeDependsOnSeedAndFrameNumber(t *testing.T) {
	const n = 20_000
	r := linksim.Rule{Loss: 0.1, Burst: linksim.Burst{Enter: 0.02, Leave: 0.3}, Duplicate: 0.2, Corrupt: 0.1}
	want := outcomes(r, n)
	for i, f := range outcomes(r, n) {
		if f != want[i] {
			t.Fatalf("frame %d: %+v, at first %+v", i, f, want[i])
		}
	}
	other := r
	other.Delay, other.Jitter, other.Reorder, other.HoldBack = time.Millisecond, time.Second, 0.3, time.Second
	other.Rate, other.Queue = 1e6, math.MaxInt
	m := linksim.New(seed, other)
	for i := range n {
		f := m.Next(time.Duration(i)*time.Second, linksim.Frame{Size: 60 + i%1000})
		if f.Lost != want[i].Lost || f.Copies != want[i].Copies {
			t.Fatalf("frame %d: %+v on another link, %+v on the first", i, f, want[i])
		}
		for k, c := range f.Copy[:f.Copies] {
			if (c.Flip < 0) != (want[i].Copy[k].Flip < 0) {
				t.Fatalf("frame %d, copy %d: flips %d, %d on the first", i, k, c.Flip, want[i].Copy[k].Flip)
			}
		}
	}
	// Another rule for a while, and a rule with more losses.
	m = linksim.New(seed, r)
	more := r
	more.Loss = 0.5
	for i, f := range outcomes(more, n) {
		if want[i].Lost == linksim.ByChance && f.Lost != linksim.ByChance {
			t.Fatalf("frame %d is lost at 10 %% and not at 50 %%", i)
		}
		at := time.Duration(i) * time.Microsecond
		if i == 1000 {
			m.Set(at, linksim.Rule{Burst: r.Burst, Blackout: linksim.Down})
		} else if i == 2000 {
			m.Set(at, r)
		}
		switch f := m.Next(at, full); {
		case i >= 1000 && i < 2000:
			if f.Lost != linksim.ByBlackout {
				t.Fatalf("frame %d in the blackout: %+v", i, f)
			}
		case f.Lost != want[i].Lost || f.Copies != want[i].Copies:
			t.Fatalf("frame %d: %+v with a blackout before, %+v without", i, f, want[i])
		}
	}
	// Frames that are too large are lost. The outcomes of the others do not change.
	narrow := r
	narrow.MaxSize = full.Size
	m = linksim.New(seed, narrow)
	for i := range n / 2 {
		at := time.Duration(i) * time.Microsecond
		f := m.Next(at, linksim.Frame{Size: full.Size + i%2})
		if i%2 == 1 && f.Lost != linksim.BySize || i%2 == 0 && (f.Lost != want[i].Lost || f.Copies != want[i].Copies) {
			t.Fatalf("frame %d of %d bytes: %+v", i, full.Size+i%2, f)
		}
	}
	if c := m.Counters(); c.LostForSize != uint64(n/4) {
		t.Errorf("%d were too large", c.LostForSize)
	}
	if a, b := linksim.New(1, r), linksim.New(2, r); func() bool {
		for i := range 1000 {
			if a.Next(time.Duration(i), full).Lost != b.Next(time.Duration(i), full).Lost {
				return false
			}
		}
		return true
	}() {
		t.Error("two seeds have the same losses")
	}
}

// TestFramesKeepOrderUnlessHeldBack: Jitter and changes of Delay do not change the order of frames.
func TestFramesKeepOrderUnlessHeldBack(t *testing.T) {
	const ms = time.Millisecond
	last := time.Duration(0)
	for i, f := range outcomes(linksim.Rule{Delay: ms, Jitter: 5 * ms, Duplicate: 0.1}, 50_000) {
		sent := time.Duration(i) * time.Microsecond
		for _, c := range f.Copy[:f.Copies] {
			if c.At < last || c.At < sent+ms || c.At > sent+6*ms {
				t.Fatalf("frame %d, sent at %v, arrives at %v, the last one at %v", i, sent, c.At, last)
			}
			last = c.At
		}
	}
	// Frames are held back for an evenly distributed part of HoldBack. The others do not wait.
	var early, held uint64
	for i, f := range outcomes(linksim.Rule{Delay: ms, Reorder: 0.1, HoldBack: 10 * ms}, 100_000) {
		late := f.Copy[0].At - time.Duration(i)*time.Microsecond - ms
		if late < 0 || late >= 10*ms {
			t.Fatalf("frame %d is %v late", i, late)
		}
		if late > 0 {
			held++
		}
		if late > 0 && late < 3*ms {
			early++
		}
	}
	plausible(t, "held back", held, 100_000, 0.1)
	plausible(t, "held back for less than 3 of 10 ms", early, held, 0.3)
	// A shorter delay overtakes nothing.
	m := linksim.New(seed, linksim.Rule{Delay: 10 * ms})
	first := m.Next(0, full).Copy[0].At
	m.Set(ms, linksim.Rule{Delay: ms})
	if second := m.Next(ms, full).Copy[0].At; first != 10*ms || second != first {
		t.Errorf("arrivals at %v and %v", first, second)
	}
}

// TestFlippedBitsAreEvenlyDistributed: corruption flips bits in all quarters of a frame, and all bits
// of a byte.
func TestFlippedBitsAreEvenlyDistributed(t *testing.T) {
	var quarter [4]uint64
	bits := map[int]bool{}
	for _, f := range outcomes(linksim.Rule{Corrupt: 1}, 100_000) {
		flip := f.Copy[0].Flip
		if flip < 0 || flip >= 8*1514 {
			t.Fatalf("flips bit %d", flip)
		}
		quarter[flip*4/(8*1514)]++
		bits[flip%8] = true
	}
	for _, n := range quarter {
		plausible(t, "flips in a quarter", n, 100_000, 0.25)
	}
	if len(bits) != 8 {
		t.Errorf("bits %v of a byte", bits)
	}
}

// TestRateAndQueue: frames leave at the rate, and those that do not fit the queue are lost.
func TestRateAndQueue(t *testing.T) {
	const ms = time.Millisecond
	// 1000 bytes take a millisecond at 8 Mb/s; three fit the queue.
	m := linksim.New(seed, linksim.Rule{Rate: 8e6, Queue: 3500, MarkAbove: 1500, Delay: 100 * ms})
	for i, c := range []struct {
		at   time.Duration
		size int
		ect  bool
		lost linksim.Cause
		mark bool
		want time.Duration // when it has left the line
	}{
		{0, 1000, true, linksim.Arrives, false, ms},          // finds nothing
		{0, 1000, true, linksim.Arrives, false, 2 * ms},      // finds 1000
		{0, 1000, true, linksim.Arrives, true, 3 * ms},       // 2000
		{0, 501, true, linksim.ByQueue, false, 0},            // 3000
		{0, 500, false, linksim.Arrives, false, 3500 * 1000}, // 3000, and may not be marked
		{ms - 1, 1, true, linksim.ByQueue, false, 0},
		{ms, 1000, true, linksim.Arrives, true, 4500 * 1000}, // 2500: the first has left
		{10 * ms, 9000, true, linksim.Arrives, false, 19 * ms},
		{10 * ms, 1, true, linksim.ByQueue, false, 0},
		{19 * ms, 1, true, linksim.Arrives, false, 19*ms + 1000},
	} {
		f := m.Next(c.at, linksim.Frame{Size: c.size, ECT: c.ect})
		if f.Lost != c.lost || f.Mark != c.mark || c.lost == linksim.Arrives && f.Copy[0].At != c.want+100*ms {
			t.Errorf("frame %d: %+v, want %+v", i, f, c)
		}
	}
	// Half the load is lost at twice the rate, and what arrives comes at the rate.
	m = linksim.New(seed, linksim.Rule{Rate: 1e9, Queue: 30_000})
	gap := time.Duration(1514 * 8 / 2)
	var last time.Duration
	arrived := 0
	for i := range 10_000 {
		if f := m.Next(time.Duration(i)*gap, full); f.Lost == linksim.Arrives {
			if arrived > 0 && f.Copy[0].At-last != 2*gap {
				t.Fatalf("frame %d arrives %v after the last one", i, f.Copy[0].At-last)
			}
			last = f.Copy[0].At
			arrived++
		}
	}
	if arrived < 5000 || arrived > 5000+30_000/1514+1 {
		t.Errorf("%d frames of 10000 have arrived", arrived)
	}
	// Without a rate there is no queue, only the order.
	m.Set(last, linksim.Rule{})
	if at := m.Next(last, full).Copy[0].At; at != last {
		t.Errorf("arrives at %v, sent at %v", at, last)
	}
}

func TestBlackouts(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		b    linksim.Blackout
		down string // in each second since the rule
	}{
		{linksim.Blackout{}, "........"},
		{linksim.Down, "########"},
		{linksim.Blackout{After: 2 * s, Length: 3 * s}, "..###..."},
		{linksim.Blackout{After: s, Length: s, Every: 3 * s}, ".#..#..#"},
		{linksim.Blackout{Length: s, Every: 2 * s}, "#.#.#.#."},
	} {
		m := linksim.New(seed, linksim.Rule{})
		m.Set(100*s, linksim.Rule{Blackout: c.b})
		var got strings.Builder
		for i := range len(c.down) {
			first, last := m.Next(time.Duration(100+i)*s, full), m.Next(time.Duration(101+i)*s-1, full)
			switch {
			case first != last && first.Lost != last.Lost:
				got.WriteByte('?')
			case first.Lost == linksim.ByBlackout:
				got.WriteByte('#')
			default:
				got.WriteByte('.')
			}
		}
		if got.String() != c.down {
			t.Errorf("%+v: %s, want %s", c.b, got.String(), c.down)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, r := range []linksim.Rule{
		{Loss: -0.1}, {Loss: 1.1}, {Loss: math.NaN()}, {Burst: linksim.Burst{Enter: 2}}, {Burst: linksim.Burst{Leave: 2}}, {Burst: linksim.Burst{Keep: 2}}, {Duplicate: 2}, {Corrupt: 2},
		{Reorder: 2, HoldBack: 1}, {Reorder: 0.1}, {Delay: -1}, {Jitter: -1}, {HoldBack: -1}, {Rate: -1}, {Queue: 1}, {MarkAbove: 1}, {Rate: 1, Queue: -1},
		{Rate: 1, MarkAbove: -1}, {MaxSize: -1}, {Blackout: linksim.Blackout{After: -1}}, {Blackout: linksim.Blackout{Length: -1}}, {Blackout: linksim.Blackout{Every: -1}},
	} {
		if r.Validate() == nil {
			t.Errorf("%+v is valid", r)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was set", r)
				}
			}()
			linksim.New(1, r)
		}()
	}
	if err := (linksim.Rule{Loss: 1, Reorder: 1, HoldBack: 1, Rate: 1, Queue: 1, MarkAbove: 1, Blackout: linksim.Down}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestLinkDeliversOutcomesOfSend compares what a link delivers with the outcomes that Send returned.
func TestLinkDeliversOutcomesOfSend(t *testing.T) {
	r := rand.New(rand.NewPCG(seed, 9))
	l := linksim.NewLink[int](seed, linksim.Rule{Loss: 0.1, Duplicate: 0.1, Corrupt: 0.1, Delay: 50 * time.Microsecond, Jitter: 100 * time.Microsecond, Reorder: 0.3, HoldBack: time.Millisecond,
		Rate: 1e9, MarkAbove: 5000})
	type copy struct {
		item int
		linksim.Copy
		mark bool
	}
	expected := map[copy]int{}
	now, last := time.Duration(0), time.Duration(0)
	overtaken, item, lastItem := 0, 0, -1
	for item < 20_000 || l.InFlight() > 0 {
		now += time.Duration(r.IntN(30_000))
		for range r.IntN(3) {
			if item < 20_000 {
				f := l.Send(now, linksim.Frame{Size: 60 + r.IntN(1455), ECT: true}, item)
				for _, c := range f.Copy[:f.Copies] {
					expected[copy{item, c, f.Mark}]++
				}
				item++
			}
		}
		for {
			next, inFlight := l.Next()
			a, ok := l.Receive(now)
			if ok != (inFlight && next <= now) || ok && a.At != next {
				t.Fatalf("next at %v (%t), received at %v: %+v (%t)", next, inFlight, now, a, ok)
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
			c := copy{a.Item, linksim.Copy{At: a.At, Flip: a.Flip}, a.Mark}
			if expected[c]--; expected[c] < 0 {
				t.Fatalf("%+v has arrived, and was in no outcome", c)
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

// TestFramesDueAtTheSameTimeKeepOrder: frames that are due at the same time arrive in the order in
// which they were sent.
func TestFramesDueAtTheSameTimeKeepOrder(t *testing.T) {
	l := linksim.NewLink[int](seed, linksim.Rule{})
	for i := range 1000 {
		l.Send(0, linksim.Frame{Size: 60}, i)
	}
	for i := range 1000 {
		if a, ok := l.Receive(0); !ok || a.Item != i {
			t.Fatalf("%+v, %t instead of %d", a, ok, i)
		}
	}
}
