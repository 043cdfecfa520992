//go:build linux

package xsk

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/unet-go/unet/queues"
	"golang.org/x/sys/unix"
)

// offsets is struct xdp_mmap_offsets.
type offsets = unix.XDPMmapOffsets

func sockOffsets(fd int) (offsets, error) {
	var off offsets
	size := uint32(unsafe.Sizeof(off))
	if err := getsockopt(fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), &size); err != nil {
		return off, os.NewSyscallError("getsockopt XDP_MMAP_OFFSETS", err)
	}
	if size != uint32(unsafe.Sizeof(off)) {
		return off, errNoRings // before 5.4 the structure had no flags word
	}
	return off, nil
}

func sockStatistics(fd int) (unix.XDPStatistics, error) {
	var st unix.XDPStatistics
	size := uint32(unsafe.Sizeof(st))
	err := getsockopt(fd, unix.XDP_STATISTICS, unsafe.Pointer(&st), &size)
	return st, os.NewSyscallError("getsockopt XDP_STATISTICS", err)
}

func sockOptions(fd int) (uint32, error) {
	var flags uint32
	size := uint32(unsafe.Sizeof(flags))
	err := getsockopt(fd, unix.XDP_OPTIONS, unsafe.Pointer(&flags), &size)
	return flags, os.NewSyscallError("getsockopt XDP_OPTIONS", err)
}

func getsockopt(fd, name int, val unsafe.Pointer, size *uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(name), uintptr(val), uintptr(unsafe.Pointer(size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// registerUMEM makes mem the socket's UMEM. The kernel pins its pages, so the caller may
// unmap mem afterwards.
func registerUMEM(fd int, mem []byte, frameSize uint32) error {
	reg := unix.XDPUmemReg{
		Addr:     uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))),
		Len:      uint64(len(mem)),
		Size:     frameSize,
		Headroom: rxHeadroom,
	}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	if errno != 0 {
		return os.NewSyscallError("setsockopt XDP_UMEM_REG", errno)
	}
	return nil
}

// mapRing maps one ring of size entries. It returns the mapping and a view of it for package
// queues, which must not be used after the mapping is gone.
func mapRing[T queues.Entry](fd int, pgoff int64, off unix.XDPRingOffset, size uint32) ([]byte, queues.Shared[T], error) {
	var entry T
	length := int(off.Desc) + int(size)*int(unsafe.Sizeof(entry))
	mem, err := unix.Mmap(fd, pgoff, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, queues.Shared[T]{}, fmt.Errorf("mmap of an AF_XDP ring of %d entries: %w", size, err)
	}
	base := unsafe.Pointer(unsafe.SliceData(mem))
	return mem, queues.Shared[T]{
		Producer: (*uint32)(unsafe.Add(base, off.Producer)),
		Consumer: (*uint32)(unsafe.Add(base, off.Consumer)),
		Flags:    (*uint32)(unsafe.Add(base, off.Flags)),
		Entries:  unsafe.Slice((*T)(unsafe.Add(base, off.Desc)), size),
	}, nil
}

// recvfromKick is recvfrom(fd, NULL, 0, MSG_DONTWAIT, NULL, NULL): it wakes a driver
// that waits for frames to receive into.
func recvfromKick(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// sendtoKick is sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0). It does not sleep, so it is a raw
// system call without the notice to the Go scheduler (entersyscall), which takes time.
//
// The garbage collector can stop a goroutine between two kicks only at the call of this
// function. If it were inlined there would be no such point: a signal that comes during a
// system call finds the thread in assembly, where it is not preempted.
//
//go:noinline
func sendtoKick(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}
