package wait

import _ "unsafe" // for go:linkname

// Yield lets the goroutines run that are runnable on this processor, each once. Unlike
// runtime.Gosched it takes no lock and starts no other thread: it costs less than 100 ns where
// none is runnable. The runtime promises to keep it (go.dev/issue/67401).
//
//go:linkname Yield runtime.goyield
func Yield()
