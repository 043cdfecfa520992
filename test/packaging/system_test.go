//go:build linux

package packaging

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// boot makes a root from this machine's and starts systemd in it. As in a container, systemd and
// its processes can change only the kernel settings of the network namespace.
const boot = `
set -e
export container=unet-test PATH=/usr/sbin:/usr/bin:/sbin:/bin
unset NOTIFY_SOCKET
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t bpf -o mode=700 bpf sys/fs/bpf
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
	: > dev/$device
	mount --bind /dev/$device dev/$device
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
: > dev/console
: > etc/machine-id
rm -f usr/sbin/policy-rc.d # images of containers have it, and it forbids to start services
mkdir -p oldroot
pivot_root . oldroot
umount -l /oldroot
exec /lib/systemd/systemd --system --unit=sysinit.target --show-status=no
`

// system is a Debian system on a host of netlab.
type system struct {
	t   *testing.T
	pid string // of its systemd, here
}

func startSystem(t *testing.T, h *netlab.Host) *system {
	t.Helper()
	for _, tool := range []string{"unshare", "nsenter", "systemctl"} {
		unetd.Tool(t, tool)
	}
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skip("no systemd: ", err)
	}
	group := cgroup(t)
	cmd := exec.Command("unshare", "--cgroup", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", boot, "sh", t.TempDir())
	cmd.SysProcAttr = netlab.Bound()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	outer := unetd.StartCommand(t, h, cmd)
	s := &system{t: t}
	children := fmt.Sprintf("/proc/%d/task/%[1]d/children", outer.PID())
	up := testutil.Until(func() bool {
		text, _ := os.ReadFile(children)
		s.pid = strings.TrimSpace(string(text))
		name, _ := os.ReadFile("/proc/" + s.pid + "/comm")
		if hasEnded(outer) {
			t.Fatalf("the system did not start: %v", outer.Err)
		}
		return string(name) == "systemd\n" && s.command("systemctl", "is-system-running", "--wait").Run() == nil
	})
	if !up {
		t.Fatalf("systemd is not running: %s", s.output("systemctl", "--failed", "--no-pager"))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of unetd:\n%s", s.output("journalctl", "-u", "unetd", "--no-pager", "-o", "cat"))
		}
	})
	return s
}

func hasEnded(p *unetd.Process) bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// cgroup makes a version 2 cgroup for the system, which goes with the test.
func cgroup(t *testing.T) *os.File {
	t.Helper()
	mount := t.TempDir()
	if err := unix.Mount("none", mount, "cgroup2", 0, ""); err != nil {
		t.Skipf("no version 2 cgroups: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	path := filepath.Join(mount, fmt.Sprintf("unet-packaging-%d", os.Getpid()))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Skipf("cannot make a cgroup: %v", err)
	}
	t.Cleanup(func() {
		if !testutil.Until(func() bool { return removeCgroups(path) }) {
			t.Errorf("%s is not empty", path)
		}
	})
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

// removeCgroups removes a cgroup and those in it, which systemd made. It reports false while they have processes.
func removeCgroups(path string) bool {
	inner, _ := filepath.Glob(path + "/*/cgroup.procs")
	for _, file := range inner {
		removeCgroups(filepath.Dir(file))
	}
	err := os.Remove(path)
	return err == nil || os.IsNotExist(err)
}

// command is a command of root in the system.
func (s *system) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--target", s.pid, "--all", "--root", "--wd", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}

// run runs a command that must succeed.
func (s *system) run(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// wantRefused runs a command that must fail, with text in its output.
func (s *system) wantRefused(text string, args ...string) {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte(text)) {
		s.t.Errorf("%s: %v, want an error with %q:\n%s", strings.Join(args, " "), err, text, out)
	}
}

// output is the output of a command that may fail.
func (s *system) output(args ...string) string {
	out, _ := s.command(args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}

// path is that of a file of the system, here.
func (s *system) path(name string) string { return filepath.Join("/proc", s.pid, "root", name) }

func (s *system) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) exists(name string) bool {
	_, err := os.Lstat(s.path(name))
	return err == nil
}

// copy copies a file of this machine into the system.
func (s *system) copy(from, to string, mode os.FileMode) {
	s.t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(s.path(to), text, mode)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// property is one of the unit's.
func (s *system) property(name string) string {
	s.t.Helper()
	return s.run("systemctl", "show", "--value", "--property", name, "unetd.service")
}

// mainPID is that of the unetd that runs, in the system.
func (s *system) mainPID() int {
	s.t.Helper()
	pid, err := strconv.Atoi(s.property("MainPID"))
	if err != nil || pid == 0 {
		s.t.Fatalf("no unetd runs: %v\n%s", err, s.output("systemctl", "status", "--no-pager", "unetd"))
	}
	return pid
}
