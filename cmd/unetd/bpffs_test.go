//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// warnings are the lines of level WARN about the BPF file system until unetd is ready.
func (d *process) warnings() (found []string) {
	d.t.Helper()
	for line := range d.stderr {
		if strings.Contains(line, "msg=ready") {
			return found
		}
		if strings.Contains(line, "level=WARN") && strings.Contains(line, "BPF file system") {
			found = append(found, line)
		}
	}
	d.t.Fatal("unetd has ended")
	return nil
}

// mountBPFFS mounts a BPF file system at a folder, and unmounts it with these flags at the end of the test.
func mountBPFFS(t *testing.T, folder string, unmountFlags int) {
	t.Helper()
	if err := unix.Mount("bpf", folder, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unmountFlags); err != nil {
			t.Error(err)
		}
	})
}

// A unetd whose mount namespace ends with it warns, because the next one does not find
// its pins. A unetd that uses the BPF file system of the system does not warn.
func TestWarningOfPrivateBPFFS(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.bpffs = filepath.Join(t.TempDir(), "bpf")
	if err := os.Mkdir(s.bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	serve := func() *process {
		cmd := s.command("serve", "--ready-fd", "3", "--socket-mode", "0666", "--policy", policyFile(t, nobodys))
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS // as ip netns exec does
		return serveCommand(t, s.host, s.socket, cmd)
	}
	d := serve()
	if w := d.warnings(); len(w) != 1 || !strings.Contains(w[0], "takes nothing over") || !strings.Contains(w[0], "nsenter --net=") || !strings.Contains(w[0], "bpffs="+s.bpffs) {
		t.Errorf("warnings: %q", w)
	}
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	d.kill()
	testutil.Eventually(t, "the program is detached from the uplink", func() bool { return !strings.Contains(attached(t, pair.A), "uplink:program") })
	a.kill()

	mountBPFFS(t, s.bpffs, 0)
	mountinfo, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	if !strings.Contains(string(mountinfo), " "+s.bpffs+" ") {
		want = 1 // this test is in a mount namespace of its own
	}
	d = serve()
	if w := d.warnings(); len(w) != want {
		t.Errorf("warnings: %q, want %d", w, want)
	}
	a = startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	d.kill()
	d = serve()
	d.awaitLine("endpoint presented")
}
