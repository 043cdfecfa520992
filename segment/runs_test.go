package segment

import (
	"math/rand/v2"
	"testing"
)

func TestRunsLieSideBySideAndComeBackWhole(t *testing.T) {
	const frames, size, received = 64, 64, 16
	s, err := New(make([]byte, frames*size), size, received)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.MakeRuns(100, 5); n != (frames-received)/5 {
		t.Fatalf("%d runs", n)
	}
	if got, want := s.Available(), (frames-received)%5; got != want {
		t.Errorf("%d frames beside them, want %d", got, want)
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
		if n := len(s.RunBytes(addr)); n != 5*size {
			t.Errorf("%d bytes in a run", n)
		}
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
			t.Fatalf("a run of which %d frames are back is had again", i)
		}
		s.Free(runs[3]+uint64(i*size), Stack)
		s.Audit()
	}
	if addr, ok := s.AllocRun(KernelTransmit); !ok || addr != runs[3] {
		t.Errorf("got %#x, %v, want the run that is back", addr, ok)
	}
}

func TestRunsAgainstAModel(t *testing.T) {
	const frames, size, received, length = 48, 64, 8, 3
	r := rand.New(rand.NewPCG(5, 6))
	s, err := New(make([]byte, frames*size), size, received)
	if err != nil {
		t.Fatal(err)
	}
	count := s.MakeRuns(6, length)
	var out []uint64 // frames
	for range 20_000 {
		switch r.IntN(3) {
		case 0:
			if addr, ok := s.Alloc(Stack); ok {
				out = append(out, addr)
			}
		case 1:
			if addr, ok := s.AllocRun(Stack); ok {
				for i := range length {
					out = append(out, addr+uint64(i*size))
				}
			}
		default:
			if len(out) > 0 {
				i := r.IntN(len(out))
				s.Free(out[i], Stack)
				out[i] = out[len(out)-1]
				out = out[:len(out)-1]
			}
		}
		if a := s.Audit(); a.Of(Stack) != len(out) || a.Of(Pool) != frames-received-len(out) {
			t.Fatalf("%d frames are out: %v", len(out), a)
		}
	}
	for _, addr := range out {
		s.Free(addr, Stack)
	}
	for i := range count {
		if _, ok := s.AllocRun(Stack); !ok {
			t.Errorf("only %d runs of %d came back", i, count)
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
		t.Error("a run out of nothing")
	}
}
