//go:build linux

package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/cmd/unetd/internal/doctor"
	"github.com/unet-go/unet/internal/netlab"
)

// examined is what unetd doctor has said.
type examined struct {
	t        *testing.T
	code     int
	findings []doctor.Finding
}

// doctor runs unetd doctor on the site's host, with further arguments.
func (s *site) doctor(t *testing.T, args ...string) examined {
	t.Helper()
	return examine(t, s.host, s.doctorCommand(args...))
}

func (s *site) doctorCommand(args ...string) *exec.Cmd {
	return command(roleUnetd, append([]string{"doctor", "--json", "--interface", s.host.Interface, "--socket", s.socket, "--bpffs", s.bpffs}, args...)...)
}

func examine(t *testing.T, host *netlab.Host, cmd *exec.Cmd) examined {
	t.Helper()
	code, stdout, stderr := finish(t, host, cmd)
	var report struct {
		OK       bool
		Problems int
		Findings []doctor.Finding
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, stdout, stderr)
	}
	problems := 0
	for _, f := range report.Findings {
		if f.Verdict == doctor.Problem {
			problems++
		}
	}
	if report.OK != (code == 0) || code > 1 || report.Problems != problems || (problems > 0) != (code == 1) {
		t.Errorf("exit %d with %s", code, stdout)
	}
	return examined{t, code, report.Findings}
}

// expect expects a finding with all of these texts in what was found and the remedy.
func (x examined) expect(check string, v doctor.Verdict, texts ...string) {
	x.t.Helper()
next:
	for _, f := range x.findings {
		if f.Check != check || f.Verdict != v {
			continue
		}
		for _, text := range texts {
			if !strings.Contains(f.Found+" -> "+f.Remedy, text) {
				continue next
			}
		}
		return
	}
	x.t.Errorf("no %s about %s with %q, but:", v, check, texts)
	for _, f := range x.findings {
		if f.Check == check {
			x.t.Errorf("%+v", f)
		}
	}
}

// On a host on which unetd works there is no problem, and the endpoint of the test leaves nothing.
func TestDoctor(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	before := attached(t, pair.A)
	x := s.doctor(t, "--policy", file)
	if x.code != 0 {
		t.Errorf("%+v", x.findings)
	}
	x.expect("endpoint", doctor.OK, "an endpoint was opened")
	x.expect("BTF", doctor.OK)
	x.expect("BPF", doctor.OK)
	x.expect("pins", doctor.OK, "none")
	x.expect("socket", doctor.OK, "no unetd is running")
	x.expect("policy", doctor.OK, "rules: 2")
	x.expect("interface", doctor.OK, "of kind veth, up")
	x.expect("addresses", doctor.OK, "10.0.0.1/24")
	x.expect("mode", doctor.OK, "tcx: a virtual link of kind veth")
	x.expect("MTU", doctor.OK, "1500 bytes")
	if now := attached(t, pair.A); now != before {
		t.Errorf("attached: %s, before %s", now, before)
	}
	s.untouched(t)

	d := s.serve(t, "--policy", file, "--socket-mode", "0666")
	x = s.doctor(t, "--policy", file)
	x.expect("mode", doctor.OK, "a running unetd serves")
	x.expect("pins", doctor.OK, "a running unetd serves uplink")
	x.expect("socket", doctor.OK, "a unetd answers", "mode 0666")
	d.kill()
	x = s.doctor(t, "--policy", file)
	x.expect("pins", doctor.Note, "no unetd serves uplink", "unetd cleanup --bpffs "+s.bpffs)
	x.expect("socket", doctor.Note, "left its socket there", "unetd cleanup --socket "+s.socket)
	s.run(t, "cleanup")
}

// What is wrong is named, with the command that puts it right.
func TestDoctorNames(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	folder := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	wrong := write("policy.yaml", "rules: [{name: a, users: [root], colour: red}]\n")
	open := write("open.yaml", "rules: []\n")
	if err := os.Chmod(open, 0o666); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none")
	x := s.doctor(t, "--interface", "none", "--policy", wrong, "--bpffs", none, "--socket", wrong)
	x.expect("interface", doctor.Problem, `no such interface: "none"`)
	x.expect("policy", doctor.Problem, `no field "colour"`, "unetd check-config "+wrong)
	x.expect("bpffs", doctor.Problem, "mkdir -p "+none)
	x.expect("socket", doctor.Problem, "is not a socket")
	shared := folder("shared", 0o777)
	x = s.doctor(t, "--interface", "lo", "--policy", open, "--bpffs", dir, "--socket", filepath.Join(shared, "s"))
	x.expect("interface", doctor.Problem, "not an Ethernet interface")
	x.expect("policy", doctor.Problem, "chmod o-w "+open)
	x.expect("bpffs", doctor.Problem, "not a BPF file system, and not empty")
	x.expect("socket folder", doctor.Problem, "mode 0777", "chmod 0755 "+shared)
	closed, empty := folder("closed", 0o700), folder("empty", 0o700)
	x = s.doctor(t, "--policy", none, "--bpffs", empty, "--socket", filepath.Join(closed, "s"))
	x.expect("policy", doctor.Problem, "no such file")
	x.expect("bpffs", doctor.Note, "mount -t bpf bpf "+empty)
	x.expect("socket folder", doctor.Note, "chmod 0755 "+closed)

	// The interface is down and without an address, and lo accepts addresses of the host.
	err := pair.A.Do(func() error {
		l, err := netlink.LinkByName(pair.A.Interface)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(l); err != nil {
			return err
		}
		if err := netlink.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: pair.A.Addr.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/conf/lo/accept_local", []byte("1"), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	x = s.doctor(t, "--socket", "/"+strings.Repeat("s", 107))
	x.expect("socket", doctor.Problem, "has 108 bytes")
	x.expect("interface", doctor.Problem, "ip link set dev uplink up")
	x.expect("addresses", doctor.Note, "ip address add ADDRESS/LENGTH dev uplink")
	x.expect("accept_local", doctor.Note, "sysctl -w net.ipv4.conf.lo.accept_local=0")
	examine(t, pair.A, command(roleUnetd, "doctor", "--json")).expect("interfaces", doctor.Note, "no Ethernet interface has an address")
}

// In a mount namespace whose BPF file system ends with it, and whose sysctls are read-only.
func TestDoctorInMountNamespace(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.bpffs = t.TempDir()
	cmd := s.doctorCommand()
	within := exec.Command("unshare", append([]string{"--mount", "sh", "-c",
		`mount -t bpf bpf "$0" && mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"`, s.bpffs, thisBinary(t)}, cmd.Args[1:]...)...)
	within.Env, within.SysProcAttr = cmd.Env, cmd.SysProcAttr
	x := examine(t, pair.A, within)
	x.expect("bpffs", doctor.Problem, "in a mount namespace of its own", "nsenter --net=")
	x.expect("sysctl", doctor.Problem, "/proc/sys is read-only")

	// Where none is mounted yet, unetd would mount one, which ends with the namespace, too.
	within = exec.Command("unshare", append([]string{"--mount", thisBinary(t)}, cmd.Args[1:]...)...)
	within.Env, within.SysProcAttr = cmd.Env, cmd.SysProcAttr
	examine(t, pair.A, within).expect("bpffs", doctor.Problem, "ends with this container or mount namespace", "nsenter --net=")
}

func thisBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A user without privileges learns what was not examined, and that is no problem.
func TestDoctorWithoutPrivileges(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	cmd := s.doctorCommand("--policy", "/proc/1/mem") // a file that only root can read
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: netlab.NobodyID, Gid: netlab.NobodyID}
	x := examine(t, pair.A, cmd)
	if x.code != 0 {
		t.Errorf("%+v", x.findings)
	}
	x.expect("privileges", doctor.Note, "CAP_SYS_ADMIN", "run unetd doctor as root")
	x.expect("endpoint", doctor.Note, "run unetd doctor as root")
	x.expect("BPF", doctor.Note, "not examined", "run unetd doctor as root")
	x.expect("bpffs", doctor.Note, "not examined")
	x.expect("policy", doctor.Note, "not examined")
	x.expect("programs", doctor.Note, "not examined")
	x.expect("interface", doctor.OK, "of kind veth, up")
}

// The text has a line for each finding, and its remedy in the next.
func TestDoctorText(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	code, stdout, stderr := finish(t, pair.A, command(roleUnetd, "doctor", "--interface", "none", "--bpffs", netlab.BPFFS(t)))
	if code != 1 || stderr != "unetd: there is a problem\n" || !strings.Contains(stdout, "\nnone\n  problem  interface ") || !strings.Contains(stdout, " -> choose one that ip link shows\n") ||
		!strings.HasSuffix(stdout, " 1 with a problem\n") || strings.Contains(stdout, "%!") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
}
