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

// At the moment of bind, before the mode is set, nobody is let in.
func TestBindIsClosed(t *testing.T) {
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

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := Socket{Path: path, Mode: 0o600, GID: -1}.listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.remove(); err != nil {
		t.Error(err)
	}
}

// Whatever else is at the path stays there.
func TestPathIsSomethingElse(t *testing.T) {
	dir := t.TempDir()
	file, link, folder, stream, target := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "folder"),
		filepath.Join(dir, "stream"), filepath.Join(dir, "target")
	if err := errors.Join(os.WriteFile(file, []byte("precious"), 0o600), os.Symlink(target, link), os.Mkdir(folder, 0o700)); err != nil {
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

// A socket in the abstract namespace would have no mode to guard it.
func TestNeverAbstract(t *testing.T) {
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

// A daemon that ends late does not take its successor's socket away.
func TestRemoveLeavesTheSuccessor(t *testing.T) {
	s := Socket{Path: filepath.Join(t.TempDir(), "s"), Mode: 0o600, GID: -1}
	first, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
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
	if err := second.remove(); err != nil { // nothing left to do
		t.Error(err)
	}
}

// Of many that start at once over a dead one's socket, one wins.
func TestManyStartAtOnce(t *testing.T) {
	s := Socket{Path: filepath.Join(t.TempDir(), "s"), Mode: 0o600, GID: -1}
	dead, err := s.listen()
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []*listener
	for range 8 {
		wg.Go(func() {
			l, err := s.listen()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, l)
			} else if !strings.Contains(err.Error(), "socket path in use") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d listeners", len(won))
	}
	if err := won[0].remove(); err != nil {
		t.Error(err)
	}
}

func TestFolderIsLocked(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		again, err := lockFolder(dir)
		if err == nil {
			again()
		}
		got <- err
	}()
	if _, err := lockFolder(dir); err == nil || !strings.Contains(err.Error(), "cannot lock") {
		t.Errorf("%v", err)
	}
	unlock()
	<-got // either of them may have given up
}
