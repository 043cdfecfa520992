//go:build linux

package xsk

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/queues"
)

// A fill ring is sound in each state that a correct owner can bring about, also when indices wrap, and in no other.
func TestSoundFillRing(t *testing.T) {
	const size, segment = 64, 64 * 2048
	for _, c := range []struct {
		name               string
		consumer, producer uint32
		taken              uint32 // by the kernel within the last second
		entry              uint64 // each of them
		sound              bool
	}{
		{"empty", 7, 7, 0, 0, true},
		{"empty, and its entries are no frames", 7, 7, 0, segment, false},
		{"full", 7, 7 + size, 0, segment - 2048, true},
		{"full, wrapping", math.MaxUint32 - 2, size - 3, 0, 0, true},
		{"an address inside of a frame", 7, 8, 0, segment - 1, true},
		{"one more than it has", 7, 8 + size, 0, 0, false},
		{"producer far ahead", 7, 6, 0, 0, false},
		{"producer far ahead, wrapping", math.MaxUint32 - 2, size - 2, 0, 0, false},
		{"an address behind the segment", 7, 8, 0, segment, false},
		{"addresses behind the segment, wrapping", math.MaxUint32 - 2, size - 3, 0, math.MaxUint64, false},
		{"ten million a second", 7, 8, 10e6, 0, true},
		{"500 million a second", 7, 8, 500e6, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			entries := make([]uint64, size)
			for i := range entries {
				entries[i] = c.entry
			}
			r := FillRing{ring: queues.Shared[uint64]{Producer: &c.producer, Consumer: &c.consumer, Entries: entries}, segment: segment}
			now := time.Now()
			r.last, r.lastAt = c.consumer-c.taken, now.Add(-time.Second)
			if sound := r.Sound(now); sound != c.sound {
				t.Errorf("sound %v, want %v", sound, c.sound)
			}
		})
	}
}

// If the producer index of a fill ring is 2^32-1 entries ahead, the kernel reads its entries for seconds in search
// of a frame. Stop puts a frame there, which ends this: the frame that was sent is received.
func TestStopEndsKernelsReadOfFillRing(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	victim, _ := open(t, p.A, testParams)
	redirect(t, p.A, victim.fd)
	sender, memory := open(t, p.B, testParams)
	ring, err := MapFillRing(victim.file, testParams.FillSize, int64(testParams.segmentSize()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ring.Unmap(); err != nil {
			t.Error(err)
		}
	}()
	if !ring.Sound(time.Now()) {
		t.Fatal("an untouched ring is not sound")
	}
	copy(memory, frameFor(p.A, 1))

	// Nothing shows that the kernel has begun: it publishes the consumer index at the end. If it has not begun when
	// Stop is called, it finds a frame at once, so it has read few entries, and nothing was tested.
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		for i := range ring.ring.Entries {
			atomic.StoreUint64(&ring.ring.Entries[i], math.MaxUint64)
		}
		first := atomic.LoadUint32(ring.ring.Consumer)
		atomic.StoreUint32(ring.ring.Producer, first-1) // 2^32-1 entries, 8 s
		if ring.Sound(time.Now()) {
			t.Error("a ring that is far ahead is sound")
		}
		sender.TX.Reserve(1)
		*sender.TX.At(0) = queues.Desc{Len: 64}
		sender.TX.Submit(1)
		sent := make(chan error, 1)
		go func() { sent <- sender.Kick() }() // the system call reads the ring, or the thread ksoftirqd
		time.Sleep(wait)
		ring.Stop()
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, "the frame that was sent is received, and the consumer index published", func() bool {
			return victim.RX.Pending() == 1 && atomic.LoadUint32(ring.ring.Consumer) != first
		})
		victim.RX.Release(victim.RX.Peek(1))
		read := atomic.LoadUint32(ring.ring.Consumer) - first
		if read > testParams.FillSize {
			if read == math.MaxUint32 {
				t.Error("the kernel has read all entries")
			}
			return
		}
		if wait > 4*time.Second {
			t.Fatalf("the kernel has not begun to read within %v", wait)
		}
	}
}
