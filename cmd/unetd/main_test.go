package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

const patience = 30 * time.Second

// This test binary is also unetd, and an application, by an environment
// variable: so that they run in other namespaces and as other users.
const (
	roleVariable = "UNETD_TEST_ROLE"
	roleUnetd    = "unetd"
	roleApp      = "application"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case roleUnetd:
		main()
	case roleApp:
		application(os.Args[1])
	default:
		os.Exit(m.Run())
	}
}

// application opens an endpoint, says so, and keeps it until its input ends.
func application(socket string) {
	g, l, err := control.Open(context.Background(), socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(77)}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// Through the open and through the lease alike.
	reserved := endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:53"))
	_, claimErr := l.Claim(context.Background(), reserved)
	_, _, openErr := control.Open(context.Background(), socket, endpoint.Request{Tags: []endpoint.Tag{reserved}})
	for _, err := range []error{openErr, claimErr} {
		if !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "udp:10.0.0.1:53: ports below 1024 need uid 0") {
			fmt.Println("port 53:", err)
			os.Exit(1)
		}
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "CapEff:") {
			fmt.Print("granted ", g.Tags, " uid ", os.Getuid(), " ", line)
		}
	}
	io.Copy(io.Discard, os.Stdin)
}

// command runs this binary in a role. The link survives a change of user that
// takes away the folder it stands in.
func command(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.SysProcAttr = netlab.Bound()
	return cmd
}

// finish runs cmd to its end, on host if that is not nil.
func finish(t *testing.T, host *netlab.Host, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	start := cmd.Start
	if host != nil {
		start = func() error { return host.Start(cmd) }
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer kill.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// process is a running unetd that was ready.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	socket string
	stderr chan string // lines; closed at its end
}

// serve starts unetd on a host and waits until it is ready.
func serve(t *testing.T, host *netlab.Host, socket string, args ...string) *process {
	t.Helper()
	cmd := command(roleUnetd, append([]string{"serve", "--interface", host.Interface, "--socket", socket, "--ready-fd", "3"}, args...)...)
	return serveCommand(t, host, socket, cmd)
}

func serveCommand(t *testing.T, host *netlab.Host, socket string, cmd *exec.Cmd) *process {
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
	d := &process{t, cmd, socket, make(chan string, 1000)}
	d.watch(stderr)
	if err := ready.SetReadDeadline(time.Now().Add(patience)); err != nil {
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

// watch reads what the process says, and ends it with the test.
func (d *process) watch(stderr io.Reader) {
	go func() {
		defer close(d.stderr)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			d.stderr <- lines.Text()
		}
	}()
	d.t.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			d.cmd.Process.Kill()
			d.cmd.Wait()
		}
	})
}

// awaitLine waits for a line on stderr that contains all of the given parts.
func (d *process) awaitLine(parts ...string) {
	d.t.Helper()
	timeout := time.After(patience)
next:
	for {
		select {
		case line, ok := <-d.stderr:
			if !ok {
				d.t.Fatalf("no line with %q", parts)
			}
			for _, p := range parts {
				if !strings.Contains(line, p) {
					continue next
				}
			}
			return
		case <-timeout:
			d.t.Fatalf("no line with %q", parts)
		}
	}
}

// stop sends a signal and wants exit code 0.
func (d *process) stop(s os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
	if err := d.wait(); err != nil {
		d.t.Errorf("unetd after %v: %v", s, err)
	}
	if _, err := os.Lstat(d.socket); !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("the socket: %v", err)
	}
}

// wait waits for the end. All of stderr is read first, as exec.Cmd wants it.
func (d *process) wait() error {
	kill := time.AfterFunc(patience, func() { d.cmd.Process.Kill() })
	defer kill.Stop()
	for range d.stderr {
	}
	return d.cmd.Wait()
}

func socketPath(t *testing.T) string {
	t.Helper()
	// Not in t.TempDir: others have to reach it.
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

func TestCommandLine(t *testing.T) {
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
		{"serve", 2, "", "unetd: no --interface given: see unetd serve --help"},
		{"swerve", 2, "", `unknown command "swerve"`},
		{"version now", 2, "", "unknown command"},
		{"serve eth0", 2, "", "unknown command"},
		{"serve --interface", 2, "", "flag needs an argument"},
		{"serve --colour red", 2, "", "unknown flag: --colour"},
		{"serve --interface lo --mode fast", 2, "", `mode "fast"`},
		{"serve --interface lo --socket=", 2, "", "--socket: want a path"},
		{"serve --interface lo --socket-mode 0999", 2, "", "octal"},
		{"serve --interface lo --socket-mode 1777", 2, "", "octal"},
		{"serve --interface lo --socket-group no-such-group", 2, "", "no such group"},
		{"serve --interface lo --log-level loud", 2, "", "--log-level loud"},
		{"serve --interface lo --log-format xml", 2, "", "--log-format xml"},
		{"serve --interface lo --ready-fd 2", 2, "", "--ready-fd 2"},
		{"serve --interface lo --ready-fd x", 2, "", "invalid argument"},
		{"serve --interface lo --ready-fd 3", 2, "", "--ready-fd 3: bad file descriptor: pass an open descriptor"},
		{"serve --interface lo --ready-fd 99", 2, "", "--ready-fd 99: bad file descriptor: pass an open descriptor"},
		{"serve --help", 0, "they read and can starve it, and send unchecked; for trusted users only", ""},
		{"serve --help", 0, "host's firewall (netfilter, tc) does not see", ""},
		{"serve --interface lo --allow-queue=maybe", 2, "", "invalid argument"},
	} {
		code, stdout, stderr := finish(t, nil, command(roleUnetd, strings.Fields(c.args)...))
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) ||
			(c.code == 0) != (stderr == "") || c.code != 0 && (strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "unetd: ")) {
			t.Errorf("unetd %s: exit %d, stdout %q, stderr %q", c.args, code, stdout, stderr)
		}
	}
}
