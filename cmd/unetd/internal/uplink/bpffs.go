//go:build linux

package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
)

// DefaultBPFFS is the conventional mount point of the BPF file system.
const DefaultBPFFS = "/sys/fs/bpf"

// prepareBPFFS makes sure that dir is a BPF file system in which only this user can change pins. It
// mounts one over an empty directory.
func prepareBPFFS(dir string, log *slog.Logger) error {
	mounted, own, err := InspectBPFFS(dir)
	if err != nil {
		return err
	}
	if !mounted {
		if err := mountBPFFS(dir); err != nil {
			return err
		}
		log.Info("BPF file system mounted", "bpffs", dir)
		own = private(dir) || Contained()
	}
	if own {
		log.Warn("the BPF file system is in a mount namespace of its own and ends with it: if this unetd is killed, all endpoints end, and the next unetd takes nothing over: "+
			"start unetd by nsenter --net=/run/netns/NAME instead of ip netns exec NAME, or mount one outside (mount -t bpf bpf DIR) and name it by --bpffs; in a container, mount that of the host there", "bpffs", dir)
	}
	return nil
}

// InspectBPFFS reports whether a BPF file system is mounted at dir, and whether it, or the one that
// unetd would mount there, is only in this mount namespace, with which it ends. The error is why unetd cannot use dir. It changes nothing.
func InspectBPFFS(dir string) (mounted, own bool, err error) {
	var st unix.Statfs_t
	err = unix.Statfs(dir, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, false, fmt.Errorf("--bpffs %s: there is no such folder: make it (mkdir -p %s), or name another", dir, dir)
	case err != nil:
		return false, false, fmt.Errorf("--bpffs %s: %w", dir, err)
	case st.Type != unix.BPF_FS_MAGIC:
		return false, Contained() || ownMounts(dir), checkEmpty(dir)
	}
	return true, private(dir), checkOwner(dir)
}

// checkOwner returns an error if this user cannot make pins in dir, or other users may have made them.
func checkOwner(dir string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("--bpffs %s: uid %d cannot write there: %w: give it the folder (chown), or name another", dir, os.Geteuid(), err)
	}
	// If other users can write to the BPF file system, one of them may have made the directory.
	ours := filepath.Join(dir, "unet")
	var in unix.Stat_t
	err := unix.Lstat(ours, &in)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("--bpffs %s: %w", ours, err)
	case in.Mode&unix.S_IFMT != unix.S_IFDIR || in.Uid != 0 && int(in.Uid) != os.Geteuid() || in.Mode&0o022 != 0:
		return fmt.Errorf("--bpffs %s: uid %d owns it, mode %#o, so other users can change what is in it: remove it, or name another", ours, in.Uid, in.Mode&0o7777)
	}
	return nil
}

// mountBPFFS mounts a BPF file system of mode 0700 over an empty folder.
func mountBPFFS(dir string) error {
	if err := checkEmpty(dir); err != nil {
		return err
	}
	err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700")
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("--bpffs %s: this kernel has no BPF file system: use one that was built with CONFIG_BPF_SYSCALL", dir)
	case err != nil:
		return fmt.Errorf("--bpffs %s: cannot mount a BPF file system: %w: mount it as root (mount -t bpf bpf %s)", dir, err, dir)
	}
	return nil
}

// checkEmpty returns an error if dir has entries.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("--bpffs %s: %w", dir, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("--bpffs %s: it is not a BPF file system, and not empty: name another", dir)
	}
	return nil
}

// private reports whether the BPF file system at dir is mounted in this process's mount namespace
// and not in that of process 1, so that it ends with this namespace. `ip netns exec` and
// unshare(1) make such a namespace. Without /proc/1 the result is false.
func private(dir string) bool {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return false
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	here, err := mounts("/proc/thread-self/mountinfo", mountDevice, device)
	first, firstErr := mounts("/proc/1/mountinfo", mountDevice, device)
	return err == nil && firstErr == nil && here && !first
}

// ownMounts reports whether this process is in another mount namespace than process 1: the mount
// that dir is on is not one of process 1. Without /proc/1 the result is false.
func ownMounts(dir string) bool {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &st); err != nil {
		return false
	}
	first, err := mounts("/proc/1/mountinfo", mountID, strconv.FormatUint(st.Mnt_id, 10))
	return err == nil && !first
}

// firstPIDNamespace is the inode of the first PID namespace of a system (PROC_PID_INIT_INO,
// include/uapi/linux/nsfs.h).
const firstPIDNamespace = 0xEFFFFFFC

// Contained reports whether this process is in a PID namespace of its own, as in a container: its
// process 1 says nothing about the mounts of the host.
func Contained() bool {
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &st) == nil && st.Ino != firstPIDNamespace
}

// Fields of a line of mountinfo (proc_pid_mountinfo(5)).
const (
	mountID     = 0
	mountDevice = 2
)

// mounts reports whether a mount with this value of a field is in a list of mounts.
func mounts(list string, field int, value string) (bool, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > field && f[field] == value {
			return true, nil
		}
	}
	return false, nil
}

// The pages of a segment are charged to the memory cgroup of the process that registers it with a
// socket (unetd or its child), not to that of its owner. At the limit of that cgroup the kernel
// kills unetd. So all segments together have a lower limit (ADR 29).

// ownMemory is the part of its cgroup's memory that unetd keeps for itself, in bytes. In a cgroup
// of less than twice that, segments get half.
const ownMemory = 128 << 20

// memoryBound is the limit of the segments of all users together, in bytes; 0: none.
func memoryBound(log *slog.Logger) (int64, error) {
	limit, bound, err := MemoryBound()
	if err != nil || limit == policy.Unlimited {
		return 0, err
	}
	log.Info("the memory cgroup of unetd limits the segments of all users together", "limit", policy.Bytes(limit), "segments", policy.Bytes(bound))
	return bound, nil
}

// MemoryBound is the limit of this process's memory cgroup (policy.Unlimited: none), and what a unetd
// in it would limit the segments of all users together to, both in bytes.
func MemoryBound() (limit, segments int64, err error) {
	limit, err = memoryLimit("/proc/self")
	if err != nil || limit == policy.Unlimited {
		return limit, 0, err
	}
	return limit, max(limit-ownMemory, limit/2), nil
}

// memoryLimit is the smallest limit of a process's memory cgroup and its visible ancestors, in
// bytes. proc is the folder of the process in /proc.
func memoryLimit(proc string) (int64, error) {
	groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return 0, err
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return 0, err
	}
	least := int64(policy.Unlimited)
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path (cgroups(7)); version 2 has no controllers.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		file, kind := "memory.max", "cgroup2"
		switch {
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			file, kind = "memory.limit_in_bytes", "cgroup"
		case parts[1] != "":
			continue
		}
		top := mountOf(string(mounts), kind)
		if top == "" {
			continue
		}
		for path := filepath.Clean("/" + parts[2]); ; path = filepath.Dir(path) {
			n, err := readLimit(filepath.Join(top, path, file))
			if err != nil {
				return 0, err
			}
			if n != policy.Unlimited && (least == policy.Unlimited || n < least) {
				least = n
			}
			if path == "/" {
				break
			}
		}
	}
	return least, nil
}

// mountOf is the mount point of the cgroup hierarchy that limits memory (proc_pid_mountinfo(5)). In
// version 1 it has the mount option memory.
func mountOf(mounts, kind string) string {
	for line := range strings.Lines(mounts) {
		place, system, found := strings.Cut(line, " - ")
		fields, types := strings.Fields(place), strings.Fields(system)
		if !found || len(fields) < 5 || len(types) < 3 || types[0] != kind {
			continue
		}
		if kind == "cgroup2" || slices.Contains(strings.Split(types[2], ","), "memory") {
			return fields[4]
		}
	}
	return ""
}

// noLimit is the least value that version 1 shows for no limit.
const noLimit = 1 << 62

// readLimit reads a limit. Without the file there is none: the root cgroup has none, and so has a
// cgroup outside the mounted hierarchy.
func readLimit(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Unlimited, nil
	}
	if err != nil {
		return 0, err
	}
	value := strings.TrimSpace(string(text))
	n, err := strconv.ParseInt(value, 10, 64)
	if value == "max" || err == nil && n >= noLimit {
		return policy.Unlimited, nil
	}
	return n, err
}
