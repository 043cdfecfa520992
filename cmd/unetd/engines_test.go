//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// engine is a program that runs containers.
type engine struct {
	name    string   // also the program
	flags   []string // of every command of podman and docker
	tree    string   // root of a container: empty folders on which directories of the host are mounted
	image   []string // arguments that make the tree the root of a container
	count   int      // of containers
	cgroups bool     // unetd sees the cgroup of a container, which this engine can set
}

// isOCI reports whether the commands are those of docker; else they are those of systemd-nspawn.
func (e *engine) isOCI() bool { return e.name != "systemd-nspawn" }

// mappedRoot is the uid outside of uid 0 in a container with a user namespace.
const mappedRoot = 100000

// containersConf keeps podman apart from other uses of podman on a machine. A root without
// CAP_SYS_RESOURCE may set these limits too.
const containersConf = `
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "%s"
`

// requireEngine skips the test where the engine runs no container, or fails it if
// UNET_REQUIRE_CONTAINERS names the engine.
func requireEngine(t *testing.T, name string) *engine {
	t.Helper()
	unusable := t.Skipf
	if slices.Contains(strings.Split(os.Getenv("UNET_REQUIRE_CONTAINERS"), ","), name) {
		unusable = t.Fatalf
	}
	if _, err := exec.LookPath(name); err != nil {
		unusable("%v", err)
	}
	dir := filepath.Dir(socketPath(t)) // short, and user nobody can enter it
	e := &engine{name: name, tree: filepath.Join(dir, "tree"), cgroups: true}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		e.cgroups = false
	}
	for _, f := range []string{"proc", "sys", "dev", "etc", "tmp", "run", "mnt", "usr", "app"} {
		if err := os.MkdirAll(filepath.Join(e.tree, f), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(e.tree, "app", "app"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.tree, "mnt", "s"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(e.tree, "run", "unet"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"lib", "lib64"} { // a test binary with the race detector is dynamically linked
		if target, err := os.Readlink("/" + f); err == nil {
			if err := os.Symlink(target, filepath.Join(e.tree, f)); err != nil {
				t.Fatal(err)
			}
		}
	}
	binary, err := os.ReadFile(thisBinary(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "app"), binary, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !e.isOCI() {
		if out, err := e.run(t, nil, nil, roleUnetd, "version").CombinedOutput(); err != nil {
			unusable("%s runs no container: %v: %s", name, err, out)
		}
		return e
	}
	runtimes := [][]string{nil}
	if name == "podman" {
		conf := filepath.Join(dir, "containers.conf")
		if err := os.WriteFile(conf, fmt.Appendf(nil, containersConf, filepath.Join(dir, "tmp")), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Setenv("CONTAINERS_CONF", conf)
		e.flags = []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
		e.image = []string{"--rootfs", e.tree}
		runtimes = append(runtimes, []string{"--runtime", "runc"})
	} else {
		e.importImage(t, unusable)
	}
	var reasons []string
	flags := e.flags
	for _, r := range runtimes {
		e.flags = slices.Concat(r, flags)
		out, err := e.run(t, nil, nil, roleUnetd, "version").CombinedOutput()
		if err == nil {
			return e
		}
		reasons = append(reasons, fmt.Sprintf("%v: %s", err, out))
	}
	unusable("%s runs no container: %s", name, strings.Join(reasons, "; "))
	return nil
}

// importImage gives docker an image of the tree.
func (e *engine) importImage(t *testing.T, unusable func(string, ...any)) {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := errors.Join(w.AddFS(os.DirFS(e.tree)), w.Close()); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("unet-test:%d", os.Getpid())
	load := e.command(t, "import", "-", name)
	load.Stdin = &layer
	if out, err := load.CombinedOutput(); err != nil {
		unusable("%s makes no image: %v: %s", e.name, err, out)
	}
	t.Cleanup(func() {
		if out, err := e.command(t, "rmi", "--force", name).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	e.image = []string{name}
}

// command is a command of podman or docker. It is killed if it does not end within testTimeout.
func (e *engine) command(t *testing.T, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, e.name, slices.Concat(e.flags, args)...)
}

// bind is a mount from outside, read-only.
type bind struct{ from, to string }

// run is a command that runs this binary in a container, which ends with the test: without
// capabilities and network, with a read-only root, no_new_privs and the engine's own seccomp filter.
func (e *engine) run(t *testing.T, options []string, binds []bind, role string, args ...string) *exec.Cmd {
	t.Helper()
	if e.isOCI() {
		return e.oci(t, append([]string{"--network", "none", "--cap-drop", "ALL", "--read-only", "--security-opt", "no-new-privileges"}, options...), binds, role, args...)
	}
	all := slices.Concat([]string{"--quiet", "--pipe", "--register=no", "--keep-unit", "--directory", e.tree, "--read-only", "--private-network",
		"--timezone=off", "--drop-capability=all", "--no-new-privileges=yes", "--setenv=" + roleVariable + "=" + role, "--machine", e.next()}, options)
	for _, b := range e.binds(binds) {
		all = append(all, "--bind-ro="+b.from+":"+b.to)
	}
	cmd := exec.Command(e.name, slices.Concat(all, []string{"/app/app"}, args)...)
	cmd.SysProcAttr = netlab.Bound()
	return cmd
}

// oci is a run of podman or docker, with these options only.
func (e *engine) oci(t *testing.T, options []string, binds []bind, role string, args ...string) *exec.Cmd {
	t.Helper()
	name := e.next()
	all := slices.Concat([]string{"run", "--interactive", "--rm", "--name", name, "--env", roleVariable + "=" + role}, options)
	for _, b := range e.binds(binds) {
		all = append(all, "--volume", b.from+":"+b.to+":ro")
	}
	cmd := exec.Command(e.name, slices.Concat(e.flags, all, e.image, []string{"/app/app"}, args)...)
	cmd.SysProcAttr = netlab.Bound()
	t.Cleanup(func() { _ = e.command(t, "rm", "--force", name).Run() }) // it may have ended
	return cmd
}

// next is a new name for a container.
func (e *engine) next() string {
	e.count++
	return e.container()
}

// container is the name of the last container.
func (e *engine) container() string { return fmt.Sprintf("unet-test-%d-%d", os.Getpid(), e.count) }

// binds are the mounts of every container, and more.
func (e *engine) binds(more []bind) []bind {
	return append([]bind{{filepath.Join(filepath.Dir(e.tree), "app"), "/app/app"}, {"/usr", "/usr"}}, more...)
}

// An application in a container of an engine gets an endpoint by the mounted folder of the socket,
// without any capability, and goes on when unetd is killed and started again.
func TestEngines(t *testing.T) {
	for _, name := range []string{"podman", "docker", "systemd-nspawn"} {
		t.Run(name, func(t *testing.T) {
			e := requireEngine(t, name)
			t.Run("application", e.testApplication)
			t.Run("socket mounted as a file", e.testSocketMountedAsFile)
			if name == "podman" { // the network namespace of docker's containers is that of its daemon
				t.Run("unetd", e.testUnetd)
			}
		})
	}
}

// containerPolicy has a rule for uid 0 in cgroups below one, and one for a user of a user namespace.
const containerPolicy = `
rules:
  - {name: box, users: [0], cgroups: ["/%s/*"], tags: ["msg:1-9", "udp:*:*", "tcp:*:*"], endpoints: unlimited, memory: unlimited}
  - {name: mapped, users: [100000], tags: ["msg:11-19", "udp:*:*", "tcp:*:*"], endpoints: unlimited, memory: unlimited}
`

// policy is containerPolicy for a cgroup, without rules by cgroup if unetd does not see the cgroups.
func (e *engine) policy(t *testing.T, group string) string {
	t.Helper()
	text := fmt.Sprintf(containerPolicy, group)
	if !e.cgroups {
		t.Log("/sys/fs/cgroup has no cgroups of version 2: without rules by cgroup")
		text = strings.ReplaceAll(text, fmt.Sprintf(`cgroups: ["/%s/*"], `, group), "")
	}
	return text
}

// rootIn starts an application of uid 0 in a container below a cgroup.
func (e *engine) rootIn(t *testing.T, top, group string, binds []bind, socket string) *app {
	t.Helper()
	if e.isOCI() {
		return runApp(t, e.run(t, []string{"--cgroup-parent", "/" + group}, binds, roleApp, socket))
	}
	return runAppIn(t, e.run(t, nil, binds, roleApp, socket), filepath.Join(top, "box"))
}

// mapped are options for a container whose uid 0 is mappedRoot outside.
func (e *engine) mapped() (options []string, uid int) {
	switch e.name {
	case "podman":
		return []string{"--uidmap", fmt.Sprintf("0:%d:65536", mappedRoot), "--gidmap", fmt.Sprintf("0:%d:65536", mappedRoot)}, 0
	case "docker": // a user namespace is an option of its daemon
		return []string{"--user", fmt.Sprintf("%d:%d", mappedRoot, mappedRoot)}, mappedRoot
	default:
		return []string{fmt.Sprintf("--private-users=%d:65536", mappedRoot)}, 0
	}
}

func (e *engine) testApplication(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	echo, err := pair.B.ServeEcho("10.0.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	top, group := cgroups(t)
	file := policyFile(t, e.policy(t, group))
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	binds := []bind{{filepath.Dir(s.socket), "/run/unet"}}
	inside := "/run/unet/" + filepath.Base(s.socket)

	options, uid := e.mapped()
	apps := []*app{
		e.rootIn(t, top, group, binds, inside),
		runApp(t, e.run(t, options, binds, roleApp, inside)),
	}
	for i, a := range apps {
		a.expect("capabilities -", fmt.Sprintf("uid %d %016x no_new_privs 1 seccomp 2", i*uid, 0))
		a.expect("dial u udp 10.0.0.2:7000", "10.0.0.1:")
		a.expect("dial t tcp 10.0.0.2:7000", "10.0.0.1:")
		a.expect("echo u before", "before")
		a.expect("echo t before", "before")
		a.expect("open a frames=64 msg:"+[]string{"1", "11"}[i], "[msg:")
		if got := a.ask("open b frames=64 msg:100"); !strings.HasPrefix(got, "tag-denied: ") || !strings.Contains(got, "rule "+[]string{"box", "mapped"}[i]+" of ") {
			t.Error(got)
		}
	}
	if e.cgroups {
		other := runApp(t, command(roleApp, s.socket))
		other.expect("open a frames=64 msg:1", "permission: ")
	}
	d.kill()
	for _, a := range apps {
		a.expect("echo t without", "without")
	}
	d = s.serve(t, "--socket-mode", "0666", "--policy", file)
	for range 3 * len(apps) {
		d.awaitLine("endpoint presented")
	}
	for i, a := range apps {
		a.expect("echo u after", "after")
		a.expect("echo t after", "after")
		a.expect("claim a msg:"+[]string{"2", "12"}[i], "msg:")
	}
}

func (e *engine) testSocketMountedAsFile(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	a := runApp(t, e.run(t, nil, []bind{{s.socket, "/mnt/s"}}, roleApp, "/mnt/s"))
	a.expect("open a frames=64 msg:1", "[msg:1]")
	d.kill()
	s.serve(t, "--socket-mode", "0666", "--policy", file, "--grace", "100ms")
	if got := a.ask("ended a"); !strings.HasPrefix(got, "lease closed: ") || !strings.Contains(got, "/mnt/s has ended") || !strings.Contains(got, "mount its folder instead") {
		t.Error(got)
	}
}

// serve starts unetd in a container that has the network of the site's host, and the BPF file system if
// that is not empty. It is ready when this returns, and the name of the container is known.
func (e *engine) serve(t *testing.T, s *site, bpffs string, options []string, args ...string) (d *process, name string) {
	t.Helper()
	folder := filepath.Dir(s.socket)
	options = append([]string{"--privileged", "--network", "host", "--volume", folder + ":" + folder}, options...)
	if bpffs != "" {
		options = append(options, "--volume", bpffs+":/sys/fs/bpf")
	}
	cmd := e.oci(t, options, nil, roleUnetd, append([]string{"serve", "--interface", s.host.Interface, "--socket", s.socket, "--socket-mode", "0666"}, args...)...)
	d = &process{t: t, cmd: cmd, socket: s.socket, stderr: make(chan string, 1000)}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	d.watch(stderr)
	return d, e.container()
}

// unetd in a container that has the BPF file system of the host leaves endpoints to the next one. It
// sees applications in containers, and their cgroups, with the PID and cgroup namespaces of the host.
func (e *engine) testUnetd(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	echo, err := pair.B.ServeEcho("10.0.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	bpffs := filepath.Join(t.TempDir(), "bpf")
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	mountBPFFS(t, bpffs, unix.MNT_DETACH)
	top, group := cgroups(t)
	policy := filepath.Join(filepath.Dir(s.socket), "policy.yaml")
	writePolicy(t, policy, e.policy(t, group))

	host := []string{"--pid", "host", "--cgroupns", "host"}
	d, name := e.serve(t, s, bpffs, host, "--policy", policy)
	d.awaitLine("msg=ready")
	a := e.rootIn(t, top, group, []bind{{filepath.Dir(s.socket), "/run/unet"}}, "/run/unet/"+filepath.Base(s.socket))
	a.expect("dial t tcp 10.0.0.2:7000", "10.0.0.1:")
	a.expect("echo t before", "before")
	a.expect("open a frames=64 msg:1", "[msg:1]")

	// The container ends by a command of the engine, and another one is started in its place.
	replace := func(command ...string) {
		t.Helper()
		if out, err := e.command(t, append(command, name)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_ = d.wait()
		a.expect("echo t without", "without")
		d, name = e.serve(t, s, bpffs, host, "--policy", policy, "--keep")
		d.awaitLine("endpoint presented")
		d.awaitLine("endpoint presented")
		a.expect("echo t after", "after")
	}
	replace("kill", "--signal", "KILL")
	a.expect("claim a msg:2", "msg:2")
	replace("stop")
	a.expect("claim a msg:3", "msg:3")
	a.kill()
	if out, err := e.command(t, "stop", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_ = d.wait()
	if code, out, stderr := finish(t, pair.A, command(roleUnetd, "cleanup", "--force", "--bpffs", bpffs, "--socket", s.socket)); code != 0 {
		t.Errorf("cleanup: exit %d, %s%s", code, out, stderr)
	}

	// Without the BPF file system of the host unetd logs a warning, and unetd doctor reports the problem
	// before.
	for _, options := range [][]string{nil, {"--pid", "host"}} {
		options := append([]string{"--privileged", "--network", "host"}, options...)
		code, out, _ := finish(t, pair.A, e.oci(t, options, nil, roleUnetd, "doctor", "--interface", s.host.Interface, "--socket", s.socket))
		if code != 1 || !strings.Contains(out, "/sys/fs/bpf is no BPF file system, and the one that unetd mounts there ends with this container or mount namespace") {
			t.Errorf("unetd doctor, %v: exit %d\n%s", options, code, out)
		}
		d, name = e.serve(t, s, "", options[3:])
		if w := d.warnings(); len(w) != 1 || !strings.Contains(w[0], "takes nothing over") {
			t.Errorf("warnings, %v: %q", options, w)
		}
		if out, err := e.command(t, "stop", name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_ = d.wait()
	}
}
