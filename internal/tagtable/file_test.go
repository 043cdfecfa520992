//go:build linux

package tagtable

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

var (
	portTag = endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:7"))
	addrTag = endpoint.AddrTag(netip.MustParseAddr("fd00::1"))
)

// TestAdopt takes over a table that another process has left, of which an application has a view.
func TestAdopt(t *testing.T) {
	dir := t.TempDir()
	first := testutil.Value(Create(dir, "tags"))
	testutil.Must(t, errors.Join(first.Set(portTag, 5), first.Set(addrTag, 6)))
	v := view(t, first)
	if holder(t, v, portTag) != 5 || holder(t, v, addrTag) != 6 {
		t.Fatal("the view does not show what was set")
	}
	before := [3]uint64{v.Epoch(5), v.Epoch(6), v.Epoch(epochs - 1)}
	testutil.Must(t, first.Close())

	second := testutil.Value(Create(dir, "tags"))
	defer second.Close()
	if holder(t, v, portTag) != 0 || holder(t, v, addrTag) != 0 {
		t.Error("tags of the earlier process are left")
	}
	if v.Epoch(5) == before[0] || v.Epoch(6) == before[1] || v.Epoch(epochs-1) == before[2] {
		t.Error("an epoch has not changed")
	}
	// The area is used again.
	other := endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.2:7"))
	testutil.Must(t, second.Set(other, 8))
	if got := holder(t, v, other); got != 8 {
		t.Errorf("endpoint %d holds a tag of the second process, want 8", got)
	}
	if st := testutil.Value(second.f.Stat()); st.Size() != fixedSize+areaSize {
		t.Errorf("%d bytes, want %d", st.Size(), fixedSize+areaSize)
	}
	if holder(t, v, portTag) != 0 {
		t.Error("a port of the earlier process is left in the area")
	}
	if Discard(filepath.Join(dir, "tags")) {
		t.Error("a table in use was discarded")
	}
	testutil.Must(t, second.Remove())
	if holder(t, v, other) != 0 || v.Epoch(8) != ended {
		t.Error("the view does not show that the table has ended")
	}
	if _, err := os.Stat(filepath.Join(dir, "tags")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
	if f := testutil.Value(second.Reader()); true {
		if _, err := Open(f); !errors.Is(err, errNotTable) {
			t.Errorf("a table that has ended was opened: %v", err)
		}
		f.Close()
	}
}

// TestDiscard removes a table that no process serves any more.
func TestDiscard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tags")
	if Discard(path) {
		t.Error("a table that is not there was discarded")
	}
	table := testutil.Value(Create(filepath.Split(path)))
	testutil.Must(t, table.Set(portTag, 5))
	v := view(t, table)
	testutil.Must(t, table.Close())
	if !Discard(path) || holder(t, v, portTag) != 0 || v.Epoch(5) != ended {
		t.Error("the table was not discarded")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
	testutil.Must(t, os.WriteFile(path, []byte("not a table"), 0o600))
	if Discard(path) {
		t.Error("another file was discarded")
	}
}

// TestReplace makes a table where another file is.
func TestReplace(t *testing.T) {
	word := func(f *os.File, i int, n uint64) error {
		_, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, n), int64(8*i))
		return err
	}
	for _, c := range []struct {
		name   string
		damage func(path string, f *os.File) error
		ends   bool // whoever has mapped it sees that it has ended
	}{
		{"another version", func(_ string, f *os.File) error { return word(f, versionWord, version+1) }, true},
		{"a size that no table has", func(_ string, f *os.File) error { return f.Truncate(fixedSize + areaSize + 8) }, true},
		{"no magic, as if the process had died while it was made", func(_ string, f *os.File) error { return word(f, magicWord, 0) }, false},
		{"others may write", func(_ string, f *os.File) error { return f.Chmod(0o666) }, false},
		{"of another user", func(_ string, f *os.File) error { return f.Chown(netlab.NobodyID, -1) }, false},
		{"two names", func(path string, _ *os.File) error { return os.Link(path, path+"2") }, false},
		{"empty", func(path string, _ *os.File) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600))
		}, false},
		{"symbolic link", func(path string, _ *os.File) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, false},
		{"fifo", func(path string, _ *os.File) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if os.Geteuid() != 0 && c.name == "of another user" {
				t.Skip("only root can make one")
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "tags")
			first := testutil.Value(Create(dir, "tags"))
			testutil.Must(t, first.Set(portTag, 5))
			v := view(t, first)
			f := testutil.Value(os.OpenFile(path, os.O_RDWR, 0))
			testutil.Must(t, errors.Join(c.damage(path, f), f.Close()))
			second := testutil.Value(Create(dir, "tags"))
			defer second.Close()
			after := testutil.Value(os.Lstat(path))
			if os.SameFile(testutil.Value(first.f.Stat()), after) || !after.Mode().IsRegular() || after.Mode().Perm() != 0o600 {
				t.Errorf("%v is the file, want another", after.Mode())
			}
			if got := v.Epoch(5) == ended; got != c.ends {
				t.Errorf("the old table has ended: %v, want %v", got, c.ends)
			}
			testutil.Must(t, second.Set(portTag, 6))
			if got := holder(t, view(t, second), portTag); got != 6 {
				t.Errorf("endpoint %d holds the tag, want 6", got)
			}
			testutil.Must(t, first.Close())
		})
	}
	if table, err := Create(filepath.Join(t.TempDir(), "missing"), "tags"); err == nil {
		t.Error("a table in a directory that is missing")
		table.Close()
	}
}

// TestReadOnly tries to write through the descriptor of an application.
func TestReadOnly(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		table := testutil.Value(Create(dir, "tags"))
		defer table.Close()
		f := testutil.Value(table.Reader())
		defer f.Close()
		if mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
			t.Errorf("writable mapping: %v, want EACCES", err)
			_ = unix.Munmap(mem)
		}
		mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		testutil.Must(t, err)
		if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
			t.Errorf("mprotect: %v, want EACCES", err)
		}
		testutil.Must(t, unix.Munmap(mem))
		if err := f.Truncate(0); err == nil {
			t.Error("truncated")
		}
		if os.Geteuid() != 0 {
			t.Skip("only root has another user try")
		}
		// The first command shows that the others do not fail for another reason.
		for _, c := range []struct {
			script string
			works  bool
		}{{"head -c 8 <&3", true}, {"exec 4<>/proc/self/fd/3", false}, {"exec 4>>/proc/self/fd/3", false}} {
			cmd := exec.Command("/bin/sh", "-c", c.script)
			cmd.ExtraFiles, cmd.SysProcAttr = []*os.File{f}, netlab.Nobody()
			if out, err := cmd.CombinedOutput(); (err == nil) != c.works {
				t.Errorf("another user, %s: %v, %s", c.script, err, out)
			}
		}
	}
}
