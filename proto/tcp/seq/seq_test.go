package seq

import (
	"math"
	"reflect"
	"testing"
)

// The model is the same arithmetic with 8 bits, of which all pairs can be compared. A number v of 8 bits is
// the number v<<24 of 32 bits, so all distances are multiplied by 2^24.
func embed(v int) Number { return New(uint32(v&0xff) << 24) }

// before counts the steps from a up to b: a is before b if there are 1 to 128.
func before(a, b int) bool {
	steps := 0
	for x := a; x != b; x = (x + 1) & 0xff {
		steps++
	}
	return steps > 0 && steps <= 128
}

func TestOrderAgainstModel(t *testing.T) {
	for a := range 256 {
		for b := range 256 {
			x, y := embed(a), embed(b)
			want := before(a, b)
			if x.Before(y) != want || y.After(x) != want {
				t.Fatalf("%d before %d: %v, after: %v, want %v", a, b, x.Before(y), y.After(x), want)
			}
			if x.AtOrBefore(y) != (want || a == b) || y.AtOrAfter(x) != (want || a == b) {
				t.Fatalf("%d at or before %d", a, b)
			}
			if (x == y) != (a == b) {
				t.Fatalf("%d == %d", a, b)
			}
			if got := x.From(y) >> 24; got != uint32(a-b)&0xff {
				t.Fatalf("%d from %d: %d", a, b, got)
			}
			if y.Add(x.From(y)) != x || x.Back(x.From(y)) != y {
				t.Fatalf("%d and %d: Add or Back of the distance gives another number", a, b)
			}
			if (a-b)&0xff != 128 { // at the distance of 128 each is before the other
				later, earlier := x, y
				if want {
					later, earlier = y, x
				}
				if Max(x, y) != later || Min(x, y) != earlier {
					t.Fatalf("max and min of %d and %d", a, b)
				}
			}
		}
	}
}

// InWindow is compared with a set, for all windows of numbers of 4 bits, and for the largest window.
func TestInWindowAgainstModel(t *testing.T) {
	for first := range 16 {
		for size := range 16 {
			in := map[int]bool{}
			for i := range size {
				in[(first+i)&15] = true
			}
			for n := range 16 {
				x, f := New(uint32(n)<<28), New(uint32(first)<<28)
				if x.InWindow(f, uint32(size)<<28) != in[n] {
					t.Fatalf("%d in %d+%d: %v", n, first, size, !in[n])
				}
			}
		}
	}
	// A window of 2^32-1 numbers from 8 on has all but 7.
	if New(7).InWindow(New(8), math.MaxUint32) || !New(6).InWindow(New(8), math.MaxUint32) {
		t.Error("the largest window is wrong")
	}
}

// Number is a struct, so that the operator < does not compile: it would be wrong when numbers wrap.
func TestNumberIsNotOrdered(t *testing.T) {
	if reflect.TypeFor[Number]().Kind() != reflect.Struct {
		t.Error("Number is not a struct, so < compiles")
	}
}

func TestWrapAround(t *testing.T) {
	top := New(math.MaxUint32)
	if top.Add(1) != New(0) || New(0).Back(1) != top || !top.Before(New(0)) || New(0).From(top) != 1 || top.From(New(0)) != math.MaxUint32 {
		t.Error("numbers do not wrap from 2^32-1 to 0")
	}
	if top.String() != "4294967295" || New(0x1234).Uint32() != 0x1234 {
		t.Error("String or Uint32 is wrong")
	}
}

func FuzzNumber(f *testing.F) {
	f.Add(uint32(0), uint32(1), uint32(5))
	f.Add(uint32(math.MaxUint32), uint32(0), uint32(1))
	f.Add(uint32(1<<31), uint32(0), uint32(1<<31))
	f.Fuzz(func(t *testing.T, a, b, d uint32) {
		x, y := New(a), New(b)
		half := a-b == 1<<31
		if n := count(x.Before(y), x == y, x.After(y)); n != 1 && !half || half && n != 2 {
			t.Errorf("%v and %v: %d of before, equal and after are true", x, y, n)
		}
		if x.Add(d).Back(d) != x || x.Add(d).From(x) != d || x.From(y) != a-b {
			t.Errorf("%v, %v, %d: Add, Back or From is wrong", x, y, d)
		}
		// The order of two numbers does not change if the same is added to both.
		if x.Before(y) != x.Add(d).Before(y.Add(d)) {
			t.Errorf("the order of %v and %v changes when %d is added", x, y, d)
		}
		if y.InWindow(x, d) != (d > 0 && y.From(x) <= d-1) {
			t.Errorf("%v in %v+%d", y, x, d)
		}
	})
}

func count(bs ...bool) (n int) {
	for _, b := range bs {
		if b {
			n++
		}
	}
	return n
}
