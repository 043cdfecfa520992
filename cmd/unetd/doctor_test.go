//go:build linux

package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/cmd/unetd/internal/doctor"
	"github.com/unet-go/unet/internal/netlab"
)

// doctorReport is the report of unetd doctor.
type doctorReport struct {
	t        *testing.T
	code     int
	findings []doctor.Finding
}

// doctor runs unetd doctor on the site's host, with further arguments.
func (s *site) doctor(t *testing.T, args ...string) doctorReport {
	t.Helper()
	return examine(t, s.host, s.doctorCommand(args...))
}

// doctorCommand is unetd doctor with this site's paths.
func (s *site) doctorCommand(args ...string) *exec.Cmd {
	return command(roleUnetd, append([]string{"doctor", "--json", "--interface", s.host.Interface, "--socket", s.socket, "--bpffs", s.bpffs}, args...)...)
}

// examine runs unetd doctor --json, and checks that the exit code is that of its report.
func examine(t *testing.T, host *netlab.Host, cmd *exec.Cmd) doctorReport {
	t.Helper()
	code, stdout, stderr := finish(t, host, cmd)
	var parsed struct {
		OK       bool
		Problems int
		Findings []doctor.Finding
	}
	if err := json.Unmarshal([]byte(stdout), &parsed); err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, stdout, stderr)
	}
	problems := 0
	for _, f := range parsed.Findings {
		if f.Verdict == doctor.Problem {
			problems++
		}
	}
	if parsed.OK != (code == 0) || code > 1 || parsed.Problems != problems || (problems > 0) != (code == 1) {
		t.Errorf("exit %d with %s", code, stdout)
	}
	return doctorReport{t, code, parsed.Findings}
}

// expect expects a finding of a check with a verdict, and with all of these texts in what was found and in
// the remedy.
func (r doctorReport) expect(check string, v doctor.Verdict, texts ...string) {
	r.t.Helper()
next:
	for _, f := range r.findings {
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
	r.t.Errorf("no %s about %s with %q, but:", v, check, texts)
	for _, f := range r.findings {
		if f.Check == check {
			r.t.Errorf("%+v", f)
		}
	}
}

// On a host on which unetd works there is no problem. The endpoint that doctor opens for a test is removed.
func TestDoctorOnWorkingHost(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	before := attached(t, pair.A)
	report := s.doctor(t, "--policy", file)
	if report.code != 0 {
		t.Errorf("%+v", report.findings)
	}
	report.expect("endpoint", doctor.OK, "an endpoint was opened")
	report.expect("BTF", doctor.OK)
	report.expect("pins", doctor.OK, "none")
	report.expect("socket", doctor.OK, "no unetd is running")
	report.expect("policy", doctor.OK, "rules: 2")
	report.expect("interface", doctor.OK, "of kind veth, up")
	report.expect("addresses", doctor.OK, "10.0.0.1/24")
	report.expect("mode", doctor.OK, "tcx: a virtual link of kind veth")
	report.expect("MTU", doctor.OK, "1500 bytes")
	if now := attached(t, pair.A); now != before {
		t.Errorf("attached: %s, before %s", now, before)
	}
	s.expectNothingLeft(t)

	d := s.serve(t, "--policy", file, "--socket-mode", "0666")
	report = s.doctor(t, "--policy", file)
	report.expect("mode", doctor.OK, "a running unetd serves")
	report.expect("pins", doctor.OK, "a running unetd serves uplink")
	report.expect("socket", doctor.OK, "a unetd answers", "mode 0666")
	d.kill()
	report = s.doctor(t, "--policy", file)
	report.expect("pins", doctor.Note, "no unetd serves uplink", "unetd cleanup --bpffs "+s.bpffs)
	report.expect("socket", doctor.Note, "left its socket there", "unetd cleanup --socket "+s.socket)
	s.run(t, "cleanup")
}

// A finding about what is wrong has the command that corrects it.
func TestDoctorReportsProblems(t *testing.T) {
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
	invalid := write("policy.yaml", "rules: [{name: a, users: [root], colour: red}]\n")
	writable := write("writable.yaml", "rules: []\n")
	if err := os.Chmod(writable, 0o666); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none")
	report := s.doctor(t, "--interface", "none", "--policy", invalid, "--bpffs", none, "--socket", invalid)
	report.expect("interface", doctor.Problem, `no such interface: "none"`)
	report.expect("policy", doctor.Problem, `no field "colour"`, "unetd check-config "+invalid)
	report.expect("bpffs", doctor.Problem, "mkdir -p "+none)
	report.expect("socket", doctor.Problem, "is not a socket")
	shared := folder("shared", 0o777)
	report = s.doctor(t, "--interface", "lo", "--policy", writable, "--bpffs", dir, "--socket", filepath.Join(shared, "s"))
	report.expect("interface", doctor.Problem, "not an Ethernet interface")
	report.expect("policy", doctor.Problem, "chmod o-w "+writable)
	report.expect("bpffs", doctor.Problem, "not a BPF file system, and not empty")
	report.expect("socket folder", doctor.Problem, "mode 0777", "chmod 0755 "+shared)
	closed, empty := folder("closed", 0o700), folder("empty", 0o700)
	report = s.doctor(t, "--policy", none, "--bpffs", empty, "--socket", filepath.Join(closed, "s"))
	report.expect("policy", doctor.Problem, "no such file")
	report.expect("bpffs", doctor.Note, "mount -t bpf bpf "+empty)
	report.expect("socket folder", doctor.Note, "chmod 0755 "+closed)

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
	report = s.doctor(t, "--socket", "/"+strings.Repeat("s", 107))
	report.expect("socket", doctor.Problem, "has 108 bytes")
	report.expect("interface", doctor.Problem, "ip link set dev uplink up")
	report.expect("addresses", doctor.Note, "ip address add ADDRESS/LENGTH dev uplink")
	report.expect("accept_local", doctor.Note, "sysctl -w net.ipv4.conf.lo.accept_local=0")
	examine(t, pair.A, command(roleUnetd, "doctor", "--json")).expect("interfaces", doctor.Note, "no Ethernet interface has an address")
}

// doctor notes addresses whose packets the kernel sends by another interface, and shows the flags of addresses.
func TestDoctorRoutes(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true, LinkLocal: true})
	s := newSite(t, pair.A)
	addVethPair(t, pair.A, "aside", "10.70.0.1/24")
	s.doctor(t).expect("routes", doctor.Note, "from 10.0.0.1 and 1 more only hosts with a route of their own", "ip route add default via GATEWAY dev uplink")
	for _, line := range []string{
		"addr add 10.0.0.5/24 dev uplink", "addr add fd00::5/64 dev uplink nodad preferred_lft 0",
		"route add default via 10.0.0.2", "route add default via fd00::2",
	} {
		ip(t, pair.A, line)
	}
	report := s.doctor(t)
	report.expect("addresses", doctor.OK, "10.0.0.1/24, 10.0.0.5/24 secondary", "fd00::5/64 deprecated")
	report.expect("routes", doctor.OK, "leave by uplink")
	ip(t, pair.A, "route add 10.0.0.0/24 dev aside table 100")
	ip(t, pair.A, "rule add from 10.0.0.5 lookup 100")
	ip(t, pair.A, "route replace default via 10.70.0.2")
	onHost(t, pair.A, func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/uplink/rp_filter", []byte("1"), 0) })
	report = s.doctor(t)
	report.expect("routes", doctor.Note, "from 10.0.0.5 to 10.0.0.0/24 the kernel sends by aside", "ip rule add from 10.0.0.5 lookup TABLE")
	report.expect("routes", doctor.Note, "from 10.0.0.1 and 1 more to hosts outside of all subnets the kernel sends by aside", "rp_filter is 1", "unetd serve --interface aside too")
	if n := len(slices.DeleteFunc(report.findings, func(f doctor.Finding) bool { return f.Check != "routes" })); n != 2 {
		t.Errorf("%d findings about routes", n)
	}
	if report.code != 0 {
		t.Errorf("exit %d", report.code)
	}
}

// doctor reports a BPF file system that ends with its mount namespace, and sysctls that are read-only.
func TestDoctorInMountNamespace(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.bpffs = t.TempDir()
	cmd := s.doctorCommand()
	unshared := exec.Command("unshare", append([]string{"--mount", "sh", "-c",
		`mount -t bpf bpf "$0" && mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"`, s.bpffs, thisBinary(t)}, cmd.Args[1:]...)...)
	unshared.Env, unshared.SysProcAttr = cmd.Env, cmd.SysProcAttr
	report := examine(t, pair.A, unshared)
	report.expect("bpffs", doctor.Problem, "in a mount namespace of its own", "nsenter --net=")
	report.expect("sysctl", doctor.Problem, "/proc/sys is read-only")

	// If no BPF file system is mounted there, unetd mounts one, which ends with the namespace too.
	unshared = exec.Command("unshare", append([]string{"--mount", thisBinary(t)}, cmd.Args[1:]...)...)
	unshared.Env, unshared.SysProcAttr = cmd.Env, cmd.SysProcAttr
	examine(t, pair.A, unshared).expect("bpffs", doctor.Problem, "ends with this container or mount namespace", "nsenter --net=")
}

// thisBinary is the path of the test binary.
func thisBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// For a user without privileges doctor reports what it could not examine as a note, not as a problem.
func TestDoctorWithoutPrivileges(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	cmd := s.doctorCommand("--policy", "/proc/1/mem") // a file that only root can read
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: netlab.NobodyID, Gid: netlab.NobodyID}
	report := examine(t, pair.A, cmd)
	if report.code != 0 {
		t.Errorf("%+v", report.findings)
	}
	report.expect("privileges", doctor.Note, "CAP_SYS_ADMIN", "run unetd doctor as root")
	report.expect("endpoint", doctor.Note, "run unetd doctor as root")
	report.expect("bpffs", doctor.Note, "not examined")
	report.expect("policy", doctor.Note, "not examined")
	report.expect("programs", doctor.Note, "not examined")
	report.expect("interface", doctor.OK, "of kind veth, up")
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
