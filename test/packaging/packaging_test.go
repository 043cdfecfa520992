//go:build linux

package packaging

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

const applicationArg = "be-an-application"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == applicationArg {
		if err := application(); err != nil {
			fmt.Println("application:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// application answers datagrams at port 7000, and at each port that its input names.
func application() error {
	host, err := unet.Open(context.Background(), unet.Config{})
	if err != nil {
		return err
	}
	defer host.Close()
	for port, lines := "7000", bufio.NewScanner(os.Stdin); ; port = lines.Text() {
		conn, err := host.ListenPacket(context.Background(), "udp", ":"+port)
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := conn.ReadFrom(buf)
				if err != nil {
					fmt.Println("ended:", err)
					return
				}
				if _, err := conn.WriteTo(buf[:n], from); err != nil {
					fmt.Println("send:", err)
				}
			}
		}()
		fmt.Println("answering at", port)
		if !lines.Scan() {
			return lines.Err()
		}
	}
}

// repository is the folder of the module.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func makeTarget(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("make", append([]string{"-s", "-C", repository(t)}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// filesBelow is the files and links below a folder.
func filesBelow(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMakeInstall(t *testing.T) {
	unetd.Tool(t, "make")
	bin, dest := t.TempDir(), t.TempDir()
	args := []string{"BIN=" + bin, "DESTDIR=" + dest, "PREFIX=/opt/unet"}
	makeTarget(t, append(args, "install")...)
	installed := filesBelow(t, dest)
	for _, file := range []string{
		"/opt/unet/sbin/unetd", "/opt/unet/share/man/man8/unetd.8", "/opt/unet/share/man/man8/unetd-serve.8",
		"/opt/unet/lib/systemd/system/unetd.service", "/opt/unet/lib/sysusers.d/unetd.conf", "/opt/unet/lib/tmpfiles.d/unetd.conf",
		"/opt/unet/share/bash-completion/completions/unetd", "/opt/unet/share/zsh/site-functions/_unetd", "/opt/unet/share/fish/vendor_completions.d/unetd.fish",
		"/etc/unet/policy.yaml", "/etc/default/unetd",
	} {
		if !slices.Contains(installed, file) {
			t.Errorf("%s is not installed", file)
		}
	}
	if unit := read(t, dest+"/opt/unet/lib/systemd/system/unetd.service"); !strings.Contains(unit, "ExecStart=/opt/unet/sbin/unetd ") || strings.Contains(unit, "/usr/sbin") {
		t.Errorf("the unit does not start what was installed:\n%s", unit)
	}
	t.Run("policy", func(t *testing.T) {
		out, err := exec.Command(dest+"/opt/unet/sbin/unetd", "check-config", dest+"/etc/unet/policy.yaml").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		out, err = exec.Command(dest+"/opt/unet/sbin/unetd", "check-config", dest+"/etc/unet/policy.yaml", "--as", strconv.Itoa(netlab.NobodyID)).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "nothing is permitted") {
			t.Errorf("the default policy permits user nobody something: %v\n%s", err, out)
		}
	})
	t.Run("completions", func(t *testing.T) {
		if out, err := exec.Command(unetd.Tool(t, "bash"), "-n", dest+"/opt/unet/share/bash-completion/completions/unetd").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("manual", func(t *testing.T) {
		mandoc := unetd.Tool(t, "mandoc")
		pages, err := filepath.Glob(dest + "/opt/unet/share/man/man8/*.8")
		if err != nil || len(pages) < 10 {
			t.Fatalf("%d pages, %v", len(pages), err)
		}
		for _, page := range pages {
			out, _ := exec.Command(mandoc, "-T", "lint", "-W", "warning", page).CombinedOutput()
			for line := range strings.Lines(string(out)) {
				if !strings.Contains(line, "missing date") { // outside of a git repository
					t.Error(line)
				}
			}
		}
		text, err := exec.Command(mandoc, "-T", "ascii", dest+"/opt/unet/share/man/man8/unetd-status.8").Output()
		if plain := strings.Join(strings.Fields(string(text)), " "); err != nil || !strings.Contains(plain, "ENDPOINT is a number from unetd list. A socket is one line") || !strings.Contains(plain, "unetd status -t | grep 'established.*:443 '") {
			t.Errorf("%v\n%s", err, text)
		}
	})

	// Configuration that was changed stays.
	const changed = "rules: []\n"
	if err := os.WriteFile(dest+"/etc/unet/policy.yaml", []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	makeTarget(t, append(args, "install")...)
	makeTarget(t, append(args, "uninstall")...)
	if left := filesBelow(t, dest); !slices.Equal(left, []string{"/etc/unet/policy.yaml"}) || read(t, dest+left[0]) != changed {
		t.Errorf("left by make uninstall: %v", left)
	}
}

// exchange sends a datagram to the application, awaits its answer, and again, until stop. It
// returns the number of answers; one that is lost is an error.
func exchange(h *netlab.Host, to string, answered *atomic.Uint64, stop <-chan struct{}) error {
	conn, err := h.Dial("udp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 2048)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		message := fmt.Sprintf("datagram %d", i)
		if _, err := conn.Write([]byte(message)); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(unetd.TestTimeout)); err != nil {
			return err
		}
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) != message {
			return fmt.Errorf("%s: answer %q, %w", message, buf[:n], err)
		}
		answered.Add(1)
	}
}

// userID is of the application. No other package of tests uses it.
const userID = "61842"

const policyForUser = `rules:
  - name: user
    users: [` + userID + `]
    tags: ["udp:*:7000-7010"]
    endpoints: 1
    memory: 64MiB
`

func TestDebianPackage(t *testing.T) {
	for _, tool := range []string{"make", "git", "gzip", "dpkg-deb", "dpkg"} {
		unetd.Tool(t, tool)
	}
	pair := netlab.RequirePair(t, netlab.Config{})
	bin := t.TempDir()
	makeTarget(t, "deb", "BIN="+bin, "COMPRESS=none", "VERSION=1.0~test1")
	makeTarget(t, "deb", "BIN="+bin, "COMPRESS=none", "VERSION=1.0~test2")
	packages, err := filepath.Glob(bin + "/*.deb")
	if err != nil || len(packages) != 2 {
		t.Fatalf("packages: %v, %v", packages, err)
	}
	s := startSystem(t, pair.A)
	s.copy(packages[0], "/root/1.deb", 0o644)
	s.copy(packages[1], "/root/2.deb", 0o644)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.copy(self, "/usr/local/bin/application", 0o755)

	s.run("dpkg", "--install", "/root/1.deb")
	files := strings.Fields(s.run("dpkg", "--listfiles", "unetd"))
	if got := s.run("systemctl", "is-enabled", "unetd"); got != "enabled" {
		t.Errorf("the unit is %s", got)
	}
	// Without a configured interface unetd attaches to none, and that is no failure.
	if state, result := s.property("ActiveState"), s.property("Result"); state != "inactive" || result != "exec-condition" {
		t.Errorf("before it is configured the unit is %s, %s", state, result)
	}
	if out := s.run("systemd-analyze", "verify", "unetd.service"); out != "" {
		t.Error(out)
	}
	s.run("systemd-analyze", "security", "--threshold=40", "--no-pager", "unetd.service")

	s.write("/etc/default/unetd", "UNETD_OPTS=\"--interface "+pair.A.Interface+"\"\n")
	s.run("systemctl", "start", "unetd")
	if out := s.run("unetd", "uplinks"); !strings.Contains(out, pair.A.Interface) {
		t.Error(out)
	}

	// The user gets an endpoint if its group may connect, and if the policy permits it.
	as := func(groups ...string) []string {
		return append(append([]string{"setpriv", "--reuid", userID, "--regid", userID}, groups...), "/usr/local/bin/application", applicationArg)
	}
	s.wantRefused("permission denied", as("--clear-groups")...)
	member := as("--groups", strings.Split(s.run("getent", "group", "unet"), ":")[2])
	s.wantRefused("no rule of /etc/unet/policy.yaml is for uid", member...)
	s.write("/etc/unet/policy.yaml", "rules: nobody\n")
	s.wantRefused("", "systemctl", "reload", "unetd")
	if log := s.run("journalctl", "-u", "unetd", "--no-pager", "-o", "cat"); !strings.Contains(log, "the old policy stays") {
		t.Errorf("the log does not say that the old policy stays:\n%s", log)
	}
	s.write("/etc/unet/policy.yaml", policyForUser)
	s.run("systemctl", "reload", "unetd")

	cmd := s.command(member...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = netlab.Bound()
	app := unetd.StartCommand(t, pair.A, cmd)
	app.Await(t, "answering at 7000")

	var answered atomic.Uint64
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- exchange(pair.B, net.JoinHostPort(pair.A.IP().String(), "7000"), &answered, stop)
	}()
	wantAnswers := func(what string) {
		t.Helper()
		before := answered.Load()
		if !testutil.Until(func() bool { return answered.Load() > before+10 || len(done) > 0 }) || len(done) > 0 {
			t.Fatalf("%s: the exchange ended after %d answers", what, answered.Load())
		}
		if !testutil.Until(func() bool { return strings.Contains(s.output("unetd", "list"), "leased") }) {
			t.Fatalf("%s: the application did not present its endpoint: %s", what, s.output("unetd", "list"))
		}
	}
	wantAnswers("before the upgrade")

	first, duringUpgrade := s.mainPID(), answered.Load()
	s.run("dpkg", "--install", "--force-confold", "/root/2.deb")
	second := s.mainPID()
	if version := s.run("dpkg-query", "--show", "--showformat=${Version}", "unetd"); version != "1.0~test2" || second == first {
		t.Errorf("after the upgrade: version %s, unetd %d, before %d", version, second, first)
	}
	wantAnswers("after the upgrade")
	t.Logf("%d datagrams answered during the upgrade", answered.Load()-duringUpgrade)
	if got := s.run("cat", "/etc/unet/policy.yaml"); got+"\n" != policyForUser {
		t.Errorf("the upgrade has changed the policy:\n%s", got)
	}
	fmt.Fprintln(stdin, "7001") // by the new unetd
	app.Await(t, "answering at 7001")

	s.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "unetd")
	if !testutil.Until(func() bool {
		pid := s.property("MainPID")
		return s.property("ActiveState") == "active" && pid != strconv.Itoa(second) && pid != "0"
	}) {
		t.Errorf("killed, unetd was not started again:\n%s", s.output("systemctl", "status", "--no-pager", "unetd"))
	}
	wantAnswers("after unetd was killed")
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}

	s.run("dpkg", "--remove", "unetd")
	app.Await(t, "ended: ")
	unetd.Untouched(t, pair.A)
	for _, file := range []string{"/usr/sbin/unetd", "/sys/fs/bpf/unet", "/run/unet/unetd.sock", "/run/unet/unetd.sock.lock"} {
		if s.exists(file) {
			t.Errorf("dpkg --remove left %s", file)
		}
	}
	if !s.exists("/etc/unet/policy.yaml") {
		t.Error("dpkg --remove has removed the policy")
	}
	s.run("dpkg", "--purge", "unetd")
	for _, file := range append(files, "/run/unet", "/etc/systemd/system/multi-user.target.wants/unetd.service") {
		if s.exists(file) && (strings.Contains(file, "unet") || !isDir(s.path(file))) {
			t.Errorf("dpkg --purge left %s", file)
		}
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
