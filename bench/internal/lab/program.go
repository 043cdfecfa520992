package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/netlab"
)

// Program is a program to run on a host.
type Program struct {
	File *os.File // the executable, which uid nobody may not be able to reach by its path
	Args []string // without the name
}

// String is the command line, for errors.
func (p Program) String() string {
	return strings.Join(append([]string{p.File.Name()}, p.Args...), " ")
}

// command is the program as a process of uid nobody with a GOMAXPROCS.
func (p Program) command(ctx context.Context, procs int) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", p.Args...)
	cmd.Args[0] = filepath.Base(p.File.Name())
	cmd.ExtraFiles = []*os.File{p.File} // becomes descriptor 3
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", procs))
	cmd.SysProcAttr = netlab.Nobody()
	cmd.WaitDelay = time.Second
	return cmd
}

// failed is an error with what the program has written.
func (p Program) failed(ctx context.Context, err error, said string) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%v: %w: %s", p, err, strings.TrimSpace(said))
}

// running is a program that runs until it gets SIGTERM.
type running struct {
	Program
	ctx    context.Context
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr tail
}

// start starts a program, and returns when it has written its first line.
func (p Program) start(ctx context.Context, h *netlab.Host, cpu, procs int) (*running, error) {
	r := &running{Program: p, ctx: ctx, cmd: p.command(ctx, procs)}
	r.cmd.Stderr = &r.stderr
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.StartOn(r.cmd, cpu); err != nil {
		return nil, errors.Join(fmt.Errorf("start %v: %w", p, err), stdout.Close())
	}
	r.stdout = bufio.NewReader(stdout)
	if line, err := r.stdout.ReadString('\n'); err != nil {
		return nil, errors.Join(p.failed(ctx, errors.New("has not begun"), line), r.stop())
	}
	return r, nil
}

// stop ends the program, and waits until it has ended.
func (r *running) stop() error {
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has exited
	kill := time.AfterFunc(stopTimeout, func() { r.cmd.Process.Kill() })
	defer kill.Stop()
	_, _ = io.Copy(io.Discard, r.stdout)
	if err := r.cmd.Wait(); err != nil {
		return r.failed(r.ctx, err, r.stderr.String())
	}
	return nil
}
