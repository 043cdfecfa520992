//go:build linux

package tcp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// scales are tcpi_snd_wscale and tcpi_rcv_wscale, two bit fields (linux/tcp.h) in
// the byte after tcpi_options, for which package unix has no name.
func scales(i *unix.TCPInfo) (send, receive uint8) {
	b := *(*uint8)(unsafe.Add(unsafe.Pointer(&i.Options), 1))
	return b & 0xf, b >> 4
}
