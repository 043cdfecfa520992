package xsk

import (
	"fmt"
	"math"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/queues"
)

// manyParams are of a socket that can have many frames in flight.
var manyParams = Params{
	FrameSize: 2048, FrameCount: 4096,
	FillSize: 64, CompletionSize: 2048, RxSize: 64, TxSize: 2048, Prefill: 64,
	Mode: ModeCopy, NeedWakeup: true,
}

// submit puts n frames for h on s's TX ring, which has room for them.
func submit(t testing.TB, s *Socket, mem []byte, h *netlab.Host, n int) {
	frame := frameFor(h, 0)
	s.Completion.Release(s.Completion.Peek(uint32(n)))
	for i := range n {
		addr := uint64(2048+i) * 2048
		copy(mem[addr:], frame)
		if !s.TX.Push(queues.Desc{Addr: addr, Len: uint32(len(frame))}) {
			t.Fatalf("no room for frame %d on the TX ring", i)
		}
	}
	s.TX.Submit(uint32(n))
}

// TestKickIsInterrupted: while a goroutine kicks a full ring, which takes
// milliseconds, the world can be stopped, as the garbage collector does.
func TestKickIsInterrupted(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s, mem := open(t, pair.A, manyParams)
	for deadline := time.Now().Add(20 * time.Second); ; {
		submit(t, s, mem, pair.B, 2048)
		var kicking atomic.Bool
		left := make(chan uint32)
		go func() {
			for !kicking.Load() || s.TX.InFlight() == 2048 {
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m) // stops the world
			left <- s.TX.InFlight()
		}()
		runtime.Gosched()
		kicking.Store(true)
		if err := s.Kick(); err != nil {
			t.Fatal(err)
		}
		n := <-left
		for s.TX.InFlight() > 0 {
			if err := s.Kick(); err != nil {
				t.Fatal(err)
			}
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the world was never stopped before the kick had taken all")
		}
	}
}

// How long the garbage collector waits for a thread that kicks, and what a frame
// costs, by how many frames one system call may move. Both processors have to be
// left alone:
//
//	go test -run '^$' -bench Kick -benchtime 2s ./internal/xsk
func BenchmarkKick(b *testing.B) {
	for _, budget := range []int{32, 64, 128, 256, 2048} {
		for _, collecting := range []bool{false, true} {
			b.Run(fmt.Sprintf("budget=%d/collecting=%t", budget, collecting), func(b *testing.B) {
				benchmarkKick(b, budget, collecting)
			})
		}
	}
}

func benchmarkKick(b *testing.B, budget int, collecting bool) {
	pair := netlab.RequirePair(b, netlab.Config{})
	s, mem := open(b, pair.A, manyParams)
	if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, budget); err != nil {
		b.Skip(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for collecting {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	before := stops()
	const frames = 2048
	for b.Loop() {
		submit(b, s, mem, pair.B, frames)
		for s.TX.InFlight() > 0 {
			if err := s.Kick(); err != nil {
				b.Fatal(err)
			}
		}
	}
	close(stop)
	<-stopped
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/frames, "ns/frame")
	b.ReportMetric(float64(s.Kicks())/float64(b.N), "kicks/op")
	if collecting {
		after := stops()
		b.ReportMetric(quantile(before, after, 0.5)*1e6, "stop-p50-us")
		b.ReportMetric(quantile(before, after, 0.999)*1e6, "stop-p99.9-us")
	}
}

// stops is the runtime's histogram of how long it took to stop the world for the
// garbage collector.
func stops() *metrics.Float64Histogram {
	m := []metrics.Sample{{Name: "/sched/pauses/stopping/gc:seconds"}}
	metrics.Read(m)
	return m[0].Value.Float64Histogram()
}

// quantile is the upper bound in seconds of what q of the values between two readings
// are at most.
func quantile(before, after *metrics.Float64Histogram, q float64) float64 {
	total := uint64(0)
	for i := range after.Counts {
		total += after.Counts[i] - before.Counts[i]
	}
	rest := uint64(math.Ceil(float64(total) * q))
	for i := range after.Counts {
		n := after.Counts[i] - before.Counts[i]
		if n >= rest {
			return after.Buckets[i+1]
		}
		rest -= n
	}
	return math.Inf(1)
}
