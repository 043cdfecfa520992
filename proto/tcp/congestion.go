package tcp

// Congestion decides how much may be in flight. The engine calls it at the
// moments named here and sends no more than Window. Detecting a loss other than
// by timeout, and what to send again after one, is to come; it will call this
// interface too.
type Congestion interface {
	// Window is the congestion window in bytes.
	Window() int
	// Acked: n bytes have been acknowledged, of inFlight that were not.
	Acked(now Time, n, inFlight int)
	// TimedOut: the retransmission timer has run out with inFlight bytes not
	// acknowledged, and all of them will be sent again.
	TimedOut(now Time, inFlight int)
}

// initialWindow is RFC 6928's, in segments.
const initialWindow = 10

// slowStart is RFC 5681, sections 3.1, without fast retransmit: slow start up to
// a threshold, then a segment each round trip.
type slowStart struct {
	mss, window, threshold int
}

func newSlowStart(mss int) slowStart {
	return slowStart{mss: mss, window: min(initialWindow*mss, max(2*mss, 14600)), threshold: maxBuffer}
}

func (s *slowStart) Window() int { return s.window }

func (s *slowStart) Acked(_ Time, n, inFlight int) {
	switch {
	case inFlight < s.window/2: // the window was not what held us back (RFC 7661)
	case s.window < s.threshold:
		s.window = min(s.window+n, maxBuffer)
	default:
		s.window = min(s.window+max(1, s.mss*s.mss/s.window), maxBuffer)
	}
}

func (s *slowStart) TimedOut(_ Time, inFlight int) {
	s.threshold = max(inFlight/2, 2*s.mss)
	s.window = s.mss
}
