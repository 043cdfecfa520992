//go:build linux

package demo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

func TestMain(m *testing.M) { unetd.Main(m) }

// demoRun is a running demo. Its processes have the variable mark in their environment.
type demoRun struct {
	t        *testing.T
	mark     string
	cmd      *exec.Cmd
	lines    *bufio.Scanner // of stdout
	stdout   *os.File
	output   strings.Builder // what was read of stdout
	stderr   bytes.Buffer
	mounts   string           // before the start, see surroundings
	folders  string           // the same
	programs []ebpf.ProgramID // that notePrograms has found
}

func startDemo(t *testing.T, stdin io.Reader, args ...string) *demoRun {
	t.Helper()
	d := &demoRun{t: t, mark: fmt.Sprintf("UNETD_TEST_DEMO=%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))}
	d.mounts, d.folders = surroundings(t)
	unetd.Command(t, "unetd") // the demonstration runs it
	d.cmd = exec.Command(unetd.Command(t, "demo"), args...)
	d.cmd.Env = append(os.Environ(), d.mark)
	d.cmd.SysProcAttr = netlab.Bound()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.stdout, d.lines = r, bufio.NewScanner(r)
	d.cmd.Stdin, d.cmd.Stdout, d.cmd.Stderr = stdin, w, &d.stderr
	err = d.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(2*time.Minute, func() { d.cmd.Process.Kill() })
	t.Cleanup(func() {
		kill.Stop()
		r.Close()
		if d.cmd.ProcessState == nil {
			d.cmd.Process.Kill()
			d.cmd.Wait()
		}
	})
	return d
}

// surroundings are the mounts and files of this system that the demonstration must not change.
func surroundings(t *testing.T) (mounts, folders string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/run/unet", "/run/unet/unetd.sock", "/sys/fs/bpf/unet"} {
		_, err := os.Lstat(path)
		folders += fmt.Sprintln(path, err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == "/run" || f[4] == "/sys/fs/bpf") {
			mounts += line
		}
	}
	return mounts, folders
}

// awaitLine reads the output until a line has this prefix.
func (d *demoRun) awaitLine(prefix string) {
	d.t.Helper()
	for d.lines.Scan() {
		d.output.WriteString(d.lines.Text() + "\n")
		if strings.HasPrefix(d.lines.Text(), prefix) {
			return
		}
	}
	d.t.Fatalf("no line %q:\n%s%s", prefix, d.output.String(), d.stderr.String())
}

// processes are those of the demonstration.
func (d *demoRun) processes() (pids []int) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(append([]byte{0}, text...), []byte("\x00"+d.mark+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			d.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// notePrograms remembers the BPF programs of the demonstration that there are now.
func (d *demoRun) notePrograms() {
	d.t.Helper()
	for _, pid := range d.processes() {
		held, err := netlab.HeldBPF(pid)
		if err != nil {
			d.t.Fatal(err)
		}
		for o := range held {
			if o.Kind == "prog" {
				d.programs = append(d.programs, ebpf.ProgramID(o.ID))
			}
		}
	}
	if len(d.programs) < 4 {
		d.t.Errorf("programs %v", d.programs)
	}
}

// end waits for the end, and expects that no process, program, mount or file is left.
func (d *demoRun) end() (code int) {
	d.t.Helper()
	for d.lines.Scan() {
		d.output.WriteString(d.lines.Text() + "\n")
	}
	var exit *exec.ExitError
	if err := d.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	testutil.Eventually(d.t, "all processes have ended", func() bool { return len(d.processes()) == 0 })
	for _, id := range d.programs {
		testutil.Eventually(d.t, fmt.Sprint("program ", id, " is gone"), func() bool {
			p, err := ebpf.NewProgramFromID(id)
			if err == nil {
				p.Close()
			}
			return errors.Is(err, os.ErrNotExist)
		})
	}
	if mounts, folders := surroundings(d.t); mounts != d.mounts || folders != d.folders {
		d.t.Errorf("mounts and folders have changed from\n%s%s\nto\n%s%s", d.mounts, d.folders, mounts, folders)
	}
	return d.cmd.ProcessState.ExitCode()
}

// The demonstration runs to its end and shows each of its steps.
func TestDemoRunsToItsEnd(t *testing.T) {
	netlab.RequireXDP(t)
	d := startDemo(t, strings.NewReader(strings.Repeat("\n", 11)), "--pause")
	d.awaitLine("capture | 2 packets captured")
	d.notePrograms()
	code := d.end()
	out := d.output.String()
	if code != 0 || d.stderr.Len() > 0 {
		t.Errorf("exit %d, %s\n%s", code, d.stderr.String(), out)
	}
	for _, want := range []string{
		"application | uid 65534, capabilities 0000000000000000\n",
		"leased  udp:10.0.0.1:7000 tcp:10.0.0.1:7000\n",
		"  tcp    established  ", "  tcp    listening  ",
		"  listen tcp :7000: bind: address already in use\n",
		" Out IP 10.0.0.1.7000 > 10.0.0.2.",
		"application | refused: listen udp 0.0.0.0:53: bind: permission denied: tag not allowed",
		"message tag 8 > 7, length 32 [tx_forged_tag: ",
		"\n# kill -9 ",
		"application | unetd is gone\n", "application | unetd is back\n",
		" of them without unetd. None has failed.\n",
		"neighbour | by memory ", " us: ", " STATE   PATHS  TAGS\n", "  leased  1      ",
		"  tx_forged_tag    ", "they add up\n",
		"Host a has its two interfaces again: lo, uplink.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	if strings.Contains(out, "\x1b") || strings.Contains(out, "level=WARN") {
		t.Errorf("colours or warnings:\n%s", out)
	}
}

// The demonstration is interrupted, killed, or fails: nothing is left.
func TestInterruptedDemoLeavesNothing(t *testing.T) {
	netlab.RequireXDP(t)
	for _, c := range []struct {
		at     string // a line
		signal syscall.Signal
	}{
		{"1. ", syscall.SIGTERM},
		{"unetd | level=INFO msg=\"mux attached\"", syscall.SIGINT},
		{"capture | capturing ", syscall.SIGINT},
		{"# kill -9 ", syscall.SIGHUP},
		{"application | unetd is gone", syscall.SIGINT},
		{"application | unetd is back", syscall.SIGKILL},
	} {
		t.Run(c.signal.String()+" at "+c.at, func(t *testing.T) {
			d := startDemo(t, nil)
			d.awaitLine(c.at)
			if strings.HasPrefix(c.at, "capture") {
				d.notePrograms()
			}
			if err := d.cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			code := d.end()
			switch {
			case c.signal == syscall.SIGKILL && code == -1:
			case code != 1 || d.stderr.String() != "demo: interrupted; nothing is left of the demonstration\n":
				t.Errorf("exit %d, %s", code, d.stderr.String())
			}
		})
	}
	t.Run("closed pipe", func(t *testing.T) { // as of demo | head -1
		d := startDemo(t, nil)
		d.awaitLine("1. ")
		d.stdout.Close()
		if code := d.end(); code != -1 || d.stderr.Len() > 0 {
			t.Errorf("%v, %s", d.cmd.ProcessState, d.stderr.String())
		}
	})
	t.Run("no input for --pause", func(t *testing.T) {
		d := startDemo(t, nil, "--pause")
		if code := d.end(); code != 1 || d.stderr.String() != "demo: --pause: standard input: EOF (unetd doctor examines this system)\n" {
			t.Errorf("exit %d, %s", code, d.stderr.String())
		}
	})
	t.Run("user nobody", func(t *testing.T) {
		cmd := exec.Command(unetd.Command(t, "demo"))
		cmd.SysProcAttr = netlab.Nobody()
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 || string(out) != "demo: the demonstration makes network namespaces, which needs root: sudo bin/demo\n" {
			t.Errorf("%v, %s", err, out)
		}
	})
}
