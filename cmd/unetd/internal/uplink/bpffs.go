package uplink

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DefaultBPFFS is where the BPF file system is, by convention.
const DefaultBPFFS = "/sys/fs/bpf"

// prepareBPFFS makes sure that dir is a BPF file system in which this process
// can keep what nobody else may touch. It mounts one where there is nothing.
func prepareBPFFS(dir string, log *slog.Logger) error {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("--bpffs %s: there is no such folder: make it (mkdir -p %s), or name another", dir, dir)
	case err != nil:
		return fmt.Errorf("--bpffs %s: %w", dir, err)
	case st.Type != unix.BPF_FS_MAGIC:
		if err := mountBPFFS(dir); err != nil {
			return err
		}
		log.Info("BPF file system mounted", "bpffs", dir)
		if private() {
			log.Warn("unetd is in a mount namespace of its own, so what it keeps for the next unetd ends with that: mount a BPF file system outside (mount -t bpf bpf "+dir+")", "bpffs", dir)
		}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("--bpffs %s: uid %d cannot keep anything there: %w: give it the folder (chown), or name another", dir, os.Geteuid(), err)
	}
	// In a BPF file system that everybody can write to, somebody else may have
	// been there first.
	ours := filepath.Join(dir, "unet")
	var in unix.Stat_t
	err = unix.Lstat(ours, &in)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("--bpffs %s: %w", ours, err)
	case in.Mode&unix.S_IFMT != unix.S_IFDIR || in.Uid != 0 && int(in.Uid) != os.Geteuid() || in.Mode&0o022 != 0:
		return fmt.Errorf("--bpffs %s: it is of uid %d, mode %#o, so what is in it may be anybody's: remove it, or name another", ours, in.Uid, in.Mode&0o7777)
	}
	return nil
}

// mountBPFFS mounts a BPF file system that is root's alone, over an empty folder.
func mountBPFFS(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("--bpffs %s: %w", dir, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("--bpffs %s: it is no BPF file system, and not empty: name another", dir)
	}
	err = unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700")
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("--bpffs %s: this kernel has no BPF file system: use one that was built with CONFIG_BPF_SYSCALL", dir)
	case err != nil:
		return fmt.Errorf("--bpffs %s: cannot mount a BPF file system: %w: mount it as root (mount -t bpf bpf %s)", dir, err, dir)
	}
	return nil
}

// private reports whether this process is known to see other mounts than the
// system's first one does.
func private() bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	first, firstErr := os.Readlink("/proc/1/ns/mnt")
	return err == nil && firstErr == nil && own != first
}
