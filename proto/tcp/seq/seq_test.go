package seq

import (
	"math"
	"reflect"
	"testing"
)

// The model: the same definitions on a circle of 2^8, where every pair can be
// looked at. A number of 8 bits is embedded in the 32 as v<<24, which scales all
// distances alike.
func embed(v int) Number { return New(uint32(v&0xff) << 24) }

// before is "less" on the circle of 256 by counting steps.
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
				t.Fatalf("%d and %d: there and back", a, b)
			}
			if (a-b)&0xff != 128 { // where the two answers agree
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

// Every window on a circle of 16, whole circle included.
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
	// 2^32-1 numbers from 8 on leave out 7 alone.
	if New(7).InWindow(New(8), math.MaxUint32) || !New(6).InWindow(New(8), math.MaxUint32) {
		t.Error("the largest window")
	}
}

// A bare < must not compile, and it does not for a struct.
func TestNumberIsNotOrdered(t *testing.T) {
	if reflect.TypeFor[Number]().Kind() != reflect.Struct {
		t.Error("< compiles")
	}
}

func TestWrapAround(t *testing.T) {
	top := New(math.MaxUint32)
	if top.Add(1) != New(0) || New(0).Back(1) != top || !top.Before(New(0)) || New(0).From(top) != 1 || top.From(New(0)) != math.MaxUint32 {
		t.Error("the circle does not close")
	}
	if top.String() != "4294967295" || New(0x1234).Uint32() != 0x1234 {
		t.Error("conversion")
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
			t.Errorf("%v and %v: %d of before, equal, after", x, y, n)
		}
		if x.Add(d).Back(d) != x || x.Add(d).From(x) != d || x.From(y) != a-b {
			t.Errorf("%v, %v, %d: distances", x, y, d)
		}
		// Order does not depend on where on the circle it is asked.
		if x.Before(y) != x.Add(d).Before(y.Add(d)) {
			t.Errorf("%v, %v turned by %d", x, y, d)
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
