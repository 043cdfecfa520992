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
	"time"

	"github.com/unet-go/unet/bench/internal/child"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
)

// exitPatience is how long a child may take to give its transport back.
const exitPatience = 10 * time.Second

// process is one child.
type process struct {
	role   workload.Role
	cmd    *exec.Cmd
	in     io.WriteCloser
	events chan child.Event // closed when the child has closed its output
	output tail             // its standard error
}

// spawn starts a child inside h, pinned to cpu, as uid nobody. It is killed
// when ctx ends.
func (l *Lab) spawn(ctx context.Context, h *netlab.Host, cpu int, role workload.Role) (*process, error) {
	p := &process{role: role, events: make(chan child.Event, 4)}
	p.cmd = exec.CommandContext(ctx, "/proc/self/fd/3", "child")
	p.cmd.Args[0] = os.Args[0]
	p.cmd.ExtraFiles = []*os.File{l.self} // becomes descriptor 3
	p.cmd.SysProcAttr = netlab.Nobody()
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
	if err := h.StartOn(p.cmd, cpu); err != nil {
		return nil, errors.Join(fmt.Errorf("start the %s: %w", role, err), in.Close(), out.Close())
	}
	go func() {
		defer close(p.events)
		for events := json.NewDecoder(out); ; {
			var e child.Event
			if events.Decode(&e) != nil {
				return
			}
			p.events <- e
		}
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// tell writes one line to the child.
func (p *process) tell(line any) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("%s: %w", p.role, err)
	}
	return nil
}

// next is the child's next word. An error is its own, or that it has none.
func (p *process) next(ctx context.Context) (child.Event, error) {
	select {
	case e, ok := <-p.events:
		switch {
		case !ok:
			return e, p.failed("ended without a word")
		case e.Error != "":
			return e, p.failed(e.Error)
		}
		return e, nil
	case <-ctx.Done():
		return child.Event{}, p.failed(context.Cause(ctx).Error())
	}
}

func (p *process) failed(what string) error {
	text := string(p.role) + ": " + what
	if out := strings.TrimSpace(p.output.String()); out != "" {
		text += ": " + out
	}
	return errors.New(text)
}

// end lets the child close its transport, and waits until it is gone.
func (p *process) end() error {
	err := p.in.Close()
	hurry := time.AfterFunc(exitPatience, func() { p.cmd.Process.Kill() })
	defer hurry.Stop()
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
