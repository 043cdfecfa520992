package xsk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const hugePageSize = 2 << 20 // bytes

// ErrHugePages: the system has too few huge pages set aside.
var ErrHugePages = errors.New("not enough huge pages of 2 MiB (see /proc/sys/vm/nr_hugepages)")

// NewSegment makes the memory of a communication segment: size bytes in an
// anonymous file that nobody can resize, because a UMEM whose file shrinks
// would fault in whoever touches it. With huge set, its pages are of 2 MiB and
// size must be a multiple of that.
func NewSegment(size int64, huge bool) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if huge {
		if size%hugePageSize != 0 {
			return nil, fmt.Errorf("segment of %d bytes is not a multiple of the huge page size, %d", size, hugePageSize)
		}
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate("unet-segment", flags)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "unet-segment")
	if err := unix.Ftruncate(fd, size); err != nil {
		f.Close()
		return nil, os.NewSyscallError("ftruncate of the segment", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return f, nil
}

// MapSegment maps a segment of size bytes into this process. A file that is
// smaller, or that could still be made so, is refused: touching a page that
// went away is a fatal signal.
func MapSegment(f *os.File, size int) ([]byte, error) {
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat of the segment", err)
	}
	if st.Size < int64(size) {
		return nil, fmt.Errorf("segment has %d bytes, its geometry says %d", st.Size, size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_GET_SEALS", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("segment is not sealed against shrinking")
	}
	// Populated now: a first touch on the data path would be a page fault.
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, mapError(err)
	}
	return mem, nil
}

// UnmapSegment undoes [MapSegment].
func UnmapSegment(mem []byte) error {
	return os.NewSyscallError("munmap of the segment", unix.Munmap(mem))
}

func mapError(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("mmap of the segment: %w (a huge-page segment: %w)", err, ErrHugePages)
	}
	return os.NewSyscallError("mmap of the segment", err)
}
