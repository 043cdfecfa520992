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

func TestNewRefusesInvalidSizes(t *testing.T) {
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
	if a := s.Audit(); a[KernelReceive] != 3 || a[Pool] != 1 {
		t.Fatalf("audit: %v", a)
	}
	if addr, ok := s.Alloc(Stack); !ok || addr != 3*2048 {
		t.Fatalf("Alloc = %#x, %v; want the only frame of the pool", addr, ok)
	}
	if _, err := New(make([]byte, 2048), 2048, 2); !errors.Is(err, ErrSize) {
		t.Fatalf("New with more frames to receive than there are frames: %v", err)
	}
}

// TestFreedFramesAreReusedInTheirDirection: frames that were sent are allocated to send again, and
// frames that were received to receive again. If none of a direction is free, one of the other
// direction is allocated.
func TestFreedFramesAreReusedInTheirDirection(t *testing.T) {
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

// TestOwnershipAgainstModel moves frames at random and compares the segment with a model.
func TestOwnershipAgainstModel(t *testing.T) {
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
		addr := uint64(f*2048 + rng.IntN(2048)) // any address in a frame refers to the frame
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
	if got := s.Available(); got != want[Pool] {
		t.Fatalf("available %d, want %d", got, want[Pool])
	}
}

func TestPoolIsEmpty(t *testing.T) {
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
		t.Fatal("a fourth frame of three")
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
	copy(b, "data")
	if len(b) != 100 || cap(b) != 100 {
		t.Fatalf("Bytes: len %d cap %d", len(b), cap(b))
	}
	if len(s.Bytes(2048, 2048)) != 2048 || len(s.Bytes(4*2048, 0)) != 0 {
		t.Fatal("Bytes does not return a whole frame, or nothing")
	}
	if got := s.Bytes(2048+250, 20); string(got[6:10]) != "data" {
		t.Errorf("the bytes at offset 250 are %q, want those that were written from offset 256 on", got)
	}
}

func TestNoAllocations(t *testing.T) {
	s := newSegment(t, 4)
	if n := testing.AllocsPerRun(1000, func() {
		addr, _ := s.Alloc(Stack)
		s.Move(addr, Stack, KernelTransmit)
		s.Free(addr, KernelTransmit)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestRunsAreAdjacentFramesAllocatedWhole(t *testing.T) {
	const frames, size, received = 64, 64, 16
	s, err := New(make([]byte, frames*size), size, received)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.MakeRuns(100, 5); n != (frames-received)/5 {
		t.Fatalf("%d runs", n)
	}
	if got, want := s.Available(), (frames-received)%5; got != want {
		t.Errorf("%d frames are in no run, want %d", got, want)
	}
	seen := map[uint64]bool{}
	for {
		addr, ok := s.Alloc(Stack)
		if !ok {
			break
		}
		seen[addr] = true
		if s.InRun(addr) != 0 {
			t.Errorf("frame %#x is in a run", addr)
		}
	}
	var runs []uint64
	for {
		addr, ok := s.AllocRun(Stack)
		if !ok {
			break
		}
		runs = append(runs, addr)
		if n := len(s.Bytes(addr, 5*size)); n != 5*size {
			t.Errorf("%d bytes in a run", n)
		}
		mustPanic(t, "leave their frame", func() { s.Bytes(addr+5, 5*size) })
		for i := range 5 {
			at := addr + uint64(i*size)
			if seen[at] || s.InRun(at+7) != 5-i {
				t.Errorf("frame %#x: seen %v, %d left of its run", at, seen[at], s.InRun(at+7))
			}
			seen[at] = true
		}
	}
	if len(seen) != frames-received {
		t.Errorf("%d frames, want %d", len(seen), frames-received)
	}
	for i := range 5 {
		if _, ok := s.AllocRun(Stack); ok {
			t.Fatalf("a run was allocated when only %d of its frames were free", i)
		}
		s.Free(runs[3]+uint64(i*size), Stack)
		s.Audit()
	}
	if addr, ok := s.AllocRun(KernelTransmit); !ok || addr != runs[3] {
		t.Errorf("got %#x, %v, want the run whose frames were freed", addr, ok)
	}
}

func TestRunsAgainstModel(t *testing.T) {
	const frames, size, received, length = 48, 64, 8, 3
	r := rand.New(rand.NewPCG(5, 6))
	s, err := New(make([]byte, frames*size), size, received)
	if err != nil {
		t.Fatal(err)
	}
	count := s.MakeRuns(6, length)
	var held []uint64 // allocated frames
	for range 20_000 {
		switch r.IntN(3) {
		case 0:
			if addr, ok := s.Alloc(Stack); ok {
				held = append(held, addr)
			}
		case 1:
			if addr, ok := s.AllocRun(Stack); ok {
				for i := range length {
					held = append(held, addr+uint64(i*size))
				}
			}
		default:
			if len(held) > 0 {
				i := r.IntN(len(held))
				s.Free(held[i], Stack)
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
			}
		}
		if a := s.Audit(); a[Stack] != len(held) || a[Pool] != frames-received-len(held) {
			t.Fatalf("%d frames are allocated: %v", len(held), a)
		}
	}
	for _, addr := range held {
		s.Free(addr, Stack)
	}
	for i := range count {
		if _, ok := s.AllocRun(Stack); !ok {
			t.Errorf("after all frames were freed only %d runs of %d can be allocated", i, count)
		}
	}
}

func TestRunsNeedFrames(t *testing.T) {
	s, err := New(make([]byte, 16*64), 64, 12)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.MakeRuns(3, 5); n != 0 || s.Available() != 4 {
		t.Errorf("%d runs, %d frames left", n, s.Available())
	}
	if _, ok := s.AllocRun(Stack); ok {
		t.Error("a run was allocated although there were too few frames for one")
	}
}
