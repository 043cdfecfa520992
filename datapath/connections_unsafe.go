package datapath

import (
	"unsafe"

	"github.com/unet-go/unet/wire"
)

// recordsOf returns mem as records. It must begin at a page.
func recordsOf(mem []byte) []wire.Connection {
	return unsafe.Slice((*wire.Connection)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/wire.ConnectionLen)
}
