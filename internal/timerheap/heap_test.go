package timerheap

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

type instant int64

type object struct{ timer Timer[instant, object] }

// The heap is compared with a sorted slice, while entries become earlier and later, come and go.
func TestModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, span := range []int64{3, 1000, 1 << 40} { // few instants: many are equal
		var h Heap[instant, object]
		objects := make([]*object, 50)
		model := map[*object]instant{}
		for i := range objects {
			objects[i] = new(object)
			objects[i].timer.Init(objects[i])
		}
		for range 3000 {
			o, at := objects[r.IntN(len(objects))], instant(r.Int64N(span))
			switch r.IntN(5) {
			case 0:
				h.Set(&o.timer, never)
				delete(model, o)
			case 1, 2:
				old, ok := model[o]
				moves := !ok || at < old
				if h.Advance(&o.timer, at) != moves {
					t.Fatalf("Advance from %d to %d does not report %t", old, at, moves)
				}
				if moves {
					model[o] = at
				}
			case 3:
				h.Set(&o.timer, at)
				model[o] = at
			case 4: // as an engine does with those that are due
				for o := h.Due(at); o != nil; o = h.Due(at) {
					if r.IntN(3) == 0 {
						h.Set(&o.timer, never)
						delete(model, o)
					} else {
						model[o] = at + 1 + instant(r.Int64N(span))
						h.Set(&o.timer, model[o])
					}
				}
			}
			compare(t, h, objects, model)
		}
		// All leave in order.
		left := make([]instant, 0, len(model))
		for _, at := range model {
			left = append(left, at)
		}
		slices.Sort(left)
		for _, at := range left {
			if o := h.Due(at - 1); o != nil || h.First() != at {
				t.Fatalf("%v is due before %d, or the first is %d", o, at, h.First())
			}
			h.Set(&h.Due(at).timer, never)
		}
		if len(h) != 0 || h.First() != never || h.Due(never) != nil {
			t.Fatal("the heap is not empty")
		}
		if e := h[:cap(h)]; slices.ContainsFunc(e, func(e entry[instant, object]) bool { return e.timer != nil }) {
			t.Error("the empty heap keeps objects alive")
		}
	}
}

func compare(t *testing.T, h Heap[instant, object], objects []*object, model map[*object]instant) {
	t.Helper()
	first := instant(never)
	for _, o := range objects {
		at, ok := model[o]
		if !ok {
			at = never
		}
		first = min(first, at)
		if o.timer.At() != at || (o.timer.slot != 0) != ok {
			t.Fatalf("an entry is at %d in slot %d, want %d", o.timer.At(), o.timer.slot, at)
		}
		if ok && h[o.timer.slot-1] != (entry[instant, object]{at, &o.timer}) {
			t.Fatal("the slot of an entry is not its place in the heap")
		}
	}
	if len(h) != len(model) || h.First() != first {
		t.Fatalf("%d entries, want %d; the first at %d, want %d", len(h), len(model), h.First(), first)
	}
	if o := h.Due(first); len(h) > 0 && (o == nil || model[o] != first) || h.Due(first-1) != nil {
		t.Fatal("Due is not the owner of the first entry")
	}
	for k := 1; k < len(h); k++ {
		if h[k].at < h[(k+1)/2-1].at {
			t.Fatalf("entry %d is before its parent", k)
		}
	}
	owners, want := h.Owners(), make([]*object, 0, len(model))
	for o := range model {
		want = append(want, o)
	}
	for _, l := range [][]*object{owners, want} {
		slices.SortFunc(l, func(a, b *object) int { return cmp.Compare(slices.Index(objects, a), slices.Index(objects, b)) })
	}
	if !slices.Equal(owners, want) {
		t.Fatal("Owners is not the owners of all entries")
	}
}

func TestNoAllocations(t *testing.T) {
	var h Heap[instant, object]
	objects := make([]object, 100)
	for i := range objects {
		objects[i].timer.Init(&objects[i])
		h.Set(&objects[i].timer, instant(i))
	}
	at := instant(len(objects))
	if n := testing.AllocsPerRun(1000, func() {
		o := h.Due(at)
		h.Set(&o.timer, never)
		h.Advance(&o.timer, at+100)
		h.Advance(&o.timer, at)
		at++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
