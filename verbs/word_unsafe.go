package verbs

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Word is the aligned word of 8 bytes at offset off of the region, for an application that
// shares it with a peer's WRITEs, READs and atomics. It panics if the word is not within the
// region or not aligned.
func (m *MR) Word(off int) *atomic.Uint64 {
	p := unsafe.Pointer(unsafe.SliceData(m.mr.Bytes()[off : off+8]))
	if uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("verbs: the word at offset %d of MR %#x is not aligned", off, m.LKey()))
	}
	return (*atomic.Uint64)(p)
}
