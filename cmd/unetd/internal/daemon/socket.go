//go:build linux

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the unix socket that applications connect to.
type Socket struct {
	Path string      // made absolute, so that it is not in the abstract namespace, which has no permissions
	Mode fs.FileMode // permission bits
	GID  int         // its group; -1: that of the process
}

// MaxSocketPath is what fits sun_path with its NUL (unix(7)), bytes.
const MaxSocketPath = 107

// listener is the daemon's socket in the file system, and the lock on its path.
type listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
	lock *lock
}

// listen locks the path and listens there, until remove. It replaces a socket whose daemon
// has died. A socket at which a process accepts connections, or a file that is not a socket,
// stays, and listen returns an error. It waits for a daemon that has the lock and is
// starting or ending.
func (s Socket) listen() (_ *listener, err error) {
	path, err := filepath.Abs(s.Path)
	if err != nil {
		return nil, err
	}
	if len(path) > MaxSocketPath {
		return nil, fmt.Errorf("socket path of %d bytes: %s: choose a --socket of at most %d", len(path), path, MaxSocketPath)
	}
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the folder of the socket: %w: choose another --socket", err)
	}
	lock, err := lockPath(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.release())
		}
	}()
	if err := clearPath(path); err != nil {
		return nil, err
	}
	ln, err := bind(path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %s: %w", path, err)
	}
	l := &listener{UnixListener: ln, path: path, lock: lock}
	defer func() {
		if err != nil {
			ln.Close()
			os.Remove(path)
		}
	}()
	if s.GID >= 0 {
		if err := os.Lchown(path, -1, s.GID); err != nil {
			return nil, fmt.Errorf("cannot give the socket to group %d: %w", s.GID, err)
		}
	}
	// After the group is set, so that the mode permits no other group at any time.
	if err := os.Chmod(path, s.Mode.Perm()); err != nil {
		return nil, fmt.Errorf("cannot set the mode of the socket: %w", err)
	}
	if l.made, err = os.Lstat(path); err != nil {
		return nil, err
	}
	return l, nil
}

// bind makes the socket with permission for its owner only. The umask is that of the
// process: no other goroutine makes a file at this time.
func bind(path string) (*net.UnixListener, error) {
	defer unix.Umask(unix.Umask(0o177))
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // remove does it
	return ln, nil
}

// lockPath waits for the lock on a path: for a second if its holder accepts connections
// there, for five seconds if it does not.
func lockPath(path string) (*lock, error) {
	for try := range lockTries {
		l, err := takeLock(path + ".lock")
		if !errors.Is(err, errLocked) {
			return l, err
		}
		if try >= dyingTries {
			if _, err := deadSocket(path); err != nil {
				return nil, err
			}
		}
		time.Sleep(lockPause)
	}
	return nil, fmt.Errorf("socket path in use: another unetd has locked %s.lock and neither serves nor ends: stop it, or choose another --socket", path)
}

// clearPath removes the socket of a daemon that has died, or dies within a second. The
// path is locked, because a daemon between bind(2) and listen(2) looks like a dead one.
func clearPath(path string) error {
	found, err := deadSocket(path)
	for try := 0; try < dyingTries && errors.Is(err, errServed); try++ {
		time.Sleep(lockPause)
		found, err = deadSocket(path)
	}
	if err != nil || !found {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the socket that a dead daemon left: %w", err)
	}
	return nil
}

// errServed: a process accepts connections at the socket's path.
var errServed = errors.New("socket path in use: another process serves")

// deadSocket reports whether the socket of a process that has ended is at a path. Anything
// else at the path is an error.
func deadSocket(path string) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode()&fs.ModeSocket == 0:
		return false, fmt.Errorf("socket path in use: %s is not a socket: choose another --socket", path)
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		conn.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // gone since
		return false, nil
	case errors.Is(err, unix.ECONNREFUSED):
		return true, nil
	}
	return false, fmt.Errorf("%w %s: stop that process, or choose another --socket", errServed, path)
}

// remove removes the socket from the file system, unless another file is at its path, and
// releases the lock.
func (l *listener) remove() (err error) {
	l.Close()
	defer func() { err = errors.Join(err, l.lock.release()) }()
	now, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// An inode number may be used again, but not with the same time.
	if err != nil || !os.SameFile(now, l.made) || !now.ModTime().Equal(l.made.ModTime()) {
		return err
	}
	return os.Remove(l.path)
}

// CleanSocket removes the socket that a dead daemon has left at a path, and its lock file.
// Those of a running daemon stay, and so does a file that is no socket.
func CleanSocket(path string, report func(what string)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	_, socketErr := os.Lstat(path)
	_, lockErr := os.Lstat(path + ".lock")
	if errors.Is(socketErr, fs.ErrNotExist) && errors.Is(lockErr, fs.ErrNotExist) {
		return nil
	}
	lock, err := takeLock(path + ".lock")
	if errors.Is(err, errLocked) {
		report(path + ": kept, a unetd serves it")
		return nil
	}
	if err != nil {
		return err
	}
	found, err := deadSocket(path)
	if err == nil && found {
		if err = os.Remove(path); err == nil {
			report(path + ": removed, no process serves it")
		}
	}
	return errors.Join(err, lock.release())
}

// Waits for another unetd at the same path that starts or ends. One that was killed has
// its lock and its socket until the kernel has closed its descriptors: dyingTries are for
// that.
const (
	lockTries  = 250
	dyingTries = 50
	lockPause  = 20 * time.Millisecond
)

// lock is a daemon's exclusive right to the socket's path. A daemon takes it before it
// examines the path and holds it until it has detached the programs and removed the socket.
// The lock is flock(2) on a file beside the socket, which only its owner can open and so
// lock. The kernel releases it when the process ends.
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

// take locks the file, and reports whether it still is the one at the path: the process
// that had the lock before may have removed it.
func (l *lock) take() (current bool, err error) {
	// The owner of the file could lock it at any time; and release removes the file, so
	// that data in it would be lost.
	opened, err := l.file.Stat()
	if err != nil {
		return false, err
	}
	if !opened.Mode().IsRegular() || opened.Size() != 0 || int(opened.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return false, fmt.Errorf("lock file in use: %s is not empty, or not of uid %d: remove it, or choose another --socket", l.path, os.Geteuid())
	}
	if opened.Mode().Perm()&0o077 != 0 {
		return false, fmt.Errorf("lock file in use: %s can be locked by others (mode %#o): remove it, or choose another --socket", l.path, opened.Mode().Perm())
	}
	err = unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
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

// release removes the file, unless another one is at its path, and then releases the
// lock. In this order it removes no file that another process has locked.
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
