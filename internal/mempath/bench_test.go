//go:build linux

package mempath

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
)

var frameSizes = []int{64, 1514}

// BenchmarkRoundTrip sends a frame there and back between two threads that spin.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range frameSizes {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			near, far := pair(b)
			var end atomic.Bool
			done := make(chan bool)
			go func() {
				runtime.LockOSThread()
				defer close(done)
				buf := make([]byte, 2048)
				for !end.Load() {
					for range 1000 {
						if n, _ := far.Next(buf); n > 0 {
							send(far, buf[:n])
						}
					}
				}
			}()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			frame, buf := make([]byte, size), make([]byte, 2048)
			for b.Loop() {
				send(near, frame)
				for {
					if n, _ := near.Next(buf); n > 0 {
						break
					}
				}
			}
			end.Store(true)
			<-done
		})
	}
}

// BenchmarkOneWay sends frames to a thread that takes them in batches.
func BenchmarkOneWay(b *testing.B) {
	for _, size := range frameSizes {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			near, far := pair(b)
			var sent atomic.Int64
			sent.Store(-1)
			done := make(chan bool)
			go func() {
				runtime.LockOSThread()
				defer close(done)
				buf := make([]byte, 2048)
				for got := int64(0); got != sent.Load(); {
					n, _ := far.Scan(MaxScan)
					for range n {
						far.Take(buf)
					}
					got += int64(n)
					far.Flush()
				}
			}()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.SetBytes(int64(size))
			frame := make([]byte, size)
			n := int64(0)
			for b.Loop() {
				for !send(near, frame) {
				}
				n++
			}
			sent.Store(n)
			<-done
		})
	}
}
