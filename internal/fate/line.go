package fate

import "time"

// Line is a model and the frames in flight, of type T.
type Line[T any] struct {
	Model
	flights []flight[T] // a heap, by at and n
	n       uint64
}

// flight is a copy of a frame in flight.
type flight[T any] struct {
	at   time.Duration
	n    uint64 // in which order they were sent
	item T
	flip int
	mark bool
}

func (f *flight[T]) before(g *flight[T]) bool {
	return f.at < g.at || f.at == g.at && f.n < g.n
}

// Arrival is a frame that has arrived. Copies of one frame have the same Item, which must
// not be changed.
type Arrival[T any] struct {
	Item T
	At   time.Duration // when it was due
	Flip int           // as in Copy
	Mark bool          // as in Fate
}

// NewLine makes a line.
func NewLine[T any](seed uint64, r Rule) *Line[T] { return &Line[T]{Model: *New(seed, r)} }

// Send puts a frame on the line.
func (l *Line[T]) Send(now time.Duration, f Frame, item T) Fate {
	fate := l.Model.Next(now, f)
	for _, c := range fate.Copy[:fate.Copies] {
		l.push(flight[T]{c.At, l.n, item, c.Flip, fate.Mark})
		l.n++
	}
	return fate
}

// Next is when the next copy arrives; not ok if none is in flight.
func (l *Line[T]) Next() (at time.Duration, ok bool) {
	if len(l.flights) == 0 {
		return 0, false
	}
	return l.flights[0].at, true
}

// Receive takes one copy that has arrived by now.
func (l *Line[T]) Receive(now time.Duration) (a Arrival[T], ok bool) {
	if len(l.flights) == 0 || l.flights[0].at > now {
		return a, false
	}
	f := l.pop()
	return Arrival[T]{f.item, f.at, f.flip, f.mark}, true
}

// UnderWay is how many copies are in flight.
func (l *Line[T]) UnderWay() int { return len(l.flights) }

func (l *Line[T]) push(f flight[T]) {
	l.flights = append(l.flights, f)
	h := l.flights
	i := len(h) - 1
	for i > 0 && f.before(&h[(i-1)/2]) {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = f
}

func (l *Line[T]) pop() flight[T] {
	h := l.flights
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = flight[T]{} // for the garbage collector
	h = h[:len(h)-1]
	l.flights = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		k := 2*i + 1
		if k >= len(h) {
			break
		}
		if k+1 < len(h) && h[k+1].before(&h[k]) {
			k++
		}
		if last.before(&h[k]) {
			break
		}
		h[i] = h[k]
		i = k
	}
	h[i] = last
	return first
}
