package xsk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// tableName is what /proc shows of a table.
const tableName = "unet-connections"

// MaxTable is the size of the largest table of connections, in bytes.
const MaxTable = 4 << 20

// ErrTable: a file is not a table of connections.
var ErrTable = errors.New("not a table of connections")

// NewTable makes the memory in which a process publishes its connections, MaxTable
// bytes that nobody can resize, and maps it. A page takes memory when it is first
// written to.
func NewTable() (f *os.File, mem []byte, err error) {
	if f, err = newMemory(tableName, MaxTable, 0); err != nil {
		return nil, nil, err
	}
	mem, err = unix.Mmap(int(f.Fd()), 0, MaxTable, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, nil, os.NewSyscallError("mmap of the table of connections", err)
	}
	return f, mem, nil
}

// AcceptTable makes a descriptor of its own of a table that another process has sent. f
// may be any file: it is asked for its seals, which only a file in memory answers and no
// file system of the sender's sees, and is an [ErrTable] unless it is sealed against
// resizing and no larger than MaxTable. So to read the table never waits, and to close
// it frees no more than that.
func AcceptTable(f *os.File) (own *os.File, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		var seals int
		if seals, err = unix.FcntlInt(fd, unix.F_GET_SEALS, 0); err != nil {
			err = fmt.Errorf("%w: fcntl F_GET_SEALS: %w", ErrTable, err)
			return
		}
		const fixed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
		if seals&fixed != fixed {
			err = fmt.Errorf("%w: it can be resized", ErrTable)
			return
		}
		var st unix.Stat_t
		if err = unix.Fstat(int(fd), &st); err != nil {
			err = os.NewSyscallError("fstat of the table of connections", err)
			return
		}
		if st.Size > MaxTable {
			err = fmt.Errorf("%w: it has %d bytes, more than %d", ErrTable, st.Size, MaxTable)
			return
		}
		var copied int
		if copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err != nil {
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
