package udp

import (
	"bytes"
	"math"
	"testing"
)

// The queue is compared with a slice. The cursors of its ring start just before they wrap.
func TestQueueAgainstSlice(t *testing.T) {
	seed := uint32(7)
	random := func(n int) int {
		seed = seed*1664525 + 1013904223
		return int(seed>>8) % n
	}
	for _, bound := range []int{1, 2, 15, 16, 17, 100} {
		q := queue{maxCount: bound, maxBytes: 1 << 30}
		q.push(&Inbound{}, 0, nil) // the first ring
		q.Pop(new(Datagram))
		q.head, q.tail = math.MaxUint32-2, math.MaxUint32-2
		var model []Datagram
		size := 0 // bytes
		for i := range 5000 {
			if random(5) < 3 {
				d := Datagram{Payload: bytes.Repeat([]byte{byte(i)}, random(9)), Frame: uint64(i), Heap: i%2 == 0}
				ok := q.push(&Inbound{Frame: d.Frame, Heap: d.Heap}, 0, d.Payload)
				if ok != (len(model) < bound) {
					t.Fatalf("bound %d, step %d: push %v with %d queued", bound, i, ok, len(model))
				}
				if ok {
					model, size = append(model, d), size+len(d.Payload)
				}
			} else {
				var d Datagram
				ok := q.Pop(&d)
				if ok != (len(model) > 0) {
					t.Fatalf("bound %d, step %d: pop %v with %d queued", bound, i, ok, len(model))
				}
				if ok {
					if want := model[0]; d.Frame != want.Frame || !bytes.Equal(d.Payload, want.Payload) || d.Heap != want.Heap {
						t.Fatalf("bound %d, step %d: popped %v, want %v", bound, i, d, want)
					}
					model, size = model[1:], size-len(d.Payload)
				}
			}
			if q.Len() != len(model) || q.bytes != size {
				t.Fatalf("bound %d, step %d: %d datagrams, %d bytes; want %d, %d", bound, i, q.Len(), q.bytes, len(model), size)
			}
		}
	}
}

// The ring of a queue grows with the datagrams in it, and has no pointer to the payload of a popped datagram.
func TestQueueMemory(t *testing.T) {
	q := queue{maxCount: 1000, maxBytes: 1 << 20}
	if q.ring != nil {
		t.Error("a ring before the first datagram")
	}
	for range 17 {
		q.push(&Inbound{Heap: true}, 0, []byte{1})
	}
	if len(q.ring) != 32 {
		t.Errorf("a ring of %d for 17 datagrams", len(q.ring))
	}
	for q.Pop(new(Datagram)) {
	}
	for i := range q.ring {
		if q.ring[i].Payload != nil {
			t.Fatalf("slot %d still holds a payload", i)
		}
	}
}
