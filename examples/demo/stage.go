//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// within bounds each wait for a process of the demonstration.
const within = time.Minute

// hide gives the calling goroutine, which keeps its thread from then on, a mount namespace of its own,
// with an empty /run and a BPF file system of its own. So processes that it starts find
// the default paths of unetd free, and what they make there ends with the last of them.
func hide() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount at /run: %w", err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount at /sys/fs/bpf: %w", err)
	}
	return nil
}

// screen writes the lines of several processes, each as a whole.
type screen struct {
	mu    sync.Mutex
	out   io.Writer // +checklocks:mu
	color bool
}

const (
	bold = "\x1b[1m"
	dim  = "\x1b[2m"
)

func (s *screen) line(style, text string) {
	if s.color && style != "" {
		text = style + text + "\x1b[0m"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, text)
}

// say writes an explanation.
func (s *screen) say(text string) { s.line("", text) }

// process is a running child whose lines are on the screen.
type process struct {
	cmd   *exec.Cmd
	name  string
	stdin io.WriteCloser
	lines chan string // that await reads
	ended chan struct{}
	err   error // of Wait, when it has ended
}

// start starts a child on a host; each line of its output is shown after its name. The calling goroutine must
// be that of hide. The child is killed when this process ends.
func (s *screen) start(ctx context.Context, host *netlab.Host, name string, cmd *exec.Cmd) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = netlab.Bound()
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	p := &process{cmd: cmd, name: name, lines: make(chan string, 1000), ended: make(chan struct{})}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	err = host.Do(cmd.Start)
	w.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), r.Close())
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	go func() {
		defer close(p.ended)
		defer stop()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			text := lines.Text()
			if level, record, ok := logRecord(text); !ok {
				s.line(dim, name+" | "+text)
			} else if level != "WARN" {
				s.line(dim, name+" | "+record)
			}
			select {
			case p.lines <- text:
			default: // nobody waits for these
			}
		}
		close(p.lines)
		r.Close()
		p.err = cmd.Wait()
	}()
	return p, nil
}

// logRecord is a line of the log of unetd without its time, and its level.
func logRecord(line string) (level, record string, ok bool) {
	time, record, _ := strings.Cut(line, " ")
	rest, ok := strings.CutPrefix(record, "level=")
	level, _, _ = strings.Cut(rest, " ")
	return level, record, ok && strings.HasPrefix(time, "time=")
}

// await waits for a line that begins so.
func (p *process) await(ctx context.Context, begin string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%s did not say %q within %v", p.name, begin, within))
	defer cancel()
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				return fmt.Errorf("%s has ended too early", p.name)
			}
			if strings.HasPrefix(line, begin) {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tell writes a line to the process.
func (p *process) tell(args ...string) error {
	_, err := fmt.Fprintln(p.stdin, strings.Join(args, " "))
	return err
}

// wait waits for the end.
func (p *process) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%s did not end within %v", p.name, within))
	defer cancel()
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kill ends the process, if it still runs.
func (p *process) kill() {
	p.cmd.Process.Kill() // an error means that it has ended
	<-p.ended
}
