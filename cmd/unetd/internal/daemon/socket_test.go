//go:build linux

package daemon

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The socket has its mode and group whatever the umask is, and the umask stays.
func TestSocketModeAndGroup(t *testing.T) {
	for _, mode := range []fs.FileMode{0, 0o600, 0o660, 0o666} {
		s := Socket{Path: filepath.Join(t.TempDir(), "s"), Mode: mode, GID: -1}
		wantGID := os.Getgid()
		if os.Geteuid() == 0 {
			s.GID, wantGID = 4242, 4242
		}
		umask := unix.Umask(0o022)
		l, err := s.listen()
		if now := unix.Umask(umask); now != 0o022 {
			t.Errorf("umask became %#o", now)
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(s.Path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode || int(info.Sys().(*syscall.Stat_t).Gid) != wantGID {
			t.Errorf("socket is %v, want mode %#o, group %d", info.Mode(), mode, wantGID)
		}
		if err := l.remove(); err != nil {
			t.Error(err)
		}
	}
}

// After bind, before the mode is set, no other user can connect.
func TestBindSetsMode0600(t *testing.T) {
	umask := unix.Umask(0)
	defer unix.Umask(umask)
	path := filepath.Join(t.TempDir(), "s")
	ln, err := bind(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// The socket of a process that has ended is replaced.
func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	crashed, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	crashed.SetUnlinkOnClose(false)
	crashed.Close()
	l, err := Socket{Path: path, Mode: 0o600, GID: -1}.listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.remove(); err != nil {
		t.Error(err)
	}
}

// A file that is no socket stays at the path.
func TestOtherFileAtSocketPathStays(t *testing.T) {
	dir := t.TempDir()
	file, link, folder, stream, target := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "folder"),
		filepath.Join(dir, "stream"), filepath.Join(dir, "target")
	if err := errors.Join(os.WriteFile(file, []byte("content"), 0o600), os.Symlink(target, link), os.Mkdir(folder, 0o700)); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", stream)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, path := range []string{file, link, folder, stream} {
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (Socket{Path: path, Mode: 0o600, GID: -1}).listen(); err == nil || !strings.Contains(err.Error(), "socket path in use") {
			t.Errorf("%s: %v", path, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: %v, %v", path, after, err)
		}
	}
	for path, want := range map[string]string{
		filepath.Join(file, "s"):                       "not a directory",
		filepath.Join(dir, strings.Repeat("long", 30)): "at most 107",
	} {
		if _, err := (Socket{Path: path, GID: -1}).listen(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A path that begins with @ is a file, not a socket in the abstract namespace, which has no permissions.
func TestNoAbstractSocket(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := Socket{Path: "@unet", Mode: 0o600, GID: -1}.listen()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat("@unet"); err != nil {
		t.Error(err)
	}
	if err := l.remove(); err != nil {
		t.Error(err)
	}
}

// A daemon that ends late does not remove the socket of the next daemon.
func TestRemoveKeepsSocketOfNextDaemon(t *testing.T) {
	s := Socket{Path: filepath.Join(t.TempDir(), "s"), Mode: 0o600, GID: -1}
	first, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	// The folder is cleared, with the lock.
	if err := errors.Join(os.Remove(s.Path), os.Remove(s.Path+".lock")); err != nil {
		t.Fatal(err)
	}
	second, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(s.Path); err != nil {
		t.Error(err)
	}
	if err := second.remove(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(s.Path)); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// Of many daemons that start at once over the socket of a crashed one, one succeeds.
func TestOneOfManyStartsSucceeds(t *testing.T) {
	s := Socket{Path: filepath.Join(t.TempDir(), "s"), Mode: 0o600, GID: -1}
	crashed, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	crashed.crash()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var listeners []*listener
	for range 8 {
		wg.Go(func() {
			l, err := s.listen()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				listeners = append(listeners, l)
			} else if !strings.Contains(err.Error(), "socket path in use") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(listeners) != 1 {
		t.Fatalf("%d listeners", len(listeners))
	}
	if err := listeners[0].remove(); err != nil {
		t.Error(err)
	}
}

// crash leaves the files of a listener as a process that was killed leaves them.
func (l *listener) crash() {
	l.Close()
	l.lock.file.Close()
}

// After a daemon was killed its lock and its socket are still open for a moment, until the kernel has closed its
// descriptors one after the other. The next daemon waits for that.
func TestStartWaitsForKilledDaemon(t *testing.T) {
	s := Socket{Path: filepath.Join(t.TempDir(), "s"), Mode: 0o600, GID: -1}
	type result struct {
		l   *listener
		err error
	}
	// startNext starts another daemon, waits until it has tried to start twice, and lets the first one end.
	startNext := func(awaitTry, end func() error) {
		t.Helper()
		done := make(chan result, 1)
		go func() {
			l, err := s.listen()
			done <- result{l, err}
		}()
		tried := make(chan error, 1)
		go func() { tried <- errors.Join(awaitTry(), awaitTry()) }() // a second try: it did not give up after the first
		select {
		case err := <-tried:
			if err := errors.Join(err, end()); err != nil {
				t.Fatal(err)
			}
		case r := <-done:
			t.Fatalf("the next daemon did not wait: %v", r.err)
		}
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		if err := r.l.remove(); err != nil {
			t.Error(err)
		}
	}

	killed, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	opens, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(opens), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(opens, s.Path+".lock", unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	startNext(func() error {
		_, err := events.Read(make([]byte, unix.SizeofInotifyEvent)) // one event
		return err
	}, func() error { killed.crash(); return nil })

	// The lock has been released, the socket is still open.
	if killed, err = s.listen(); err != nil {
		t.Fatal(err)
	}
	if err := killed.lock.release(); err != nil {
		t.Fatal(err)
	}
	startNext(func() error {
		c, err := killed.Accept()
		if err == nil {
			c.Close()
		}
		return err
	}, killed.Close)
}

// The lock is a file that only one daemon at a time can take, and is removed when it is released.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.lock")
	l, err := takeLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := takeLock(path); !errors.Is(err, errLocked) {
		t.Errorf("second: %v", err)
	}
	if err := l.release(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	// A daemon has opened a lock file that is then removed. It does not take that lock, and its release does not
	// remove the lock file of another daemon.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	late := &lock{f, path}
	if current, err := late.take(); current || err != nil {
		t.Errorf("a removed file: %v, %v", current, err)
	}
	if l, err = takeLock(path); err != nil {
		t.Fatal(err)
	}
	if err := late.release(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's lock file was removed: %v", err)
	}
	if err := l.release(); err != nil {
		t.Error(err)
	}
}

// A lock that another user takes on the folder does not keep a daemon from starting.
func TestLockOfOtherUsers(t *testing.T) {
	s := Socket{Path: filepath.Join(t.TempDir(), "s"), Mode: 0o600, GID: -1}
	folder, err := os.Open(filepath.Dir(s.Path))
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	l, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.remove(); err != nil {
		t.Error(err)
	}
	// Another file at the path of the lock is neither used nor removed.
	file := s.Path + ".lock"
	for want, makeFile := range map[string]func() error{
		"not empty": func() error { return os.WriteFile(file, []byte("content"), 0o600) },
		"by others": func() error { return errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o644)) },
		"not of":    func() error { return unix.Mkfifo(file, 0o600) },
		"symbolic":  func() error { return os.Symlink("elsewhere", file) },
	} {
		if err := makeFile(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.listen(); err == nil || !strings.Contains(err.Error(), want) && want != "symbolic" {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := os.Lstat(s.Path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", want, err)
		}
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chown(file, 4242, 4242)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.listen(); err == nil || !strings.Contains(err.Error(), "not of uid 0") {
			t.Errorf("another's lock file: %v", err)
		}
	}
}

// CleanSocket removes what a crash leaves at a path, and nothing else.
func TestCleanSocket(t *testing.T) {
	dir := t.TempDir()
	s := Socket{Path: filepath.Join(dir, "s"), Mode: 0o600, GID: -1}
	var reports []string
	clean := func() error {
		reports = nil
		return CleanSocket(s.Path, func(what string) { reports = append(reports, what) })
	}
	if err := clean(); err != nil || reports != nil {
		t.Errorf("nothing there: %v, %v", reports, err)
	}
	l, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := clean(); err != nil || len(reports) != 1 || !strings.HasSuffix(reports[0], "kept, a unetd serves it") {
		t.Errorf("one that serves: %v, %v", reports, err)
	}
	l.crash()
	if err := clean(); err != nil || len(reports) != 1 || !strings.HasSuffix(reports[0], "removed, no process serves it") {
		t.Errorf("after a crash: %v, %v", reports, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := os.WriteFile(s.Path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clean(); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a file: %v, %v", reports, err)
	}
	if b, err := os.ReadFile(s.Path); err != nil || string(b) != "content" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Lstat(s.Path + ".lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("lock: %v", err)
	}
}
