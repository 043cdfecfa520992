package lab

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/netlab"
)

// Program is a program to run on a host: one side of a measurement, or a neighbour.
type Program struct {
	File  *os.File // the executable, which uid nobody may not be able to reach by its path
	Args  []string // without the name
	Input any      // a line of JSON on its standard input; nil: nothing
	Procs int      // its GOMAXPROCS; 0: what Go chooses
	Root  bool     // it runs as root, else as uid nobody
}

// start starts the program under a name for errors. It calls started, if that is not nil, before the program gets its input.
func (p Program) start(h *netlab.Host, cpu int, name string, started func(pid int) error) (*process, error) {
	cmd := exec.Command("/proc/self/fd/3", p.Args...)
	cmd.Args[0] = filepath.Base(p.File.Name())
	cmd.ExtraFiles = []*os.File{p.File} // becomes descriptor 3
	if p.Procs > 0 {
		cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", p.Procs))
	}
	if cmd.SysProcAttr = netlab.Nobody(); p.Root {
		cmd.SysProcAttr = netlab.Bound()
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	run, err := start(h, cpu, name, cmd, nil)
	if err != nil {
		return nil, err
	}
	if started != nil {
		err = started(run.pid())
	}
	if err == nil && p.Input != nil {
		err = json.NewEncoder(in).Encode(p.Input)
	}
	if err != nil {
		return nil, run.finish(err)
	}
	return run, nil
}

// process is a program that runs on a host: one of [Program], or a daemon. Each says by a line that it is
// ready.
type process struct {
	name   string
	cmd    *exec.Cmd
	lines  chan string  // what it says; closed at the end of its output
	wait   func() error // until it has ended, and all that it has written is read
	output tail         // its standard error
}

// start starts a command that says its lines on out, or on its standard output if out is nil.
func start(h *netlab.Host, cpu int, name string, cmd *exec.Cmd, out io.ReadCloser) (_ *process, err error) {
	p := &process{name: name, cmd: cmd, lines: make(chan string, 4)}
	p.wait = sync.OnceValue(func() error {
		for range p.lines { // Wait closes the pipe, so it is read to its end first
		}
		return cmd.Wait()
	})
	cmd.Stderr = &p.output
	cmd.WaitDelay = time.Second
	if out == nil {
		if out, err = cmd.StdoutPipe(); err != nil {
			return nil, err
		}
	} else {
		cmd.Stdout = &p.output
	}
	if err := h.StartOn(cmd, cpu); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), out.Close())
	}
	go func() {
		defer close(p.lines)
		defer out.Close()
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// next is the next line of a process. It returns an error if the process has ended.
func (p *process) next(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return "", p.failed(cmp.Or(p.wait(), errors.New("ended early")))
		}
		return line, nil
	case <-ctx.Done():
		return "", p.failed(context.Cause(ctx))
	}
}

// exitTimeout is how long a process may take to end.
const exitTimeout = 10 * time.Second

// stop ends a process by SIGTERM.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has exited
	return p.finish(nil)
}

// finish waits until a process has exited. It kills the process if the measurement has failed.
func (p *process) finish(failure error) error {
	if failure != nil {
		p.cmd.Process.Kill()
	}
	defer time.AfterFunc(exitTimeout, func() { p.cmd.Process.Kill() }).Stop()
	if err := p.wait(); failure == nil && err != nil {
		return p.failed(err)
	}
	return failure
}

// failed is an error with what the process has written.
func (p *process) failed(err error) error {
	if out := strings.TrimSpace(p.output.String()); out != "" {
		return fmt.Errorf("%s: %w: %s", p.name, err, out)
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// startDaemon starts unetd on a host of a site and returns when it is ready.
func (l *Lab) startDaemon(ctx context.Context, s *site, h *netlab.Host, socket string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("is not ready within %v", startTimeout))
	defer cancel()
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(l.cfg.Unetd, "serve", "--interface", h.Interface, "--socket-mode", "0666", "--ready-fd", "3",
		"--mode", l.cfg.Mode, "--socket", socket, "--policy", l.policy(), "--bpffs", netlab.PathTo(l.pins))
	cmd.ExtraFiles = []*os.File{in} // becomes descriptor 3
	cmd.SysProcAttr = netlab.Bound()
	d, err := start(h, netlab.AnyCPU, "unetd on host "+h.Name, cmd, out)
	if err := errors.Join(err, in.Close()); err != nil {
		return err
	}
	if _, err := d.next(ctx); err != nil {
		return d.finish(err)
	}
	s.daemons, s.sockets[h] = append(s.daemons, d), socket
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 2048 // bytes

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if over := len(t.b) - tailSize; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
