//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// HugePageSize is the size of the huge pages that a segment may have, in bytes.
const HugePageSize = 2 << 20

// segmentName is the name of a segment in /proc.
const segmentName = "unet-segment"

// NewSegment makes the memory of a communication segment: size bytes in an anonymous file
// that cannot be resized, because an access to a UMEM whose file has shrunk is a fault
// (SIGBUS). huge: its pages have 2 MiB, and size is a multiple of that.
func NewSegment(size int64, huge bool) (*os.File, error) {
	flags := 0
	if huge {
		if size%HugePageSize != 0 {
			return nil, fmt.Errorf("segment of %d bytes is not a multiple of the huge page size, %d", size, HugePageSize)
		}
		flags = unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	return NewMemory(segmentName, size, flags)
}

// NewMemory makes an anonymous file of size bytes that cannot be resized. name is for /proc, flags are more of
// memfd_create's.
func NewMemory(name string, size int64, flags int) (*os.File, error) {
	flags |= unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// The file is never executed, and where vm.memfd_noexec is 2 the flag is
	// required. Kernels before 6.3 reject it.
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	// The receiver of a descriptor must not be able to reopen the file through /proc:
	// SegmentInUse counts the descriptors that ShareSegment made.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fchmod of "+name, err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		f.Close()
		return nil, os.NewSyscallError("ftruncate of "+name, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return f, nil
}

// ShareSegment opens a segment's file again, for another process. f is what [NewSegment]
// made. The kernel counts the descriptors of a file that are open for writing, but not the
// one that memfd_create returned. So by [SegmentInUse] the process that has f finds out
// whether the other descriptor is closed, with all its copies and mappings.
func ShareSegment(f *os.File) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("reopen the segment by /proc", err)
	}
	return os.NewFile(uintptr(fd), segmentName), nil
}

// SegmentInUse reports whether another process still has a segment open or mapped by
// what [ShareSegment] made. f is what [NewSegment] made.
//
// It asks for a write lease (fcntl F_SETLEASE), which the kernel grants only if no
// other open file description of the file exists, and releases it.
func SegmentInUse(f *os.File) (bool, error) {
	asker, err := ShareSegment(f)
	if err != nil {
		return false, err
	}
	defer asker.Close() // it gives the lease back
	_, err = unix.FcntlInt(asker.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) {
		return true, nil
	}
	return false, os.NewSyscallError("fcntl F_SETLEASE of the segment", err)
}

// FreeSegment frees the pages of a segment that is not in use. A descriptor that the
// kernel does not count (O_PATH, or read-only) can keep the file, but no memory.
func FreeSegment(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat of the segment", err)
	}
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size)
	return os.NewSyscallError("fallocate of the segment", err)
}

// MapSegment maps a segment of size bytes into this process. It refuses a file that is
// smaller or not sealed against shrinking: an access to a page after the end of the file is a
// fault (SIGBUS).
func MapSegment(f *os.File, size int) ([]byte, error) {
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat of the segment", err)
	}
	if st.Size < int64(size) {
		return nil, fmt.Errorf("segment has %d bytes, its geometry needs %d", st.Size, size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_GET_SEALS", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("segment is not sealed against shrinking")
	}
	// MAP_POPULATE: otherwise the first access to a page on the data path is a page fault.
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, memoryError("mmap of the segment", err, hugePages(fd))
	}
	return mem, nil
}

// UnmapSegment undoes [MapSegment].
func UnmapSegment(mem []byte) error {
	return os.NewSyscallError("munmap of the segment", unix.Munmap(mem))
}

// hugePages reports whether a segment has huge pages: the block size of its file is its page
// size.
func hugePages(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Blksize >= HugePageSize
}

// memoryError adds a remedy to an error for lack of memory.
func memoryError(call string, err error, huge bool) error {
	switch {
	case errors.Is(err, unix.ENOMEM) && huge:
		return fmt.Errorf("%s: %w: %w", call, err, ErrHugePages)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%s: %w: free some, or ask for a smaller segment", call, err)
	case errors.Is(err, unix.ENOBUFS): // XDP_UMEM_REG, for a process without CAP_IPC_LOCK
		return fmt.Errorf("%s: %w: RLIMIT_MEMLOCK is too low for the segment: raise it, give CAP_IPC_LOCK, or ask for a smaller segment", call, err)
	}
	return fmt.Errorf("%s: %w", call, err)
}

// tableName is the name of a table of connections in /proc.
const tableName = "unet-connections"

// MaxTable is the size of the largest table of connections, in bytes.
const MaxTable = 32 << 20

// ErrTable: a file is not a table of connections.
var ErrTable = errors.New("not a table of connections")

// NewTable makes the memory in which a process publishes its connections, MaxTable bytes that
// cannot be resized, and maps it. A page takes no memory until it is written.
func NewTable() (f *os.File, mem []byte, err error) {
	if f, err = NewMemory(tableName, MaxTable, 0); err != nil {
		return nil, nil, err
	}
	mem, err = unix.Mmap(int(f.Fd()), 0, MaxTable, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, nil, os.NewSyscallError("mmap of the table of connections", err)
	}
	return f, mem, nil
}

// AcceptTable returns a new descriptor of a table that another process has sent, and leaves f
// open. f may be any file. The error is [ErrTable] unless f is sealed against resizing and has
// at most MaxTable bytes. AcceptTable first reads the seals (fcntl F_GET_SEALS): only a file
// in memory has them, and no file system of the sender (FUSE) handles the call. So a read of
// the table never blocks, and its close frees at most MaxTable bytes.
func AcceptTable(f *os.File) (own *os.File, err error) {
	ctlErr := control(f, func(fd int) {
		var seals int
		if seals, err = unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
			err = fmt.Errorf("%w: fcntl F_GET_SEALS: %w", ErrTable, err)
			return
		}
		const fixed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
		if seals&fixed != fixed {
			err = fmt.Errorf("%w: it can be resized", ErrTable)
			return
		}
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err != nil {
			err = os.NewSyscallError("fstat of the table of connections", err)
			return
		}
		if st.Size > MaxTable {
			err = fmt.Errorf("%w: it has %d bytes, more than %d", ErrTable, st.Size, MaxTable)
			return
		}
		var copied int
		if copied, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			err = os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
			return
		}
		own = os.NewFile(uintptr(copied), tableName)
	})
	return own, errors.Join(ctlErr, err)
}

// CloseTable undoes [NewTable].
func CloseTable(f *os.File, mem []byte) error {
	return errors.Join(os.NewSyscallError("munmap of the table of connections", unix.Munmap(mem)), f.Close())
}
