//go:build linux

package mempath

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// regions are addresses at which the memory of other ends was mapped, of paths that are closed. They stay readable, as zeros
// or as the memory of another other end, which is mapped there next. So a goroutine that is late with Pending may get a wrong answer, and no fault.
var regions struct {
	mu sync.Mutex
	// +checklocks:mu
	free []unsafe.Pointer
}

// mapOther maps the memory of the other end.
func mapOther(fd uintptr) ([]byte, error) {
	regions.mu.Lock()
	defer regions.mu.Unlock()
	var at unsafe.Pointer
	flags := mapFlags
	if len(regions.free) > 0 {
		at = regions.free[0]
		flags |= unix.MAP_FIXED
	}
	at, err := unix.MmapPtr(int(fd), 0, at, memorySize, unix.PROT_READ, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap of the memory of a path", err)
	}
	if flags&unix.MAP_FIXED != 0 {
		regions.free = regions.free[1:]
	}
	return unsafe.Slice((*byte)(at), memorySize), nil
}

// leaveOther frees the memory of the other end, and keeps its addresses.
func leaveOther(mem []byte) error {
	regions.mu.Lock()
	defer regions.mu.Unlock()
	at := unsafe.Pointer(unsafe.SliceData(mem))
	_, err := unix.MmapPtr(-1, 0, at, memorySize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
	if err == nil {
		regions.free = append(regions.free, at)
	}
	return os.NewSyscallError("mmap over the memory of a path", err)
}

// rawWrite and rawRead are write and read of a bell. They do not block, and are not worth the hand-off of the processor that the
// scheduler prepares for other system calls.
func rawWrite(fd int, b []byte) {
	unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
}

func rawRead(fd int, b []byte) {
	unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
}
