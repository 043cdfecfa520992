package stack

import "container/heap"

// timer calls its owner at the instant at. The zero value, with owner set, is not armed.
type timer struct {
	at    instant // when it expires; only while it is armed
	slot  int     // its place in the heap, from 1; 0: it is not armed
	owner interface{ expired(*Stack) }
}

// armedTimers is all armed timers, the earliest first. There may be thousands, one for each
// route.
type armedTimers []*timer

func (h armedTimers) Len() int           { return len(h) }
func (h armedTimers) Less(i, k int) bool { return h[i].at < h[k].at }
func (h armedTimers) Swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].slot, h[k].slot = i+1, k+1
}

func (h *armedTimers) Push(x any) {
	t := x.(*timer)
	*h = append(*h, t)
	t.slot = len(*h)
}

func (h *armedTimers) Pop() any {
	k := len(*h) - 1
	t := (*h)[k]
	(*h)[k] = nil
	*h = (*h)[:k]
	t.slot = 0
	return t
}

// startTimer arms t for the instant at, also if it is armed already; the instant never
// disarms it. The caller holds mu, here and in all of this file.
//
// +checklocks:s.mu
func (s *Stack) startTimer(t *timer, at instant) {
	t.at = at
	switch {
	case at == never:
		if t.slot == 0 {
			return
		}
		heap.Remove(&s.timers, t.slot-1)
	case t.slot == 0:
		heap.Push(&s.timers, t)
	default:
		heap.Fix(&s.timers, t.slot-1)
	}
	before := s.timerAt
	s.timerAt = never
	if len(s.timers) > 0 {
		s.timerAt = s.timers[0].at
	}
	if s.timerAt < before {
		s.role.poke()
	}
}

// +checklocks:s.mu
func (s *Stack) stopTimer(t *timer) { s.startTimer(t, never) }

// tokens is a token bucket that is full at first.
type tokens struct {
	taken int
	at    instant // when the last token was added
}

// take takes a token if there is one. One is added each interval, up to burst.
func (t *tokens) take(now, interval instant, burst int) bool {
	if back := (now - t.at) / interval; back > 0 {
		t.taken = max(0, t.taken-int(min(back, instant(burst))))
		t.at += back * interval
	}
	if t.taken == burst {
		return false
	}
	t.taken++
	return true
}

// runTimers calls the owners of the timers that are due.
//
// +checklocks:s.mu
func (s *Stack) runTimers() {
	for s.now >= s.timerAt {
		t := s.timers[0]
		s.stopTimer(t)
		t.owner.expired(s)
	}
}
