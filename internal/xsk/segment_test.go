package xsk

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A segment cannot be resized, nor, where the kernel can promise that, be executed.
func TestSegmentSeals(t *testing.T) {
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

// Too little memory is not for want of huge pages, unless they were asked for.
func TestTooLittleMemory(t *testing.T) {
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

func TestMemoryErrors(t *testing.T) {
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
