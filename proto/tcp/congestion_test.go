package tcp

import "testing"

// Slow start, congestion avoidance and the fall after a timeout (RFC 5681, section
// 3.1), from the initial window of RFC 6928.
func TestSlowStart(t *testing.T) {
	for mss, want := range map[int]int{100: 1000, 536: 5360, 1460: 14600, 1448: 14480, 2000: 14600, 8960: 17920} {
		if s := newSlowStart(mss); s.Window() != want {
			t.Errorf("MSS %d: initial window %d, want %d", mss, s.Window(), want)
		}
	}
	s := newSlowStart(1000)
	// roundTrip acknowledges n segments.
	roundTrip := func(n int) {
		for inFlight := n * 1000; inFlight > 0; inFlight -= 1000 {
			s.Acked(0, 1000, inFlight)
		}
	}
	s.Acked(0, 1000, 1000)
	if s.Window() != 10000 {
		t.Errorf("%d, though one segment of ten was in flight", s.Window())
	}
	for range 10 {
		s.Acked(0, 1000, s.Window())
	}
	if s.Window() != 20000 {
		t.Errorf("%d after a round trip, want twice the 10000", s.Window())
	}
	s.TimedOut(0, 20000)
	if s.Window() != 1000 || s.threshold != 10000 {
		t.Errorf("after a timeout %d, threshold %d", s.Window(), s.threshold)
	}
	s.TimedOut(0, 20000)
	if s.threshold != 10000 {
		t.Errorf("threshold %d after the same was lost again", s.threshold)
	}
	roundTrip(1)
	s.Acked(0, 1000, 2000)
	s.Acked(0, 1000, 2000)
	if s.Window() != 4000 {
		t.Errorf("%d after two round trips from one segment", s.Window())
	}
	for s.Window() < 10000 {
		s.Acked(0, 1000, s.Window())
	}
	for range 10 { // a round trip above the threshold: one segment, or a little less
		s.Acked(0, 1000, s.Window())
	}
	if w := s.Window(); w < 10900 || w > 11000 {
		t.Errorf("%d a round trip after the threshold of 10000", w)
	}
	s.TimedOut(0, 1000)
	if s.threshold != 2000 {
		t.Errorf("threshold %d, want two segments at least", s.threshold)
	}
}
