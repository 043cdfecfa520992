//go:build linux

package uplink

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/internal/netlab"
)

// prepareBPFFS mounts a BPF file system once, and refuses directories that other users can change.
func TestPrepareBPFFS(t *testing.T) {
	netlab.RequireXDP(t)
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	fails := func(dir, want string) {
		t.Helper()
		if err := prepareBPFFS(dir, log); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--bpffs "+dir) {
			t.Errorf("%s: %v, want %s", dir, err, want)
		}
	}
	fails(filepath.Join(dir, "none"), "make it (mkdir -p")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fails(dir, "not a BPF file system, and not empty: name another")
	fails(file, "not a directory")

	mounted := filepath.Join(dir, "bpf")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	for range 2 { // mounted, then found mounted
		if err := prepareBPFFS(mounted, log); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(mounted); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Errorf("it was mounted more than once, or not at all: %v", err)
	}

	// A directory that other users have made, or can change, is refused.
	shared := netlab.BPFFS(t)
	pins := filepath.Join(shared, "unet")
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		ok   bool
	}{{0, 0o700, true}, {0, 0o755, true}, {0, 0o777, false}, {netlab.NobodyID, 0o700, false}} {
		if err := os.Mkdir(pins, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(pins, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(pins, c.uid, 0); err != nil {
			t.Fatal(err)
		}
		if err := prepareBPFFS(shared, log); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "other users can change what is in it: remove it") {
			t.Errorf("%+v: %v", c, err)
		}
		if err := os.Remove(pins); err != nil {
			t.Fatal(err)
		}
	}
}

// Without a BPF file system Cleanup does nothing.
func TestCleanupWithoutBPFFS(t *testing.T) {
	report := func(what string) { t.Error(what) }
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "none")} {
		if err := Cleanup(d, t.TempDir(), false, report); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "unet")); err == nil {
		t.Error("Cleanup has made a directory")
	}
}

// The limit of the memory cgroup of a process, of version 1 and 2.
func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name, cgroup, mounts string
		files                map[string]string
		want                 int64
	}{
		{"version 2", "0::/system.slice/unetd.service\n", "30 23 0:26 / TOP rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			map[string]string{"system.slice/unetd.service/memory.max": "268435456\n", "system.slice/memory.max": "max\n"}, 256 << 20},
		{"one above", "0::/system.slice/unetd.service\n", "30 23 0:26 / TOP rw - cgroup2 cgroup2 rw\n",
			map[string]string{"system.slice/unetd.service/memory.max": "268435456\n", "system.slice/memory.max": "1048576\n"}, 1 << 20},
		{"no limit", "0::/user.slice\n", "30 23 0:26 / TOP rw - cgroup2 cgroup2 rw\n", map[string]string{"user.slice/memory.max": "max\n"}, policy.Unlimited},
		{"the root", "0::/\n", "30 23 0:26 / TOP rw - cgroup2 cgroup2 rw\n", nil, policy.Unlimited},
		{"version 1", "5:cpu,memory:/a\n0::/b\n", "30 23 0:26 / /no/such rw - cgroup cgroup rw,pids\n31 23 0:27 / TOP rw shared:9 - cgroup cgroup rw,cpu,memory\n",
			map[string]string{"a/memory.limit_in_bytes": "65536\n", "memory.limit_in_bytes": "9223372036854771712\n"}, 64 << 10},
		{"not mounted", "5:memory:/a\n0::/b\n", "31 23 0:27 / /proc rw - proc proc rw\n", nil, policy.Unlimited},
	} {
		dir := t.TempDir()
		write := func(name, text string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/cgroup", c.cgroup)
		write("proc/mountinfo", strings.ReplaceAll(c.mounts, "TOP", dir+"/top"))
		for name, text := range c.files {
			write("top/"+name, text)
		}
		if got, err := memoryLimit(dir + "/proc"); got != c.want || err != nil {
			t.Errorf("%s: %d, %v; want %d", c.name, got, err, c.want)
		}
	}
}
