//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// testTimeout is how long a test waits for what must happen.
const testTimeout = 2 * time.Minute

// This test binary also runs as unetd and as an application, chosen by an environment
// variable, so that they run in other namespaces and as other users.
const (
	roleVariable = "UNETD_TEST_ROLE"
	roleUnetd    = "unetd"
	roleApp      = "application"
)

// TestMain runs more tests at a time than there are processors: for part of their time they wait for a process or
// for the kernel. Those that check or change what the whole machine has (cgroups, limits, other processes), or that
// depend on time, as endpoints that are presented to the next unetd do, are not parallel, and so run before all others.
func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case roleUnetd:
		main()
	case roleApp:
		newApplication(os.Args[1]).run()
	default:
		testutil.Parallel(4)
		os.Exit(m.Run())
	}
}

// command runs this binary in a role, by a link that another user can reach too.
func command(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.SysProcAttr = netlab.Bound()
	return cmd
}

// runHere runs a command line of unetd in this process, on host if that is not nil. A process of its own
// takes much longer to start. It is for commands that end and do not handle signals.
func runHere(t *testing.T, host *netlab.Host, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out bytes.Buffer
	code, stderr = runHereTo(t, host, &out, args...)
	return code, out.String(), stderr
}

// runHereTo is runHere with another place for stdout.
func runHereTo(t *testing.T, host *netlab.Host, stdout io.Writer, args ...string) (code int, stderr string) {
	t.Helper()
	var errOut bytes.Buffer
	command := func() error {
		code = run(args, stdout, &errOut)
		return nil
	}
	if host == nil {
		_ = command()
	} else {
		onHost(t, host, command)
	}
	return code, errOut.String()
}

// killAtEnd kills a process at the end of the test if it is still running then.
func killAtEnd(t testing.TB, cmd *exec.Cmd) {
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
}

// smallGeometry is the geometry of an endpoint with few frames and short rings.
func smallGeometry(frames uint32) endpoint.Geometry {
	return endpoint.Geometry{FrameCount: frames, FillSize: 64, CompletionSize: 64, RxSize: 64, TxSize: 64}
}

// finish runs cmd to its end, on host if that is not nil.
func finish(t *testing.T, host *netlab.Host, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var o bytes.Buffer
	code, stderr = finishTo(t, host, cmd, &o)
	return code, o.String(), stderr
}

// finishTo is finish with another place for stdout.
func finishTo(t *testing.T, host *netlab.Host, cmd *exec.Cmd, stdout io.Writer) (code int, stderr string) {
	t.Helper()
	var e bytes.Buffer
	cmd.Stdout, cmd.Stderr = stdout, &e
	start := cmd.Start
	if host != nil {
		start = func() error { return host.Start(cmd) }
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(testTimeout, func() { cmd.Process.Kill() })
	defer kill.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), e.String()
}

// site is a host on which unetd runs several times, with its files.
type site struct {
	host          *netlab.Host
	socket, bpffs string
}

func newSite(t testing.TB, host *netlab.Host) *site {
	t.Helper()
	return &site{host, socketPath(t), netlab.BPFFS(t)}
}

// args is a command line of unetd with this site's paths. Flags in args override them.
func (s *site) args(name string, args ...string) []string {
	places := map[string][]string{
		"serve":    {"--interface", s.host.Interface, "--socket", s.socket, "--bpffs", s.bpffs},
		"capture":  {"--bpffs", s.bpffs, "--socket", s.socket},
		"cleanup":  {"--socket", s.socket, "--bpffs", s.bpffs},
		"list":     {"--socket", s.socket},
		"status":   {"--socket", s.socket},
		"counters": {"--socket", s.socket},
		"uplinks":  {"--socket", s.socket},
		"route":    {"--socket", s.socket},
		"revoke":   {"--socket", s.socket},
		"reload":   {"--socket", s.socket},
		"drain":    {"--socket", s.socket},
	}
	return slices.Concat([]string{name}, places[name], args)
}

// command is a process of unetd with this site's paths.
func (s *site) command(name string, args ...string) *exec.Cmd {
	return command(roleUnetd, s.args(name, args...)...)
}

// run runs a command of unetd on the site's host. It expects exit code 0 and nothing on
// stderr.
func (s *site) run(t *testing.T, name string, args ...string) (stdout string) {
	t.Helper()
	var code int
	var stderr string
	if name == "cleanup" { // opens links and locks, which only the end of its process may close
		code, stdout, stderr = finish(t, s.host, s.command(name, args...))
	} else {
		code, stdout, stderr = runHere(t, s.host, s.args(name, args...)...)
	}
	if code != 0 || stderr != "" {
		t.Errorf("unetd %s %v: exit %d, %s%s", name, args, code, stdout, stderr)
	}
	return stdout
}

// process is a unetd that was started by a test.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	socket string
	stderr chan string // lines; closed at its end
	last   []string    // the lines that wait has read
}

// serve starts unetd and waits until it is ready.
func (s *site) serve(t testing.TB, args ...string) *process {
	t.Helper()
	return serveCommand(t, s.host, s.socket, s.command("serve", append([]string{"--ready-fd", "3"}, args...)...))
}

// serveCommand starts a unetd that has --ready-fd 3 and waits until it is ready.
func serveCommand(t testing.TB, host *netlab.Host, socket string, cmd *exec.Cmd) *process {
	t.Helper()
	ready, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{w}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	w.Close()
	d := &process{t: t, cmd: cmd, socket: socket, stderr: make(chan string, 1000)}
	d.watch(stderr)
	if err := ready.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	if line, err := io.ReadAll(ready); string(line) != "ready\n" {
		cmd.Process.Kill()
		for line := range d.stderr {
			t.Log(line)
		}
		t.Fatalf("ready line %q, %v", line, err)
	}
	return d
}

// watch reads stderr of the process. It kills the process at the end of the test.
func (d *process) watch(stderr io.Reader) {
	go func() {
		defer close(d.stderr)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			d.stderr <- lines.Text()
		}
	}()
	killAtEnd(d.t, d.cmd)
}

// awaitLine waits for a line on stderr that contains all of the given parts.
func (d *process) awaitLine(parts ...string) {
	d.t.Helper()
	timeout := time.After(testTimeout)
	var others []string
next:
	for {
		select {
		case line, ok := <-d.stderr:
			if !ok {
				d.t.Fatalf("no line with %q, but:\n%s", parts, strings.Join(others, "\n"))
			}
			for _, p := range parts {
				if !strings.Contains(line, p) {
					others = append(others, line)
					continue next
				}
			}
			return
		case <-timeout:
			d.t.Fatalf("no line with %q, but:\n%s", parts, strings.Join(others, "\n"))
		}
	}
}

// signal sends signals.
func (d *process) signal(signals ...os.Signal) {
	d.t.Helper()
	for _, s := range signals {
		if err := d.cmd.Process.Signal(s); err != nil {
			d.t.Fatal(err)
		}
	}
}

// stop sends a signal and expects exit code 0, and that the socket is removed.
func (d *process) stop(s os.Signal) {
	d.t.Helper()
	d.signal(s)
	if err := d.wait(); err != nil {
		d.t.Errorf("unetd after %v: %v; the last lines of its log:\n%s", s, err, strings.Join(d.last, "\n"))
	}
	if _, err := os.Lstat(d.socket); !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("the socket: %v", err)
	}
}

// kill ends the process by SIGKILL.
func (d *process) kill() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Fatal(err)
	}
	_ = d.wait() // killed
}

// wait waits for the end. All of stderr is read first, as exec.Cmd.Wait requires.
func (d *process) wait() error {
	kill := time.AfterFunc(testTimeout, func() { d.cmd.Process.Kill() })
	defer kill.Stop()
	for line := range d.stderr {
		d.last = append(d.last, line)
	}
	return d.cmd.Wait()
}

// socketPath is a path for a socket in a new folder that other users can enter, unlike t.TempDir.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "unetd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "s")
}

// Exit code, stdout and stderr of command lines. Those for which this test starts a process are the ones
// that handle signals, and one of each exit code.
func TestCommandLine(t *testing.T) {
	ownProcess := []string{"", "serve", "serve --interface lo --policy /no/such/policy"}
	for _, c := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"", 0, "Available Commands", ""},
		{"--help", 0, "serve", ""},
		{"serve --help", 0, "unetd serve --interface eth0 --socket-group unet", ""},
		{"version", 0, "control protocol 1, go1.", ""},
		{"--version", 0, "control protocol 1, go1.", ""},
		{"serve", 2, "", "unetd: no --interface given: see unetd serve --help"},
		{"serve --help", 0, "SIGHUP or unetd reload reads the file again", ""},
		{"serve --help", 0, "--socket-mode 0666", ""},
		{"serve --help", 0, "With --keep everything stays attached", ""},
		{"serve --help", 0, "within --grace are reclaimed", ""},
		{"check-config --help", 0, "unetd check-config ./policy.yaml --as alice", ""},
		{"list --help", 0, "operator: true", ""},
		{"counters --help", 0, "unetd counters --all --json", ""},
		{"cleanup --help", 0, "unetd cleanup --force", ""},
		{"revoke --help", 0, "unetd revoke 7 --reason", ""},
		{"revoke", 2, "", "accepts 1 arg(s), received 0: see unetd revoke --help"},
		{"revoke eth0", 2, "", `unetd: "eth0" is not the number of an endpoint (see unetd list): see unetd revoke --help`},
		{"revoke -1", 2, "", "unknown shorthand flag"},
		{"revoke 7 --socket /no/such/socket", 1, "", "unetd: unetd is not running at /no/such/socket: no such file or directory"},
		{"reload now", 2, "", `unknown command "now"`},
		{"drain --undo=perhaps", 2, "", "invalid argument"},
		{"serve --interface lo --interface eth0 --interface lo", 2, "", "--interface lo: given twice"},
		{"uplinks --help", 0, "unetd uplinks --json", ""},
		{"route --help", 0, "unetd route 10.0.9.7", ""},
		{"route example.org", 2, "", `unetd: "example.org" is not an IP address: see unetd route --help`},
		{"route --from x 10.0.0.1", 2, "", `--from "x": not an IP address`},
		{"route --from 10.0.0.1", 2, "", "--from needs a DESTINATION"},
		{"doctor --help", 0, "Exit status: 0 without a problem", ""},
		{"doctor eth0", 2, "", `unknown command "eth0" for "unetd doctor": see unetd doctor --help`},
		{"check-config --interface eth0", 2, "", "--interface without --as: see unetd check-config --help"},
		{"check-config --group 5", 2, "", "--group without --as: see unetd check-config --help"},
		{"check-config udp:10.0.0.1:80", 2, "", "a tag without --as: see unetd check-config --help"},
		{"check-config --as root udp:10.0.0.1:x", 2, "", "see unetd check-config --help"},
		{"check-config one two", 2, "", `"two" is no tag: want udp:ADDR:PORT, tcp:ADDR:PORT, addr:ADDR or msg:NUMBER: see unetd check-config --help`},
		{"list now", 2, "", `unknown command "now" for "unetd list": see unetd list --help`},
		{"counters --some", 2, "", "unknown flag: --some: see unetd counters --help"},
		{"cleanup --force=perhaps", 2, "", "invalid argument"},
		{"serve --interface lo --grace 0s", 2, "", "--grace 0s: want more than 0"},
		{"serve --interface lo --policy /no/such/policy", 1, "", "unetd: policy: open /no/such/policy: no such file or directory"},
		{"serve --interface lo --allow-queue", 2, "", "unknown flag: --allow-queue"},
		{"swerve", 2, "", `unknown command "swerve"`},
		{"version now", 2, "", "unknown command"},
		{"serve eth0", 2, "", "unknown command"},
		{"serve --interface", 2, "", "flag needs an argument"},
		{"serve --colour red", 2, "", "unknown flag: --colour"},
		{"serve --interface lo --mode fast", 2, "", `mode "fast"`},
		{"serve --interface lo --socket=", 2, "", "--socket: want a path"},
		{"serve --interface lo --socket-mode 0999", 2, "", "octal"},
		{"serve --interface lo --socket-mode 1777", 2, "", "octal"},
		{"serve --interface lo --socket-group no-such-group", 2, "", "--socket-group: no group no-such-group on this system"},
		{"serve --interface lo --log-level loud", 2, "", "--log-level loud"},
		{"serve --interface lo --log-format xml", 2, "", "--log-format xml"},
		{"serve --interface lo --ready-fd 2", 2, "", "--ready-fd 2"},
		{"serve --interface lo --ready-fd x", 2, "", "invalid argument"},
		{"serve --interface lo --ready-fd 99", 2, "", "--ready-fd 99: bad file descriptor: pass an open descriptor"},
		{"serve --interface lo --metrics 9810", 2, "", "unetd: --metrics 9810: want HOST:PORT or unix:PATH: see unetd serve --help"},
		{"serve --help", 0, "host's firewall (netfilter, tc) do not apply", ""},
	} {
		args := strings.Fields(c.args)
		var code int
		var stdout, stderr string
		if slices.Contains(ownProcess, c.args) {
			code, stdout, stderr = finish(t, nil, command(roleUnetd, args...))
		} else {
			code, stdout, stderr = runHere(t, nil, args...)
		}
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) ||
			(c.code == 0) != (stderr == "") || c.code != 0 && (strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "unetd: ")) {
			t.Errorf("unetd %s: exit %d, stdout %q, stderr %q", c.args, code, stdout, stderr)
		}
	}
}
