// Package timerheap keeps the earliest instant of many objects: a heap in which each object has at most one
// entry. The engines of the protocols and their driver have one each.
//
// An object may have several timers. Its entry is then at the earliest of them or before. A timer that is
// moved to a later time, as a retransmission timer is by every acknowledgment, does not change the heap. When
// the instant of an entry comes and no timer is due, the owner moves the entry with [Heap.Set].
package timerheap

import "math"

// never is later than every other instant.
const never = math.MaxInt64

// Timer is the entry of one object, of type T, which has it as a field. I is the type of instants.
type Timer[I ~int64, T any] struct {
	at    I // never if it is not in a heap
	owner *T
	slot  int32 // its place in the heap, counted from 1; 0 if it is in none
}

// Init makes t the entry of owner. It is called once, before all else.
func (t *Timer[I, T]) Init(owner *T) { t.at, t.owner = never, owner }

// At is the instant of the entry. It is math.MaxInt64 if there is none.
func (t *Timer[I, T]) At() I { return t.at }

// Heap is a heap of timers by their instants. The zero value is empty.
type Heap[I ~int64, T any] []entry[I, T]

// entry has a copy of the instant, so that comparisons do not read the objects.
type entry[I ~int64, T any] struct {
	at    I
	timer *Timer[I, T]
}

// First is the earliest instant. It is math.MaxInt64 if the heap is empty.
func (h Heap[I, T]) First() I {
	if len(h) == 0 {
		return never
	}
	return h[0].at
}

// Due is the owner of the earliest entry, or nil if that is after now. The entry stays.
func (h Heap[I, T]) Due(now I) *T {
	if len(h) == 0 || h[0].at > now {
		return nil
	}
	return h[0].timer.owner
}

// Owners is the owners of all entries, in no order.
func (h Heap[I, T]) Owners() []*T {
	owners := make([]*T, len(h))
	for i, e := range h {
		owners[i] = e.timer.owner
	}
	return owners
}

// Advance moves the entry of t to at if it is later or there is none. It reports whether it has done so.
func (h *Heap[I, T]) Advance(t *Timer[I, T], at I) bool {
	if at >= t.at {
		return false
	}
	h.advance(t, at)
	return true
}

func (h *Heap[I, T]) advance(t *Timer[I, T], at I) {
	if t.slot == 0 {
		*h = append(*h, entry[I, T]{})
		t.slot = int32(len(*h))
	}
	t.at = at
	h.up(int(t.slot), entry[I, T]{at, t})
}

// Set moves the entry of t to at. math.MaxInt64 removes it.
func (h *Heap[I, T]) Set(t *Timer[I, T], at I) {
	e, i := entry[I, T]{at, t}, int(t.slot)
	switch {
	case at < t.at:
		h.advance(t, at)
		return
	case at == t.at:
		return
	case at == never: // the last entry takes its place
		n := len(*h) - 1
		e = (*h)[n]
		(*h)[n] = entry[I, T]{}
		*h = (*h)[:n]
		t.slot = 0
	}
	t.at = at
	if e.timer.slot == 0 {
		return // it was the last itself
	}
	if i > 1 && e.at < (*h)[i/2-1].at {
		h.up(i, e)
	} else {
		h.down(i, e)
	}
}

func (h Heap[I, T]) set(i int, e entry[I, T]) {
	h[i-1] = e
	e.timer.slot = int32(i)
}

func (h Heap[I, T]) up(i int, e entry[I, T]) {
	for ; i > 1 && e.at < h[i/2-1].at; i /= 2 {
		h.set(i, h[i/2-1])
	}
	h.set(i, e)
}

func (h Heap[I, T]) down(i int, e entry[I, T]) {
	for {
		k := 2 * i
		if k > len(h) {
			break
		}
		if k < len(h) && h[k].at < h[k-1].at {
			k++
		}
		if h[k-1].at >= e.at {
			break
		}
		h.set(i, h[k-1])
		i = k
	}
	h.set(i, e)
}
