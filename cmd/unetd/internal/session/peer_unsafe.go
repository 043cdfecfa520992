//go:build linux

package session

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerGroups gives the supplementary groups of the process at the other end of
// a unix socket, as they were when it connected (SO_PEERGROUPS). Package unix
// has no call for an option of unknown length.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 32)
	for {
		size := uint32(4 * len(groups)) // in, and out: bytes
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		n := int(size / 4)
		switch {
		case errno == 0:
			return groups[:n], nil
		case errno == unix.ERANGE && n > len(groups): // size is that of all groups
			groups = make([]uint32, n)
		default:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
		}
	}
}
