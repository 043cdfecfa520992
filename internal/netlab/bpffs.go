package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenBPFFS makes a BPF file system of its own, with the permissions of its root
// directory in octal. It is mounted nowhere: the returned directory is all that
// holds it, and what is pinned in it goes when that is closed, or this process
// ends, however it ends.
func OpenBPFFS(mode string) (*os.File, error) {
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen of a BPF file system: %w", err)
	}
	defer unix.Close(fs)
	if err := errors.Join(unix.FsconfigSetString(fs, "mode", mode), unix.FsconfigCreate(fs)); err != nil {
		return nil, fmt.Errorf("configure a BPF file system: %w", err)
	}
	dir, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("fsmount of a BPF file system: %w", err)
	}
	return os.NewFile(uintptr(dir), "bpffs"), nil
}

// PathTo is a path to an open directory that other processes of root can use,
// too, as long as this one keeps it open.
func PathTo(dir *os.File) string {
	return filepath.Join("/proc", strconv.Itoa(os.Getpid()), "fd", strconv.Itoa(int(dir.Fd())))
}

// BPFFS is the path of a BPF file system, for the length of the test.
func BPFFS(t TB) string {
	t.Helper()
	dir, err := OpenBPFFS("0700")
	if err != nil {
		t.Fatalf("netlab: %v", err)
	}
	t.Cleanup(func() { dir.Close() })
	return PathTo(dir)
}
