//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenBPFFS makes a BPF file system of its own, with the permissions of its root
// directory in octal. It is mounted nowhere: only the returned directory
// holds it, and the kernel removes it with its pins when that is closed or this process
// ends.
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

// BPFObject is a map, program or link ("map", "prog", "link") by the kernel's identifier.
type BPFObject struct {
	Kind string
	ID   uint32
}

// HeldBPF is the BPF objects that a process has descriptors of (proc(5),
// /proc/PID/fdinfo). Other processes may have others.
func HeldBPF(pid int) (map[BPFObject]bool, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	held := map[BPFObject]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			kind, ok := strings.CutSuffix(key, "_id")
			if !ok || (kind != "map" && kind != "prog" && kind != "link") {
				continue
			}
			id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			held[BPFObject{kind, uint32(id)}] = true
		}
	}
	return held, nil
}
