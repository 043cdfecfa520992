//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// memoryCgroup makes a memory cgroup with a limit in bytes.
func memoryCgroup(t *testing.T, limit int) (dir string) {
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	top, path, file := "", "", ""
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case parts[1] == "memory":
			top, path, file = "/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes"
		case parts[1] == "" && top == "":
			top, path, file = "/sys/fs/cgroup", parts[2], "memory.max"
		}
	}
	dir = filepath.Join(top, path, fmt.Sprintf("unet-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("cannot make a memory cgroup: %v", err)
	}
	t.Cleanup(func() { testutil.Eventually(t, "the cgroup is empty", func() bool { return os.Remove(dir) == nil }) })
	if err := os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, limit), 0); err != nil {
		t.Skipf("cannot limit memory: %v", err)
	}
	return dir
}

// Segments are charged to unetd's memory cgroup. unetd refuses further endpoints before they reach the limit
// of the cgroup, at which the kernel would kill unetd.
func TestMemoryCgroup(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	dir := memoryCgroup(t, 192<<20)
	cmd := s.command("serve", "--ready-fd", "3")
	cmd.Args = append([]string{"sh", "-c", `echo 0 > "$1/cgroup.procs" && shift && exec "$@"`, "sh", dir, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.Env = append(cmd.Env, "GOMEMLIMIT=64MiB")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args[5] = self // /proc/self/exe is the shell's there
	d := serveCommand(t, pair.A, s.socket, cmd)
	d.awaitLine("memory cgroup of unetd limits", "limit=192MiB", "segments=96MiB")
	const size = 8 << 20 // of the segment of a default geometry
	granted := 0
	for ; ; granted++ {
		g, l, err := control.Open(context.Background(), s.socket, endpoint.Request{})
		if errors.Is(err, endpoint.ErrBusy) && strings.Contains(err.Error(), "memory cgroup") {
			break
		}
		if err != nil {
			t.Fatalf("after %d endpoints: %v", granted, err)
		}
		defer g.Close()
		defer l.Close()
	}
	if want := 96 << 20 * 3 / 4 / size; granted != want { // a quarter is kept for users who have nothing
		t.Errorf("%d endpoints, want %d", granted, want)
	}
	d.stop(syscall.SIGTERM)
}
