package wait

import (
	"runtime"
	"sync/atomic"
	_ "unsafe" // for go:linkname
)

// goyield puts the goroutine at the end of its processor's queue. Unlike runtime.Gosched it takes no
// lock and starts no other thread: it costs less than 100 ns where no other goroutine is runnable. The runtime promises
// to keep it (go.dev/issue/67401).
//
//go:linkname goyield runtime.goyield
func goyield()

// alone is set while GOMAXPROCS is 1.
var alone atomic.Bool

// noteProcessors reads GOMAXPROCS, which may change while the process runs.
func noteProcessors() {
	if one := runtime.GOMAXPROCS(0) == 1; one != alone.Load() {
		alone.Store(one)
	}
}

// Yield lets the goroutines run that are runnable on this processor, each once.
//
// A goroutine that has called runtime.Gosched, as the writer of gRPC does, is on a global queue. The
// runtime looks there only if the processor's own queue is empty, and at every 61st switch. A goroutine that
// spins keeps its queue filled. Other processors look there meanwhile. If there is no other, Yield
// puts the caller on the global queue too, behind that goroutine.
func Yield() {
	if alone.Load() {
		runtime.Gosched()
	} else {
		goyield()
	}
}
