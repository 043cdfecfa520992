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

// MountBPFFS makes a directory and mounts a BPF file system there, so that a
// run pins its maps and links where nobody else does.
func MountBPFFS(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system at %s: %w", dir, err)
	}
	return nil
}

// UnmountBPFFS undoes MountBPFFS, if it was done. What is still pinned there is
// unpinned by that.
func UnmountBPFFS(dir string) error {
	if err := unix.Unmount(dir, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
