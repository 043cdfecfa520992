package datapath

import (
	"unsafe"

	"github.com/unet-go/unet/wire"
)

// recordsOf is memory, which begins at a page, as records.
func recordsOf(mem []byte) []wire.Connection {
	return unsafe.Slice((*wire.Connection)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/wire.ConnectionLen)
}
