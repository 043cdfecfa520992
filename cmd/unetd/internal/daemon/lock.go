package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How long to wait for another unetd at the same path to be up, or gone. One that was
// killed still has its lock and its socket until the kernel has closed its descriptors:
// dyingTries are for that.
const (
	lockTries  = 250
	dyingTries = 50
	lockPause  = 20 * time.Millisecond
)

// lock is the right to the socket's path, and to the uplink behind it: a
// daemon holds it from before it looks at the path until it has detached and
// removed its socket. The lock is flock(2) on a file beside the socket, which
// only its owner can open and so only its owner can lock. The kernel lets go of
// it when the daemon dies, however that happens.
type lock struct {
	file *os.File
	path string
}

// errLocked: another daemon has the lock.
var errLocked = errors.New("another unetd has the lock")

// takeLock does not wait.
func takeLock(path string) (*lock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot open the lock file of the socket: %w: choose another --socket", err)
		}
		l := &lock{f, path}
		current, err := l.take()
		if err == nil && current {
			return l, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// take locks the file, and reports whether it still is the one at the path:
// whoever had the lock before may have removed it.
func (l *lock) take() (current bool, err error) {
	// A file that is another's or more than a lock would be in strange hands, or
	// lost when it is removed.
	opened, err := l.file.Stat()
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	if err := withFD(l.file, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return false, err
	}
	if !opened.Mode().IsRegular() || st.Size != 0 || int(st.Uid) != os.Geteuid() {
		return false, fmt.Errorf("lock file in use: %s is not empty, or not of uid %d: remove it, or choose another --socket", l.path, os.Geteuid())
	}
	if opened.Mode().Perm()&0o077 != 0 {
		return false, fmt.Errorf("lock file in use: %s can be locked by others (mode %#o): remove it, or choose another --socket", l.path, opened.Mode().Perm())
	}
	err = withFD(l.file, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, errLocked
	case errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cannot lock %s: %w: choose a --socket on another file system", l.path, err)
	}
	now, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(now, opened), err
}

// release removes the file, unless somebody did so and made another, and then
// gives up the lock. In this order nobody else's file is removed: nobody has
// locked one at the path while this lock is held.
func (l *lock) release() error {
	opened, err := l.file.Stat()
	if err == nil {
		var now fs.FileInfo
		if now, err = os.Lstat(l.path); err == nil && os.SameFile(now, opened) {
			err = os.Remove(l.path)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.file.Close())
}

func withFD(f *os.File, use func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	if err := raw.Control(func(fd uintptr) { useErr = use(int(fd)) }); err != nil {
		return err
	}
	return useErr
}
