package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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

// How long to wait for another process that is at work in the same folder.
const (
	folderTries = 100
	folderPause = 20 * time.Millisecond
)

// listener is a socket of ours in the file system.
type listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

// listen takes the path. A socket whose daemon is dead is replaced; one that is
// served, or a file that is no socket, is an error and stays.
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
	unlock, err := lockFolder(folder)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := clearPath(path); err != nil {
		return nil, err
	}
	ln, err := bind(path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %s: %w", path, err)
	}
	l := &listener{UnixListener: ln, path: path}
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

// clearPath removes the socket of a dead daemon. The folder is locked: between
// bind and listen a living one looks dead.
func clearPath(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("socket path in use: %s is not a socket: choose another --socket", path)
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("socket path in use: somebody serves %s: stop that process, or choose another --socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the socket that a dead daemon left: %w", err)
	}
	return nil
}

// remove takes the socket out of the file system, unless a successor has
// replaced it.
func (l *listener) remove() error {
	l.Close()
	unlock, err := lockFolder(filepath.Dir(l.path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
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

// lockFolder keeps other daemons from taking or giving up a socket in the
// folder. The lock is on the folder itself: there is no file to leave behind.
func lockFolder(folder string) (unlock func(), err error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, fmt.Errorf("cannot open the folder of the socket: %w", err)
	}
	for range folderTries {
		var lockErr error
		if err = withFD(f, func(fd int) { lockErr = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err == nil {
			err = lockErr
		}
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(folderPause)
	}
	f.Close()
	return nil, fmt.Errorf("cannot lock %s, the folder of the socket: %w: choose a --socket in a folder of its own", folder, err)
}

func withFD(f *os.File, use func(fd int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { use(int(fd)) })
}
