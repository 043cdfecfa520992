//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// cgroups mounts the version 2 hierarchy and makes a cgroup in it, which is removed at the end of the test.
func cgroups(t *testing.T) (top, name string) {
	t.Helper()
	mount := t.TempDir()
	if err := unix.Mount("none", mount, "cgroup2", 0, ""); err != nil {
		t.Skipf("no version 2 cgroups: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	name = fmt.Sprintf("unet-test-%d", os.Getpid())
	top = filepath.Join(mount, name)
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Skipf("cannot make a cgroup: %v", err)
	}
	t.Cleanup(func() { removeCgroups(t, top) })
	return top, name
}

// removeCgroups removes a cgroup and those below it when they are empty.
func removeCgroups(t *testing.T, path string) {
	testutil.Eventually(t, "the cgroups are empty", func() bool {
		_ = filepath.WalkDir(path, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && p != path {
				_ = os.Remove(p)
			}
			return nil
		})
		err := os.Remove(path)
		return err == nil || os.IsNotExist(err)
	})
}

// startAppIn starts an application of user nobody in a new cgroup below top.
func startAppIn(t *testing.T, socket, top, name string) *app {
	t.Helper()
	cmd := command(roleApp, socket)
	cmd.SysProcAttr = netlab.Nobody()
	return runAppIn(t, cmd, filepath.Join(top, name))
}

// runAppIn starts an application by its command in a new cgroup at a path.
func runAppIn(t *testing.T, cmd *exec.Cmd, path string) *app {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return runApp(t, cmd)
}

// Applications of the same user get what the rule for the cgroup permits in which they connect.
func TestPolicyByCgroup(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	top, name := cgroups(t)
	file := policyFile(t, fmt.Sprintf(`
rules:
  - {name: web, cgroups: ["/%s/web*"], tags: ["msg:1-9"], endpoints: unlimited, memory: unlimited}
  - {name: db, users: [nobody], cgroups: ["/%s/db"], tags: ["msg:11-19"], endpoints: unlimited, memory: unlimited}
`, name, name))
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	web, db, other := startAppIn(t, s.socket, top, "web.service"), startAppIn(t, s.socket, top, "db"), startAppIn(t, s.socket, top, "other")
	web.expect("open a frames=64 msg:1", "[msg:1]")
	web.expect("open b frames=64 msg:11", "tag-denied: ")
	db.expect("open a frames=64 msg:11", "[msg:11]")
	db.expect("open b frames=64 msg:1", "tag-denied: ")
	if got := other.expect("open a frames=64 msg:1", "permission: "); !strings.Contains(got, fmt.Sprintf(`in cgroup "/%s/other" on`, name)) {
		t.Error(got)
	}
	// A process that is moved to another cgroup keeps its lease under the rule of the cgroup in which it
	// connected. Its next lease is under the rule of the new cgroup.
	if err := os.WriteFile(filepath.Join(top, "web.service", "cgroup.procs"), fmt.Append(nil, db.cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	db.expect("claim a msg:12", "msg:12")
	db.expect("open b frames=64 msg:3", "[msg:3]")
	// check-config --cgroup applies the rule of a cgroup too.
	code, stdout, stderr := runHere(t, nil, "check-config", file, "--as", "65534", "--cgroup", "/"+name+"/web.service/x", "--interface", "eth0", "msg:1")
	if code != 0 || !strings.Contains(stdout, "rule web, line 3") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	d.kill()
	d = s.serve(t, "--socket-mode", "0666", "--policy", file)
	for range 3 {
		d.awaitLine("endpoint presented")
	}
	web.expect("claim a msg:2", "msg:2")
	db.expect("claim b msg:4", "msg:4")
}

// requireBubblewrap skips the test where bwrap is not installed, or fails it if UNET_REQUIRE_TOOLS=1.
func requireBubblewrap(t *testing.T) {
	t.Helper()
	switch _, err := exec.LookPath("bwrap"); {
	case err == nil:
	case os.Getenv("UNET_REQUIRE_TOOLS") == "1":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// container is a command that runs in bubblewrap: a read-only root, no network, PID and IPC namespaces of its own,
// no capability, and the further mounts in binds.
func container(t *testing.T, attr *syscall.SysProcAttr, binds []string, args ...string) *exec.Cmd {
	t.Helper()
	inner := command(roleApp, args...)
	binary := filepath.Join(filepath.Dir(socketPath(t)), "app") // where user nobody can reach it
	text, err := os.ReadFile(thisBinary(t))
	if err == nil {
		err = os.WriteFile(binary, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bwrap", append(append([]string{"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/mnt",
		"--unshare-net", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL", "--die-with-parent"}, binds...), append([]string{"--", binary}, args...)...)...)
	cmd.Env, cmd.SysProcAttr = inner.Env, attr
	return cmd
}

// An application in a container, with a user namespace or without, uses the folder of the socket
// that is mounted there. unetd sees the user outside, and the next unetd takes the endpoint over.
func TestApplicationInBubblewrap(t *testing.T) {
	requireBubblewrap(t)
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	folder := filepath.Dir(s.socket)
	inside := "/mnt/unet/" + filepath.Base(s.socket)

	root := runApp(t, container(t, netlab.Bound(), []string{"--ro-bind", folder, "/mnt/unet"}, inside))
	root.expect("capabilities -", fmt.Sprintf("uid 0 %016x", 0))
	root.expect("open a frames=64 msg:100", "[msg:100]") // only the rule of root permits it

	// This application is uid 0 in its user namespace.
	user := runApp(t, container(t, netlab.Nobody(), []string{"--unshare-user", "--uid", "0", "--gid", "0", "--ro-bind", folder, "/mnt/unet"}, inside))
	user.expect("capabilities -", fmt.Sprintf("uid 0 %016x", 0))
	user.expect("open a frames=64 msg:100", "tag-denied: unetd at "+inside+": tag not allowed: msg:100: rule nobodys of ")
	user.expect("open a frames=64 msg:1 udp:10.0.0.1:7000", "[msg:1 udp:10.0.0.1:7000]")

	d.kill()
	d = s.serve(t, "--socket-mode", "0666", "--policy", file)
	d.awaitLine("endpoint presented")
	d.awaitLine("endpoint presented")
	user.expect("claim a msg:2", "msg:2")
	root.expect("claim a msg:101", "msg:101")
}

// Applications of two users in two containers talk by memory: they share the folder of unetd's socket, read-only, and nothing else.
func TestContainersTalkByMemory(t *testing.T) {
	requireBubblewrap(t)
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, `
rules:
  - name: all
    users: [root, nobody]
    tags: ["tcp:*:1024-65535"]
    endpoints: 1
    memory: 64MiB
`))
	binds := []string{"--ro-bind", filepath.Dir(s.socket), "/mnt/unet"}
	inside := "/mnt/unet/" + filepath.Base(s.socket)
	server := runApp(t, container(t, netlab.Nobody(), append([]string{"--unshare-user"}, binds...), inside))
	client := runApp(t, container(t, netlab.Bound(), binds, inside))
	server.expect("serve a tcp :7000", "10.0.0.1:7000")
	client.expect("dial a tcp 10.0.0.1:7000", "10.0.0.1:")
	testutil.Eventually(t, "frames by memory, both ways", func() bool {
		client.expect("echo a text", "text")
		var list []endpoint.Status
		testutil.Must(t, json.Unmarshal([]byte(s.run(t, "status", "--json")), &list))
		return len(list) == 2 && !slices.ContainsFunc(list, func(e endpoint.Status) bool {
			return e.Paths != 1 || e.Published == nil || e.Published.PathReceived == 0
		})
	})
}

// A socket that is mounted as a file is still the socket of the unetd that made it. When the next unetd has
// reclaimed the endpoint, the lease of the application ends with an error that says so.
func TestSocketMountedAsFile(t *testing.T) {
	requireBubblewrap(t)
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	a := runApp(t, container(t, netlab.Bound(), []string{"--ro-bind", s.socket, "/mnt/s"}, "/mnt/s"))
	a.expect("open a frames=64 msg:1", "[msg:1]")
	d.kill()
	s.serve(t, "--socket-mode", "0666", "--policy", file, "--grace", "100ms")
	got := a.expect("ended a", "lease closed: the port of the endpoint was deleted, by an operator or by a unetd to which this process could not connect: ")
	if !strings.Contains(got, "/mnt/s has ended") || !strings.Contains(got, "mount its folder instead") {
		t.Error(got)
	}
	if got := a.ask("open b frames=64 msg:1"); !strings.Contains(got, "mount its folder instead") {
		t.Error(got)
	}
}
