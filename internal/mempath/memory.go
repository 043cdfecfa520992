//go:build linux

package mempath

import (
	"errors"
	"fmt"
	"os"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"golang.org/x/sys/unix"
)

// memoryName is the name of a path's memory in /proc.
const memoryName = "unet-path"

// Make makes the descriptors of both ends of a path. The other fields are left to the caller.
func Make() (a, b *endpoint.Path, err error) {
	a, b = &endpoint.Path{}, &endpoint.Path{}
	if err = makeWay(a, b); err == nil {
		err = makeWay(b, a)
	}
	if err != nil {
		a.Close()
		b.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// makeWay makes what carries frames from one end to the other.
func makeWay(from, to *endpoint.Path) (err error) {
	if from.Own, err = xsk.NewMemory(memoryName, memorySize, 0); err != nil {
		return err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", from.Own.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("reopen the memory of a path by /proc", err)
	}
	to.Other = os.NewFile(uintptr(fd), memoryName)
	// Neither end can open the file again, which the other could do for writing.
	if err := unix.Fchmod(fd, 0); err != nil {
		return os.NewSyscallError("fchmod of the memory of a path", err)
	}
	to.Bell, from.Ring, err = makeBell()
	return err
}

// makeBell makes a pipe of one page, so that little memory is taken by an end that fills it. Its read end is in blocking
// mode, or the Go runtime would poll it too.
func makeBell() (bell, ring *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	bell, ring = os.NewFile(uintptr(fds[0]), "bell"), os.NewFile(uintptr(fds[1]), "bell")
	_, err = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, os.Getpagesize())
	return bell, ring, os.NewSyscallError("fcntl F_SETPIPE_SZ", err)
}

// Open maps the memory of one end. It takes the descriptors of p over, also when it fails. A path can be
// opened once.
func Open(p *endpoint.Path) (*Path, error) {
	defer p.Close() // it fails only if one was closed before, and then open has failed
	return open(p)
}

func open(p *endpoint.Path) (path *Path, err error) {
	var own, other []byte
	ring, bell := -1, -1
	defer func() {
		if err != nil {
			path = nil
			free(own, other, ring, bell)
		}
	}()
	if err = checkMemory(p.Own, unix.O_RDWR); err != nil {
		return nil, err
	}
	if err = checkMemory(p.Other, unix.O_RDONLY); err != nil {
		return nil, err
	}
	if own, err = unix.Mmap(int(p.Own.Fd()), 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, mapFlags); err != nil {
		return nil, os.NewSyscallError("mmap of the memory of a path", err)
	}
	if other, err = mapOther(p.Other.Fd()); err != nil {
		return nil, err
	}
	if ring, err = takeBell(p.Ring, unix.O_WRONLY); err != nil {
		return nil, err
	}
	if bell, err = takeBell(p.Bell, unix.O_RDONLY); err != nil {
		return nil, err
	}
	path = newPath(own, other)
	path.ring, path.bell = ring, bell
	if load(path.own.state) != 0 {
		return nil, errors.New("memory path was opened before")
	}
	store(path.own.state, stateOpen)
	return path, nil
}

// mapFlags has MAP_POPULATE, or the first access to a page on the data path would be a page fault.
const mapFlags = unix.MAP_SHARED | unix.MAP_POPULATE

// checkMemory returns an error unless f can be the memory of a path. It first reads the seals: only a file in memory has them, and
// no file system (FUSE) handles the call.
func checkMemory(f *os.File, mode int) error {
	if f == nil {
		return errors.New("memory path without its memory")
	}
	fd := f.Fd()
	seals, err := unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
	if err != nil {
		return os.NewSyscallError("fcntl F_GET_SEALS of the memory of a path", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return errors.New("memory of a path is not sealed against shrinking")
	}
	if err := checkMode(fd, mode); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return os.NewSyscallError("fstat of the memory of a path", err)
	}
	if st.Size != memorySize {
		return fmt.Errorf("memory of a path has %d bytes, want %d", st.Size, memorySize)
	}
	return nil
}

// takeBell returns a descriptor of an end of a pipe that is in no poller of the Go runtime.
func takeBell(f *os.File, mode int) (int, error) {
	if f == nil {
		return -1, errors.New("memory path without its bells")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return -1, os.NewSyscallError("fstat of the bell of a path", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return -1, errors.New("bell of a memory path is not a pipe")
	}
	if err := checkMode(f.Fd(), mode); err != nil {
		return -1, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	return fd, nil
}

// checkMode returns an error if a descriptor is not open for reading, writing or both, as mode says.
func checkMode(fd uintptr, mode int) error {
	flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
	if err != nil {
		return os.NewSyscallError("fcntl F_GETFL", err)
	}
	if flags&unix.O_ACCMODE != mode {
		return fmt.Errorf("descriptor of a memory path is open in mode %d, want %d", flags&unix.O_ACCMODE, mode)
	}
	return nil
}

// free frees what open has taken.
func free(own, other []byte, fds ...int) error {
	var errs []error
	if own != nil {
		errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(own)))
	}
	if other != nil {
		errs = append(errs, leaveOther(other))
	}
	for _, fd := range fds {
		if fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	return errors.Join(errs...)
}

// wake rings the other end's bell. It does not block, and a bell that is full has woken the other end. After
// the other end is gone the error is EPIPE.
func (p *Path) wake() {
	step(nil)
	rawWrite(p.ring, one)
}

var one = []byte{1}

// Bell is the descriptor of this end's bell: it is readable when the other end has rung, and until Drain.
func (p *Path) Bell() int { return p.bell }

// Drain empties the bell. After it the caller looks whether there is a frame, or room for one. More than
// it reads at once only a hostile other end has rung.
func (p *Path) Drain() {
	step(nil)
	rawRead(p.bell, p.drained[:])
}

// Close closes this end and tells the other. What is in the rings is lost. A Pending of another goroutine may
// still be in progress or come later, and its answer may be wrong; no other method may.
func (p *Path) Close() error {
	store(p.own.state, stateClosed)
	p.wake()
	return free(p.mem[0], p.mem[1], p.ring, p.bell)
}
