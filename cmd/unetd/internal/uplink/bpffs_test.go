package uplink

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

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
	fails(dir, "no BPF file system, and not empty: name another")
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

	// What others have put there, or could change, is not gone on from.
	shared := netlab.BPFFS(t)
	ours := filepath.Join(shared, "unet")
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		ok   bool
	}{{0, 0o700, true}, {0, 0o755, true}, {0, 0o777, false}, {netlab.NobodyID, 0o700, false}} {
		if err := os.Mkdir(ours, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(ours, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(ours, c.uid, 0); err != nil {
			t.Fatal(err)
		}
		if err := prepareBPFFS(shared, log); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "anybody's: remove it") {
			t.Errorf("%+v: %v", c, err)
		}
		if err := os.Remove(ours); err != nil {
			t.Fatal(err)
		}
	}
}

// Where no BPF file system is, there is nothing to clean up.
func TestCleanupNowhere(t *testing.T) {
	report := func(what string) { t.Error(what) }
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "none")} {
		if err := Cleanup(d, false, report); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "unet")); err == nil {
		t.Error("cleanup made something")
	}
}
