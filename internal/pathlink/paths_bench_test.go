//go:build linux

package pathlink

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
)

// BenchmarkManyPaths is a round trip of a datagram over one path after the other of an endpoint.
func BenchmarkManyPaths(b *testing.B) {
	for _, used := range []int{1, 64} {
		b.Run(fmt.Sprint(used), func(b *testing.B) { benchmarkPaths(b, used, 0, false) })
	}
}

// BenchmarkIdlePaths is a round trip of a datagram over one path of an endpoint that has others without frames, and
// the same with a Sleep before it.
func BenchmarkIdlePaths(b *testing.B) {
	for _, idle := range []int{0, 1000} {
		b.Run(fmt.Sprint(idle), func(b *testing.B) { benchmarkPaths(b, 1, idle, false) })
		b.Run(fmt.Sprintf("%d-sleep", idle), func(b *testing.B) { benchmarkPaths(b, 1, idle, true) })
	}
}

// benchmarkPaths has one goroutine do the work of both ends, so that what is measured is work and no wait.
func benchmarkPaths(b *testing.B, used, idle int, sleep bool) {
	l := newLab(b, stack.Config{})
	peers := l.crowd(b, used+idle)
	n := l.ends[1]
	var frames [64]stack.Frame
	buf := make([]byte, 128)
	n.stack.Do(func() { // the stack itself does nothing meanwhile
		trip := func(p *peerEnd, sleep bool) {
			if sleep {
				n.link.Wake()
				testutil.Must(b, n.link.Sleep(time.Time{}, true))
			}
			p.send(b)
			for !n.link.Pending() {
			}
			if k := n.link.Borrow(frames[:]); k != 1 {
				b.Fatalf("%d frames", k)
			}
			f, ok := n.link.Reserve(len(frames[0].Data))
			if !ok {
				b.Fatal("no frame")
			}
			f.Data = f.Data[:copy(f.Data, frames[0].Data)]
			reverse(f.Data)
			n.link.Return(frames[0])
			if !n.link.Send(f) {
				b.Fatal("the frame was not sent")
			}
			testutil.Must(b, n.link.Flush())
			if k, _ := p.ring.Scan(1); k != 1 {
				b.Fatal("no answer")
			}
			p.ring.Take(buf)
			p.ring.Flush()
		}
		for _, p := range peers {
			p.send(b)
		}
		for got := 0; got < len(peers); { // the first frames wait until the socket has been found empty
			k := n.link.Borrow(frames[:])
			for _, f := range frames[:k] {
				n.link.Return(f)
			}
			got += k
		}
		for range 2 { // the others get idle
			n.link.set.Load().park()
			for _, p := range peers[:used] {
				trip(p, sleep)
			}
		}
		n.link.Wake()
		for n.link.sleeping.Load() { // the caretaker has work that counts for nobody
			runtime.Gosched()
		}
		i := 0
		for b.Loop() {
			trip(peers[i], sleep)
			if i++; i == used {
				i = 0
			}
		}
	})
}

// reverse makes a datagram the answer to itself.
func reverse(frame []byte) {
	var was [12]byte
	copy(was[:], frame[26:38])
	copy(frame[26:], was[4:8])
	copy(frame[30:], was[:4])
	copy(frame[34:], was[10:])
	copy(frame[36:], was[8:10])
}
