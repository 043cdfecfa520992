package tcp

import (
	"math"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
)

// Slow start, congestion avoidance and the reaction to a timeout (RFC 5681, section 3.1), from the
// initial window of RFC 6928.
func TestReno(t *testing.T) {
	for mss, want := range map[int]int{100: 1000, 536: 5360, 1460: 14600, 1448: 14480, 2000: 14600, 8960: 17920} {
		if r := newReno(mss); r.Window() != want {
			t.Errorf("MSS %d: initial window %d, want %d", mss, r.Window(), want)
		}
	}
	r := newReno(1000)
	acked := func(bytes, inFlight int) { r.Acked(0, Acked{Bytes: bytes, InFlight: inFlight}) }
	check := func(window, threshold int, what string) {
		t.Helper()
		if r.Window() != window || r.threshold != threshold {
			t.Errorf("%s: window %d, threshold %d, want %d and %d", what, r.Window(), r.threshold, window, threshold)
		}
	}
	acked(1000, 1000)
	check(10000, maxBuffer, "with one segment of ten in flight")
	for range 10 {
		acked(1000, r.Window())
	}
	check(20000, maxBuffer, "after a round trip of slow start")
	acked(20000, 20000)
	check(22000, maxBuffer, "after one ACK of all, which counts for two segments")
	r.Reduce(0, 20000)
	check(10000, 10000, "after a loss")
	r.Collapse()
	check(1000, 10000, "after a timeout")
	r.Collapse()
	check(1000, 10000, "after a second timeout")
	acked(1000, 1000)
	acked(1000, 2000)
	acked(1000, 2000)
	check(4000, 10000, "after two round trips more")
	for r.Window() < 10000 {
		acked(1000, r.Window())
	}
	for range 10 { // a round trip above the threshold is one segment
		check(10000, 10000, "during a round trip of congestion avoidance")
		acked(1000, r.Window())
	}
	check(11000, 10000, "after a round trip of congestion avoidance")
	idleRounds := func() { // two round trips with one segment in flight
		r.Acked(0, Acked{InFlight: 1000, Round: true})
		r.Acked(0, Acked{InFlight: 1000, Round: true})
	}
	r.Reduce(0, 1000)
	check(5500, 5500, "after a loss: half of what was in flight in the last round trips")
	r.Undo()
	idleRounds()
	r.Reduce(0, 1000)
	check(2000, 2000, "after a loss: two segments at least")
	r.Undo()
	check(11000, 10000, "after Undo")
	r.Reduce(0, 50000)
	check(5500, 5500, "after a loss: data in flight beyond the window does not count")
	r.SetMSS(9000)
	check(9000, 5500, "after SetMSS: a segment at least")
}

// A congestion window that is not used does not grow, and is halved every five minutes, down to the
// initial window, whether nothing is sent or only little (RFC 7661).
func TestUnusedCongestionWindowHalves(t *testing.T) {
	const minute = Time(time.Minute)
	for name, c := range map[string]Congestion{"reno": NewReno(1000), "cubic": NewCubic(1000)} {
		now := 100 * minute
		acked := func(n, inFlight int) {
			for range n {
				c.Acked(now, Acked{Bytes: 1000, InFlight: inFlight})
			}
		}
		check := func(want int, what string) {
			t.Helper()
			if c.Window() != want {
				t.Errorf("%s: window %d %s, want %d", name, c.Window(), what, want)
			}
		}
		for range 190 {
			acked(1, c.Window())
		}
		check(200000, "after slow start")
		acked(50, 20000)
		check(200000, "with a tenth in flight")
		now += 5*minute - 1
		c.Idle(now)
		check(200000, "before five minutes have passed")
		now++
		c.Idle(now)
		check(100000, "after idling")
		now += 4 * minute
		acked(1, 1000)
		check(100000, "four minutes later")
		now += minute
		acked(1, 1000)
		check(50000, "after sending little")
		now += 10 * minute
		c.Idle(now)
		check(12500, "after idling twice as long")
		now += 100 * minute
		acked(1, 1000)
		check(10000, "after a hundred minutes: the initial window")
		c.Reduce(now, 4000)
		c.Collapse()
		check(1000, "after a timeout")
		now += 100 * minute
		c.Idle(now)
		check(1000, "after idling with one segment")
	}
}

// If the SYN was sent again more than once the initial window is one segment (RFC 6928, section 2).
func TestInitialWindowAfterLostSYNs(t *testing.T) {
	for lost, want := range []int{14480, 14480, 1448, 1448} {
		net := newNetwork(t, 1, [2]Config{})
		net.impair(0, linksim.Rule{Blackout: linksim.Blackout{Length: max(0, time.Duration(1<<lost-1)*time.Second-1)}}) // the SYN goes out after 0, 1, 3, 7 seconds
		net.listen(Options{})
		c := net.dial(Options{})
		for c.State() != Established {
			net.step(Never)
		}
		if got := c.Info().CongestionWindow; got != want {
			t.Errorf("%d SYNs lost: window %d, want %d", lost, got, want)
		}
	}
}

// cubicModel is RFC 9438, section 4, for a sender that always uses its window and receives an
// acknowledgment for each segment, in floats of segments and seconds. It begins at the first congestion
// event, with a window of w0. wMaxBefore is W_max before that.
type cubicModel struct {
	wMax, prior, cwnd, est, k float64
}

func newCubicModel(w0, wMaxBefore float64) *cubicModel {
	m := &cubicModel{wMax: w0, prior: w0, cwnd: 0.7 * w0}
	if w0 < wMaxBefore {
		m.wMax = w0 * (1 + 0.7) / 2
	}
	m.est = m.cwnd
	m.k = math.Pow((m.wMax-m.cwnd)/0.4, 1./3)
	return m
}

func (m *cubicModel) w(t float64) float64 { return 0.4*math.Pow(t-m.k, 3) + m.wMax }

func (m *cubicModel) ack(t, rtt float64) {
	alpha := 3 * (1 - 0.7) / (1 + 0.7)
	if m.est >= m.prior {
		alpha = 1
	}
	m.est += alpha / m.cwnd
	if m.w(t) < m.est {
		m.cwnd = math.Max(m.cwnd, m.est)
		return
	}
	target := math.Min(math.Max(m.w(t+rtt), m.cwnd), 1.5*m.cwnd)
	m.cwnd += (target - m.cwnd) / m.cwnd
}

// CUBIC is compared with the model, and with some windows that were computed by hand: concave growth up to
// W_max, convex growth after it, growth as Reno's on a short path, and fast convergence.
func TestCubic(t *testing.T) {
	const mss = 1000
	for _, path := range []struct {
		name       string
		w0         int
		wMaxBefore float64
		rtt        time.Duration
		after      []time.Duration
		golden     []float64 // the window in segments, computed by hand; 0: only the model
	}{
		// K = cbrt(1000*0.3/0.4) = 9.086 s: W(K) = W_max, W(2K) = W_max + 300.
		{"long", 1000, 0, 100 * time.Millisecond, []time.Duration{time.Second, 4500 * time.Millisecond, 9086 * time.Millisecond, 18172 * time.Millisecond}, []float64{788.5, 961.4, 1000, 1300}},
		// Reno needs a round trip of 1 ms for 0.53 of a segment: after 57 round
		// trips 7 + 30 segments, when the cubic function has hardly begun.
		{"short", 10, 0, time.Millisecond, []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond}, []float64{0, 0, 0}},
		// W_max is 850, K = cbrt(150/0.4) = 7.211 s.
		{"fast convergence", 1000, 2000, 100 * time.Millisecond, []time.Duration{7211 * time.Millisecond}, []float64{850}},
	} {
		c := newCubic(mss)
		c.window, c.wMax = path.w0*mss, path.wMaxBefore
		c.Reduce(0, c.window)
		m := newCubicModel(float64(path.w0), path.wMaxBefore)
		start := Time(time.Second)
		now := start
		for i, after := range path.after {
			for now < start.add(after) {
				// A round trip, its acknowledgments spread over it.
				n := c.Window() / mss
				for range n {
					c.Acked(now, Acked{Bytes: mss, InFlight: c.Window(), RTT: path.rtt})
					m.ack(time.Duration(now-start).Seconds(), path.rtt.Seconds())
					now += Time(path.rtt) / Time(n)
				}
			}
			got := float64(c.Window()) / mss
			if math.Abs(got-m.cwnd) > 0.01+m.cwnd/1000 {
				t.Errorf("%s: %.3f segments after %v, the model has %.3f", path.name, got, after, m.cwnd)
			}
			if want := path.golden[i]; want != 0 && math.Abs(got-want) > want/100 {
				t.Errorf("%s: %.1f segments after %v, want %.1f", path.name, got, after, want)
			}
		}
	}
}

// On a short path CUBIC grows at least as fast as Reno with the same losses (RFC 9438, section 4.3): with
// beta 0.7, 0.53 segments a round trip up to the window before the loss, and then one segment.
func TestCubicRenoFriendly(t *testing.T) {
	c := newCubic(1000)
	c.window = 100000
	c.Reduce(0, c.window)
	now := Time(time.Second)
	round := func() {
		for range c.Window() / 1000 {
			now += 1000
			c.Acked(now, Acked{Bytes: 1000, InFlight: c.Window(), RTT: 100 * time.Microsecond})
		}
	}
	for range 20 {
		round()
	}
	if w := c.Window(); w < 70000+20*510 || w > 70000+20*540 {
		t.Errorf("window %d after 20 round trips, want %d to %d", w, 70000+20*510, 70000+20*540)
	}
	for c.Window() < 101000 {
		round()
	}
	w := c.Window()
	for range 20 {
		round()
	}
	if d := c.Window() - w; d < 19000 || d > 21000 {
		t.Errorf("%d bytes more after 20 round trips above the window before the loss, want 19000 to 21000", d)
	}
}

func TestCubicEvents(t *testing.T) {
	c := newCubic(1000)
	now := Time(time.Second)
	check := func(window, threshold int, what string) {
		t.Helper()
		if c.Window() != window || c.threshold != threshold {
			t.Errorf("%s: window %d, threshold %d, want %d and %d", what, c.Window(), c.threshold, window, threshold)
		}
	}
	for range 10 {
		c.Acked(now, Acked{Bytes: 1000, InFlight: c.Window()})
	}
	check(20000, maxBuffer, "after a round trip of slow start")
	c.Acked(now, Acked{Bytes: 20000, InFlight: 20000})
	check(28000, maxBuffer, "after one ACK of all, which counts for eight segments")
	c.Reduce(now, 28000)
	check(19600, 19600, "after a loss")
	c.Undo()
	check(28000, maxBuffer, "after Undo")
	for range 2 {
		c.Acked(now, Acked{InFlight: 1000, Round: true})
	}
	c.Reduce(now, 20000)
	c.Collapse()
	check(1000, 14000, "after a timeout with 20000 bytes in flight")
	c.Collapse()
	c.Undo()
	check(28000, maxBuffer, "after two timeouts and Undo")
	// The first congestion avoidance after a timeout begins at the bottom of the
	// cubic function: K is 0.
	c.Reduce(now, 28000)
	c.Collapse()
	for c.Window() < c.threshold {
		c.Acked(now, Acked{Bytes: 1000, InFlight: c.Window()})
	}
	c.Acked(now, Acked{Bytes: 1000, InFlight: c.Window()})
	if c.k != 0 || c.wMax != 20 {
		t.Errorf("K %.2f, W_max %.1f", c.k, c.wMax)
	}
	w := c.Window()
	now = now.add(4 * time.Minute) // in which the window was not used
	c.Acked(now, Acked{Bytes: 1000, InFlight: 1000})
	c.Acked(now, Acked{Bytes: 1000, InFlight: c.Window()})
	if d := c.Window() - w; d > 100 {
		t.Errorf("the window has grown by %d bytes after four idle minutes", d)
	}
	c.SetMSS(100)
	c.SetMSS(2000)
	c.Acked(now, Acked{Bytes: 2000, InFlight: c.Window()})
	if d := c.Window() - w; d < 0 || d > 2000 || math.Abs(c.wMax-10) > 1 {
		t.Errorf("after SetMSS(2000) the window has grown by %d bytes, W_max is %.1f", d, c.wMax)
	}
}

// HyStart++ (RFC 9406, section 4.2): when round trips become longer by an eighth, but 4 ms at least and
// 16 ms at most, growth slows down to a quarter, and slow start ends after five rounds. If round trips
// become shorter again, slow start continues.
func TestHyStart(t *testing.T) {
	const ms = time.Millisecond
	for _, s := range []struct {
		name   string
		rounds []time.Duration // the least round-trip time of each
		end    int             // the round at whose beginning slow start ends; 0: it does not end
	}{
		{"constant", []time.Duration{50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms}, 0},
		{"a growing queue", []time.Duration{50 * ms, 60 * ms, 70 * ms, 70 * ms, 70 * ms, 70 * ms, 70 * ms, 70 * ms}, 6},
		{"each round less than 4 ms longer", []time.Duration{ms, 4 * ms, 7 * ms, 10 * ms, 13 * ms, 16 * ms, 19 * ms, 22 * ms}, 0},
		{"one long round", []time.Duration{50 * ms, 60 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms}, 0},
		{"long path, each round less than 16 ms longer", []time.Duration{300 * ms, 315 * ms, 330 * ms, 345 * ms, 360 * ms, 375 * ms, 390 * ms}, 0},
		{"long path, a growing queue", []time.Duration{300 * ms, 317 * ms, 317 * ms, 317 * ms, 317 * ms, 317 * ms, 317 * ms}, 6},
	} {
		c := newCubic(1000)
		end := 0
		for i, rtt := range s.rounds {
			slow := c.slow.baseline != 0
			before := c.Window()
			for k := range 10 {
				c.Acked(1, Acked{Bytes: 1000, InFlight: c.Window(), RTT: rtt, Round: k == 0})
			}
			if c.threshold != maxBuffer {
				end = i
				break
			}
			if slow && c.slow.baseline != 0 && c.Window()-before != 2500 {
				t.Errorf("%s: the window has grown by %d bytes in round %d, want a quarter of 10000", s.name, c.Window()-before, i)
			}
		}
		if end != s.end {
			t.Errorf("%s: slow start ended in round %d, want %d", s.name, end, s.end)
		}
	}
}

func TestCongestionNamed(t *testing.T) {
	if c, err := CongestionNamed("reno"); err != nil {
		t.Error(err)
	} else if _, ok := c(1000).(*reno); !ok {
		t.Errorf("%T", c(1000))
	}
	for _, name := range []string{"", "cubic"} {
		if c, err := CongestionNamed(name); c != nil || err != nil { // which is CUBIC, in the connection's own memory
			t.Error(name, err)
		}
	}
	if _, err := CongestionNamed("CUBIC"); err == nil {
		t.Error("a name in capitals is accepted")
	}
}
