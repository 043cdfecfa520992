package datapath

import (
	"unsafe"

	"github.com/unet-go/unet/wire"
)

// recordsOf returns mem as records. It must begin at a page.
func recordsOf(mem []byte) []wire.Connection {
	return unsafe.Slice((*wire.Connection)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/wire.ConnectionLen)
}

// headerOf returns the first place of such memory.
func headerOf(mem []byte) *wire.ConnectionsHeader {
	return (*wire.ConnectionsHeader)(unsafe.Pointer(&mem[:wire.ConnectionLen][0]))
}

// One place of the table has either.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(wire.Connection{})-wire.ConnectionLen]
	_ = [1]struct{}{}[unsafe.Sizeof(wire.ConnectionsHeader{})-wire.ConnectionLen]
)
