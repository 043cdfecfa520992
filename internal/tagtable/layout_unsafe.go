//go:build linux

package tagtable

import "unsafe"

// wordsOf is mapped memory as words.
func wordsOf(mem []byte) words {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}
