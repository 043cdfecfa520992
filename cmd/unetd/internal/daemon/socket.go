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

// Socket is where applications connect.
type Socket struct {
	Path string      // made absolute, so that it is never in the abstract namespace, which has no modes
	Mode fs.FileMode // permission bits
	GID  int         // its group; -1: that of the process
}

// maxSocketPath is what fits sun_path with its NUL (unix(7)), bytes.
const maxSocketPath = 107

// listener is a socket of ours in the file system, and the right to it.
type listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
	lock *lock
}

// listen takes the path, until remove. A socket whose daemon is dead is
// replaced; one that is served, or a file that is no socket, is an error and
// stays. For a daemon that is about to serve, or about to end or to die, it waits.
func (s Socket) listen() (_ *listener, err error) {
	path, err := filepath.Abs(s.Path)
	if err != nil {
		return nil, err
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path of %d bytes: %s: choose a --socket of at most %d", len(path), path, maxSocketPath)
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
	// Last, so that no wrong group ever has what the mode gives the right one.
	if err := os.Chmod(path, s.Mode.Perm()); err != nil {
		return nil, fmt.Errorf("cannot set the mode of the socket: %w", err)
	}
	if l.made, err = os.Lstat(path); err != nil {
		return nil, err
	}
	return l, nil
}

// bind makes the socket such that nobody but its owner can connect yet. The
// umask is the process's: this runs before the daemon makes any other file.
func bind(path string) (*net.UnixListener, error) {
	defer unix.Umask(unix.Umask(0o177))
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // remove knows better
	return ln, nil
}

// lockPath waits for the lock on a path: a second, and longer while its holder does not
// serve there.
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

// clearPath removes the socket of a dead daemon, or of one that is dead within a second.
// The path is locked: between bind and listen a living one looks dead.
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

// errServed: somebody answers at the socket's path.
var errServed = errors.New("socket path in use: somebody serves")

// deadSocket reports whether a socket that nobody serves is at a path. It is
// an error if anything else is.
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

// remove takes the socket out of the file system, unless somebody has replaced
// it, and gives up the right to its path.
func (l *listener) remove() (err error) {
	l.Close()
	defer func() { err = errors.Join(err, l.lock.release()) }()
	now, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// An inode number may be used again; not with the same time as well.
	if err != nil || !os.SameFile(now, l.made) || !now.ModTime().Equal(l.made.ModTime()) {
		return err
	}
	return os.Remove(l.path)
}

// CleanSocket removes the socket that a dead daemon has left at a path, and its
// lock. What belongs to a living one stays, and so does what is not a daemon's.
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
			report(path + ": removed, nobody serves it")
		}
	}
	return errors.Join(err, lock.release())
}

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
