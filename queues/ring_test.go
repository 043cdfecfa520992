package queues

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// ring makes a ring whose two ends are in this process, in memory with the layout of the kernel.
func ring[T Entry](size int, start uint32) (Shared[T], *uint32) {
	flags := new(uint32)
	prod, cons := start, start
	return Shared[T]{Producer: &prod, Consumer: &cons, Flags: flags, Entries: make([]T, size)}, flags
}

// starts are initial indices near which arithmetic with overflow can fail.
var starts = []uint32{0, 1, 7, math.MaxInt32 - 1, math.MaxUint32 - 2, math.MaxUint32}

// TestRingAgainstModel runs random operations on both ends and compares the ring with slices.
func TestRingAgainstModel(t *testing.T) {
	for _, start := range starts {
		for _, size := range []int{1, 2, 8, 64} {
			rng := rand.New(rand.NewPCG(uint64(start), uint64(size)))
			s, _ := ring[uint64](size, start)
			p, c := NewProducer(s), NewConsumer(s)
			var reserved, published []uint64
			held := 0 // entries that the consumer has taken without publishing
			next := uint64(0)
			for range 20000 {
				n := uint32(rng.IntN(size + 2))
				switch rng.IntN(5) {
				case 0:
					got := p.Reserve(n)
					room := uint32(size - len(reserved) - len(published) - held)
					if got != min(n, room) {
						t.Fatalf("start %d size %d: Reserve(%d) = %d with room for %d", start, size, n, got, room)
					}
					for range got {
						*p.At(uint32(len(reserved))) = next
						reserved = append(reserved, next)
						next++
					}
				case 1:
					full := len(reserved)+len(published)+held == size
					if ok := p.Push(next); ok == full {
						t.Fatalf("Push = %v with the ring full: %v", ok, full)
					} else if ok {
						reserved = append(reserved, next)
						next++
					}
				case 2:
					n = min(n, p.Reserved())
					p.Submit(n)
					published = append(published, reserved[:n]...)
					reserved = slices.Delete(reserved, 0, int(n))
				default:
					if got := c.Pending(); got != uint32(len(published)+held) || c.Taken() != uint32(held) {
						t.Fatalf("Pending = %d, want %d; Taken = %d, want %d", got, len(published)+held, c.Taken(), held)
					}
					got := c.Peek(n)
					if got != min(n, uint32(len(published))) {
						t.Fatalf("Peek(%d) = %d of %d", n, got, len(published))
					}
					for i := range got {
						if v := *c.At(i); v != published[i] {
							t.Fatalf("At(%d) = %d, want %d", i, v, published[i])
						}
					}
					take := uint32(rng.IntN(int(got) + 1))
					switch rng.IntN(3) {
					case 0:
						c.Release(take)
						held = 0
					case 1:
						c.Take(take)
						held += int(take)
					case 2:
						c.Take(take)
						c.Publish()
						held = 0
					}
					published = slices.Delete(published, 0, int(take))
				}
				if got := p.InFlight(); got != uint32(len(published)+held) {
					t.Fatalf("InFlight = %d, want %d", got, len(published)+held)
				}
				if got, want := p.Free(), uint32(size-len(reserved)-len(published)-held); got != want {
					t.Fatalf("Free = %d, want %d", got, want)
				}
			}
		}
	}
}

// TestTwoGoroutines passes descriptors between goroutines; the race detector
// checks the ordering, the values check the content.
func TestTwoGoroutines(t *testing.T) {
	const total = 200_000
	for _, start := range starts {
		s, _ := ring[Desc](64, start)
		go func() {
			p := NewProducer(s)
			for i := uint64(0); i < total; {
				n := p.Reserve(uint32(min(16, total-i)))
				if n == 0 {
					runtime.Gosched()
					continue
				}
				for k := range n {
					*p.At(k) = Desc{Addr: i, Len: uint32(i), Options: Continued}
					i++
				}
				p.Submit(n)
			}
		}()
		c := NewConsumer(s)
		for i := uint64(0); i < total; {
			n := c.Peek(16)
			if n == 0 {
				runtime.Gosched()
			}
			for k := range n {
				if d := *c.At(k); d != (Desc{Addr: i, Len: uint32(i), Options: Continued}) {
					t.Fatalf("descriptor %d is %+v", i, d)
				}
				i++
			}
			c.Release(n)
		}
	}
}

// TestAttachToARingWithEntries: a consumer reads the entries that were in the ring before it was
// attached.
func TestAttachToARingWithEntries(t *testing.T) {
	s, _ := ring[uint64](8, math.MaxUint32-2)
	first := NewProducer(s)
	for i := range uint64(5) {
		first.Push(i)
	}
	first.Submit(5)
	second := NewProducer(s)
	if got := second.Free(); got != 3 {
		t.Fatalf("second producer has room for %d, want 3", got)
	}
	c := NewConsumer(s)
	if n := c.Peek(8); n != 5 {
		t.Fatalf("consumer sees %d entries, want 5", n)
	}
	for i := range uint64(5) {
		if got := *c.At(uint32(i)); got != i {
			t.Errorf("entry %d is %d", i, got)
		}
	}
}

func TestNeedWakeup(t *testing.T) {
	s, flags := ring[Desc](8, 0)
	p := NewProducer(s)
	if p.NeedWakeup() {
		t.Fatal("NeedWakeup without the flag")
	}
	*flags = 1
	if !p.NeedWakeup() {
		t.Fatal("flag not seen")
	}
	s.Flags = nil
	if NewProducer(s).NeedWakeup() {
		t.Fatal("NeedWakeup without a flags word")
	}
}

func TestMisusePanics(t *testing.T) {
	s, _ := ring[uint64](8, 0)
	p, c := NewProducer(s), NewConsumer(s)
	p.Reserve(1)
	for name, f := range map[string]func(){
		"submit":  func() { p.Submit(2) },
		"release": func() { c.Release(1) },
		"take":    func() { c.Take(1) },
		"size": func() {
			NewProducer(Shared[uint64]{Producer: new(uint32), Consumer: new(uint32), Entries: make([]uint64, 3)})
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestNoAllocations(t *testing.T) {
	s, _ := ring[Desc](64, 0)
	p, c := NewProducer(s), NewConsumer(s)
	if n := testing.AllocsPerRun(1000, func() {
		p.Push(Desc{Addr: 1})
		p.Submit(1)
		c.Release(c.Peek(8))
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkPass(b *testing.B) {
	for _, batch := range []uint32{1, 32} {
		b.Run(map[uint32]string{1: "batch=1", 32: "batch=32"}[batch], func(b *testing.B) {
			s, _ := ring[Desc](2048, 0)
			p, c := NewProducer(s), NewConsumer(s)
			for i := 0; i < b.N; i += int(batch) {
				n := p.Reserve(batch)
				for k := range n {
					*p.At(k) = Desc{Addr: uint64(k)}
				}
				p.Submit(n)
				n = c.Peek(batch)
				for k := range n {
					_ = *c.At(k)
				}
				c.Release(n)
			}
		})
	}
}
