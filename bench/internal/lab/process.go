package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
)

// exitTimeout is how long a child may take to close its transport.
const exitTimeout = 10 * time.Second

// process is one child.
type process struct {
	role   workload.Role
	cmd    *exec.Cmd
	in     io.WriteCloser
	events chan event // closed when the child has closed its output
	output tail       // its standard error
}

// firstCounter is the descriptor of a child at which its counters begin, if there are any.
const firstCounter = 4

// spawn starts the child of a side, pinned to cpu, as uid nobody unless it is privileged. It is
// killed when ctx ends. All that it ever executes is counted, if the lab counts.
func (l *Lab) spawn(ctx context.Context, s side, cpu int) (*process, error) {
	p := &process{role: s.job.Role, events: make(chan event, 4)}
	p.cmd = exec.CommandContext(ctx, "/proc/self/fd/3", "child")
	p.cmd.Args[0] = os.Args[0]
	p.cmd.ExtraFiles = []*os.File{l.self} // becomes descriptor 3
	if l.counted() {
		counters, err := perf.OpenSet(s.host.Starter(), l.cfg.Events)
		if err != nil {
			return nil, err
		}
		defer counters.Close() // the child has them
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, counters.Files()...)
	}
	if p.cmd.SysProcAttr = netlab.Nobody(); s.privileged {
		p.cmd.SysProcAttr = netlab.Bound()
	}
	p.cmd.Stderr = &p.output
	p.cmd.WaitDelay = time.Second
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in = in
	if err := s.host.StartOn(p.cmd, cpu); err != nil {
		return nil, errors.Join(fmt.Errorf("start the %s: %w", p.role, err), in.Close(), out.Close())
	}
	go func() {
		defer close(p.events)
		for events := json.NewDecoder(out); ; {
			var e event
			if events.Decode(&e) != nil {
				return
			}
			p.events <- e
		}
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// send writes one line to the child.
func (p *process) send(line any) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("%s: %w", p.role, err)
	}
	return nil
}

// next is the child's next event. It returns an error if the event is one, or if the child has ended.
func (p *process) next(ctx context.Context) (event, error) {
	select {
	case e, ok := <-p.events:
		switch {
		case !ok:
			return e, p.failed("ended without a report")
		case e.Error != "":
			return e, p.failed(e.Error)
		}
		return e, nil
	case <-ctx.Done():
		return event{}, p.failed(context.Cause(ctx).Error())
	}
}

func (p *process) failed(what string) error {
	text := string(p.role) + ": " + what
	if out := strings.TrimSpace(p.output.String()); out != "" {
		text += ": " + out
	}
	return errors.New(text)
}

// end has the child close its transport, and waits until it has exited.
func (p *process) end() error {
	err := p.in.Close()
	timer := time.AfterFunc(exitTimeout, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	for range p.events { // Wait closes the pipe, so it is read to its end first
	}
	if waitErr := p.cmd.Wait(); waitErr != nil {
		return p.failed(waitErr.Error())
	}
	return err
}

// kill ends the child at once.
func (p *process) kill() {
	p.cmd.Process.Kill()
	for range p.events {
	}
	_ = p.cmd.Wait() // says that it was killed
	p.in.Close()
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

// How long a daemon may take to be ready, and to end.
const (
	readyTimeout = 15 * time.Second
	stopTimeout  = 10 * time.Second
)

// daemon is unetd on one host.
type daemon struct {
	host   *netlab.Host
	cmd    *exec.Cmd
	output tail
	ended  chan struct{} // closed when err is set
	err    error
}

// startDaemon starts unetd inside h and returns when it is ready.
func startDaemon(ctx context.Context, h *netlab.Host, path string, flags ...string) (*daemon, error) {
	d := &daemon{host: h, ended: make(chan struct{})}
	readyOut, readyIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyOut.Close()
	d.cmd = exec.Command(path, append([]string{"serve", "--interface", h.Interface, "--socket-mode", "0666", "--ready-fd", "3"}, flags...)...)
	d.cmd.ExtraFiles = []*os.File{readyIn} // becomes descriptor 3
	d.cmd.SysProcAttr = netlab.Bound()
	d.cmd.Stdout, d.cmd.Stderr = &d.output, &d.output
	err = h.Start(d.cmd)
	if err := errors.Join(err, readyIn.Close()); err != nil {
		return nil, fmt.Errorf("start unetd: %w", err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	ready := make(chan error, 1)
	go func() {
		_, err := readyOut.Read(make([]byte, 64)) // ends when the pipe is closed, too
		ready <- err
	}()
	select {
	case err = <-ready:
		if err == nil {
			return d, nil
		}
		<-d.ended // the pipe has no other writer
		return nil, d.failed("is not ready")
	case <-time.After(readyTimeout):
		return nil, errors.Join(d.failed(fmt.Sprintf("is not ready within %v", readyTimeout)), d.stop())
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), d.stop())
	}
}

// stop ends the daemon by SIGTERM, and waits until it has ended.
func (d *daemon) stop() error {
	select {
	case <-d.ended:
		return d.failed("ended early")
	default:
	}
	// An error means that it has exited.
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
		if d.err != nil {
			return d.failed("failed")
		}
		return nil
	case <-time.After(stopTimeout):
		err := d.cmd.Process.Kill()
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		<-d.ended
		return errors.Join(d.failed(fmt.Sprintf("did not end within %v", stopTimeout)), err)
	}
}

// failed is an error with the exit status and the output of the daemon.
func (d *daemon) failed(what string) error {
	text := "unetd on host " + d.host.Name + " " + what
	select {
	case <-d.ended:
		if d.err != nil {
			text += " (" + d.err.Error() + ")"
		}
	default:
	}
	if out := strings.TrimSpace(d.output.String()); out != "" {
		text += ": " + out
	}
	return errors.New(text)
}
