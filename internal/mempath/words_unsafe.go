//go:build linux

package mempath

import (
	"sync/atomic"
	"unsafe"
)

// word is the word at an offset of mem, a multiple of its size.
func word(mem []byte, off uint64) *uint64 {
	return (*uint64)(unsafe.Pointer((*[wordSize]byte)(mem[off:])))
}

// load and store are all accesses to words that both ends may access at once.
func load(w *uint64) uint64 {
	step(w)
	return atomic.LoadUint64(w)
}

func store(w *uint64, v uint64) {
	step(w)
	atomic.StoreUint64(w, v)
}
