//go:build linux

package unetd

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
)

// TestTimeout is how long a test waits for an event before it fails. Usually the event happens much
// sooner.
const TestTimeout = 2 * time.Minute

// Process is a running command and what it prints.
type Process struct {
	Cmd  *exec.Cmd
	Name string
	Done chan struct{} // closed when it has ended and Err is set
	Err  error

	mu    sync.Mutex
	lines []string // +checklocks:mu
	more  *sync.Cond
}

// Start runs a command inside a host. It is killed at the end of the test, and
// what it printed is logged if the test has failed.
func Start(t testing.TB, h *netlab.Host, attr *syscall.SysProcAttr, path string, args ...string) *Process {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = attr
	return StartCommand(t, h, cmd)
}

// StartCommand is Start for a command that has a standard input, for one. Its output is
// the Process's.
func StartCommand(t testing.TB, h *netlab.Host, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := start(h, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cleanup(t) })
	return p
}

func start(h *netlab.Host, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, Name: filepath.Base(cmd.Path), Done: make(chan struct{})}
	p.more = sync.NewCond(&p.mu)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.Cmd.Stdout, p.Cmd.Stderr = w, w
	err = h.Start(p.Cmd)
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.more.Broadcast()
			p.mu.Unlock()
		}
	})
	go func() {
		p.Err = p.Cmd.Wait()
		reading.Wait()
		close(p.Done)
		p.mu.Lock()
		p.more.Broadcast()
		p.mu.Unlock()
	}()
	return p, nil
}

func (p *Process) cleanup(t testing.TB) {
	p.Cmd.Process.Kill()
	<-p.Done
	if strings.Contains(p.Output(), "DATA RACE") {
		t.Errorf("%s has a data race", p.Name)
	}
	if t.Failed() {
		t.Logf("%s %v printed:\n%s", p.Name, p.Cmd.Args[1:], p.Output())
	}
}

// Output is what the process has printed until now.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Await returns when the process has printed a line with text in it.
func (p *Process) Await(t testing.TB, text string) {
	t.Helper()
	if err := p.await(text); err != nil {
		t.Fatal(err)
	}
}

func (p *Process) await(text string) error {
	timer := time.AfterFunc(TestTimeout, func() { p.mu.Lock(); p.more.Broadcast(); p.mu.Unlock() })
	defer timer.Stop()
	deadline := time.Now().Add(TestTimeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	for seen := 0; ; p.more.Wait() {
		for ; seen < len(p.lines); seen++ {
			if strings.Contains(p.lines[seen], text) {
				return nil
			}
		}
		select {
		case <-p.Done:
			return fmt.Errorf("%s ended (%v) without printing %q", p.Name, p.Err, text)
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not print %q", p.Name, text)
		}
	}
}

// End waits for the process to exit by itself.
func (p *Process) End(t testing.TB) error {
	t.Helper()
	select {
	case <-p.Done:
		return p.Err
	case <-time.After(TestTimeout):
		t.Fatalf("%s does not end", p.Name)
		return nil
	}
}

// Stop ends the process by SIGTERM, as an operator would.
func (p *Process) Stop(t testing.TB) error {
	t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.End(t)
}

// StopCounted stops an example's server and returns the two numbers of the line
// "answered N KIND on M connections" that it prints at its end.
func (p *Process) StopCounted(t testing.TB, kind string) (answered, connections int) {
	t.Helper()
	if err := p.Stop(t); err != nil {
		t.Errorf("server on SIGTERM: %v", err)
	}
	_, line, _ := strings.Cut(p.Output(), "answered ")
	if n, err := fmt.Sscanf(line, "%d "+kind+" on %d connections", &answered, &connections); n != 2 {
		t.Fatalf("the server does not print how many %s it has answered: %v", kind, err)
	}
	return answered, connections
}

// Kill ends the process by SIGKILL.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.Cmd.Process.Kill() // it may have ended by itself
	p.End(t)
}

// PID is the process's.
func (p *Process) PID() int { return p.Cmd.Process.Pid }
