//go:build linux

package xsk

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// The seals of a segment forbid to resize it, and to make it executable where the kernel has such a seal.
func TestSealsOfSegment(t *testing.T) {
	f, err := NewSegment(4096, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if fd, err := unix.MemfdCreate("probe", unix.MFD_NOEXEC_SEAL|unix.MFD_CLOEXEC); err == nil {
		unix.Close(fd)
		want |= unix.F_SEAL_EXEC
	}
	if seals != want {
		t.Errorf("seals %#x, want %#x", seals, want)
	}
}

// If memory is short the error of MapSegment is ErrHugePages only if huge pages were asked for.
func TestMapSegmentWithoutMemory(t *testing.T) {
	const size = 1 << 48 // no process has that much address space; the file has no page of it
	f, err := NewSegment(size, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = MapSegment(f, size)
	if !errors.Is(err, unix.ENOMEM) || errors.Is(err, ErrHugePages) || !strings.Contains(err.Error(), "smaller segment") {
		t.Errorf("ordinary pages: %v", err)
	}
	huge, err := NewSegment(size, true)
	if err != nil {
		t.Skipf("no huge pages here: %v", err)
	}
	defer huge.Close()
	if _, err = MapSegment(huge, size); !errors.Is(err, unix.ENOMEM) || !errors.Is(err, ErrHugePages) {
		t.Errorf("huge pages: %v", err)
	}
}

func TestTextsOfMemoryErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		huge bool
		says string
	}{
		{unix.ENOMEM, false, "call: cannot allocate memory: free some, or ask for a smaller segment"},
		{unix.ENOMEM, true, "vm.nr_hugepages"},
		{unix.ENOBUFS, false, "RLIMIT_MEMLOCK"},
		{unix.EINVAL, true, "call: invalid argument"},
	} {
		err := memoryError("call", c.err, c.huge)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) || errors.Is(err, ErrHugePages) != (c.huge && c.err == unix.ENOMEM) {
			t.Errorf("%v, huge %v: %v", c.err, c.huge, err)
		}
	}
}

// The process that made a segment detects when the last descriptor and mapping of the file that it
// passed on are closed.
func TestSegmentInUse(t *testing.T) {
	const size = 1 << 16
	f, err := NewSegment(size, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := func(used bool, when string) {
		t.Helper()
		if got, err := SegmentInUse(f); err != nil || got != used {
			t.Errorf("%s: in use %v, %v", when, got, err)
		}
	}
	want(false, "at the beginning")
	shared, err := ShareSegment(f)
	if err != nil {
		t.Fatal(err)
	}
	want(true, "shared")
	want(true, "asked twice")
	mem, err := MapSegment(shared, size)
	if err != nil {
		t.Fatal(err)
	}
	mem[0] = 1
	shared.Close()
	want(true, "mapped only")
	if err := UnmapSegment(mem); err != nil {
		t.Fatal(err)
	}
	want(false, "at the end")
}

// An unprivileged process that has the descriptor of a shared segment cannot open the file again
// (/proc/self/fd). SegmentInUse would not count such an open file.
func TestUnprivilegedProcessCannotReopenSegment(t *testing.T) {
	netlab.RequireXDP(t) // root
	f, err := NewSegment(4096, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	shared, err := ShareSegment(f)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	cmd := exec.Command("sh", "-c", "test -e /proc/self/fd/3 && ! cat </proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{shared}
	cmd.SysProcAttr = netlab.Nobody()
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(strings.ToLower(string(out)), "permission denied") {
		t.Errorf("%v: %s", err, out)
	}
}
