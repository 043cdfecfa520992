package segment

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

func newSegment(t testing.TB, frames int) *Segment {
	t.Helper()
	s, err := New(make([]byte, frames*2048), 2048, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if r := recover(); r == nil {
			t.Errorf("no panic, want %q", want)
		} else if s, ok := r.(string); !ok || !strings.Contains(s, want) {
			t.Errorf("panic %v, want %q", r, want)
		}
	}()
	f()
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		size  int
		frame uint32
	}{{0, 2048}, {4096, 0}, {4096, 3000}, {4097, 2048}} {
		if _, err := New(make([]byte, c.size), c.frame, 0); !errors.Is(err, ErrSize) {
			t.Errorf("New(%d bytes, %d) = %v, want ErrSize", c.size, c.frame, err)
		}
	}
}

func TestReceivedFrames(t *testing.T) {
	s, err := New(make([]byte, 4*2048), 2048, 3)
	if err != nil {
		t.Fatal(err)
	}
	if a := s.Audit(); a.Of(KernelReceive) != 3 || a.Of(Pool) != 1 {
		t.Fatalf("audit: %v", a)
	}
	if addr, ok := s.Alloc(Stack); !ok || addr != 3*2048 {
		t.Fatalf("Alloc = %#x, %v; want the only frame of the pool", addr, ok)
	}
	if _, err := New(make([]byte, 2048), 2048, 2); !errors.Is(err, ErrSize) {
		t.Fatalf("more received than there are: %v", err)
	}
}

// TestSides: frames that were sent are sent again, those received are received
// into again, and either side helps the other out.
func TestSides(t *testing.T) {
	s := newSegment(t, 4)
	var frames [4]uint64
	for i := range frames {
		frames[i], _ = s.Alloc(Stack)
	}
	s.Move(frames[0], Stack, KernelTransmit)
	s.Move(frames[1], Stack, KernelTransmit)
	s.Free(frames[0], KernelTransmit)
	s.Free(frames[1], KernelTransmit)
	s.Free(frames[2], Stack)
	s.Free(frames[3], Stack)
	for i, step := range []struct {
		to   Owner
		want uint64
	}{{KernelReceive, frames[3]}, {Stack, frames[1]}, {Stack, frames[0]}, {Stack, frames[2]}} {
		if got, ok := s.Alloc(step.to); !ok || got != step.want {
			t.Errorf("step %d: frame %#x, %v; want %#x", i, got, ok, step.want)
		}
	}
}

// TestOwnership moves frames at random and holds the segment against a model.
func TestOwnership(t *testing.T) {
	const frames = 64
	s := newSegment(t, frames)
	model := make([]Owner, frames)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		if rng.IntN(3) == 0 {
			to := Owner(1 + rng.IntN(int(owners)-1))
			addr, ok := s.Alloc(to)
			if !ok {
				continue
			}
			if model[addr/2048] != Pool {
				t.Fatalf("frame %d allocated, but %v owns it", addr/2048, model[addr/2048])
			}
			model[addr/2048] = to
			continue
		}
		f := rng.IntN(frames)
		if model[f] == Pool {
			continue
		}
		addr := uint64(f*2048 + rng.IntN(2048)) // any address in the frame names it
		if to := Owner(rng.IntN(int(owners))); to == Pool {
			s.Free(addr, model[f])
			model[f] = Pool
		} else {
			s.Move(addr, model[f], to)
			model[f] = to
		}
	}
	var want Audit
	for _, o := range model {
		want[o]++
	}
	if got := s.Audit(); got != want {
		t.Fatalf("audit: %v\nmodel: %v", got, want)
	}
	if got := s.Available(); got != want.Of(Pool) {
		t.Fatalf("available %d, want %d", got, want.Of(Pool))
	}
}

func TestPoolRunsDry(t *testing.T) {
	s := newSegment(t, 3)
	seen := map[uint64]bool{}
	for range 3 {
		addr, ok := s.Alloc(Stack)
		if !ok || seen[addr] || addr%2048 != 0 {
			t.Fatalf("Alloc = %#x, %v", addr, ok)
		}
		seen[addr] = true
	}
	if _, ok := s.Alloc(Stack); ok {
		t.Fatal("a fourth frame out of three")
	}
	s.Free(2048+300, Stack)
	if addr, ok := s.Alloc(Application); !ok || addr != 2048 {
		t.Fatalf("Alloc = %#x, %v; want the frame just freed", addr, ok)
	}
}

func TestMisusePanics(t *testing.T) {
	s := newSegment(t, 4)
	addr, _ := s.Alloc(Stack)
	mustPanic(t, "owned by stack", func() { s.Free(addr, Application) })
	mustPanic(t, "owned by stack", func() { s.Move(addr, KernelReceive, Stack) })
	s.Free(addr, Stack)
	mustPanic(t, "owned by pool", func() { s.Free(addr, Stack) })
	mustPanic(t, "outside the segment", func() { s.Free(4*2048, Stack) })
	mustPanic(t, "leave their frame", func() { s.Bytes(2000, 100) })
}

func TestBytes(t *testing.T) {
	s := newSegment(t, 4)
	b := s.Bytes(2048+256, 100)
	if len(b) != 100 || cap(b) != 100 {
		t.Fatalf("Bytes: len %d cap %d", len(b), cap(b))
	}
	if len(s.Bytes(2048, 2048)) != 2048 || len(s.Bytes(4*2048, 0)) != 0 {
		t.Fatal("a whole frame, or nothing, must be had")
	}
}

func TestAllocs(t *testing.T) {
	s := newSegment(t, 4)
	if n := testing.AllocsPerRun(1000, func() {
		addr, _ := s.Alloc(Stack)
		s.Move(addr, Stack, KernelTransmit)
		s.Free(addr, KernelTransmit)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
