package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/netlab"
)

// Program is a program to run on a host.
type Program struct {
	Name string
	File *os.File // the executable, which uid nobody may not be able to reach by its path; nil: Path
	Path string
	Args []string
}

// command is the program as a process of uid nobody.
func (p Program) command(ctx context.Context, procs int) *exec.Cmd {
	path := p.Path
	if p.File != nil {
		path = "/proc/self/fd/3"
	}
	cmd := exec.CommandContext(ctx, path, p.Args...)
	cmd.Args[0] = p.Name
	if p.File != nil {
		cmd.ExtraFiles = []*os.File{p.File} // becomes descriptor 3
	}
	if procs > 0 {
		cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", procs))
	}
	cmd.SysProcAttr = netlab.Nobody()
	cmd.WaitDelay = time.Second
	return cmd
}

// Served is what Serve has measured.
type Served struct {
	Output string        // of the client
	CPU    time.Duration // user and system time of both, from their start to their end
}

// serveTimeout bounds the start of a server and all of a client.
const serveTimeout = time.Minute

// Serve runs a server on host A of the muxed pair until a client on host B has ended. The server has
// begun when it writes a line. With procs 0 each is pinned to a processor; otherwise they run where the
// kernel places them, with so many threads if they are Go programs.
func (l *Lab) Serve(ctx context.Context, server, client Program, procs int) (out Served, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, serveTimeout, errors.New("took too long"))
	defer cancel()
	serverCPU, clientCPU := l.cfg.ServerCPU, l.cfg.ClientCPU
	if procs > 0 {
		serverCPU, clientCPU = netlab.AnyCPU, netlab.AnyCPU
	}
	fail := func(p Program, err error, said string) error {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w: %s", strings.Join(append([]string{p.Name}, p.Args...), " "), err, strings.TrimSpace(said))
	}

	s := server.command(ctx, procs)
	var said tail
	s.Stderr = &said
	stdout, err := s.StdoutPipe()
	if err != nil {
		return out, err
	}
	if err := l.muxed.pair.A.StartOn(s, serverCPU); err != nil {
		return out, fmt.Errorf("start %s: %w", server.Name, err)
	}
	lines := bufio.NewReader(stdout)
	stopped := false
	stop := func() error {
		stopped = true
		_ = s.Process.Signal(syscall.SIGTERM) // an error means that it has exited
		kill := time.AfterFunc(stopTimeout, func() { s.Process.Kill() })
		defer kill.Stop()
		_, _ = io.Copy(io.Discard, lines)
		if err := s.Wait(); err != nil {
			return fail(server, err, said.String())
		}
		return nil
	}
	defer func() {
		if !stopped {
			err = errors.Join(err, stop())
		}
	}()
	if line, err := lines.ReadString('\n'); err != nil {
		return out, fail(server, errors.New("has not begun to serve"), line)
	}

	c := client.command(ctx, procs)
	var output, errs bytes.Buffer
	c.Stdout, c.Stderr = &output, &errs
	if err := l.muxed.pair.B.StartOn(c, clientCPU); err != nil {
		return out, fmt.Errorf("start %s: %w", client.Name, err)
	}
	if err := c.Wait(); err != nil {
		return out, fail(client, err, output.String()+errs.String())
	}
	if err := stop(); err != nil {
		return out, err
	}
	for _, p := range []*os.ProcessState{s.ProcessState, c.ProcessState} {
		out.CPU += p.UserTime() + p.SystemTime()
	}
	out.Output = output.String()
	return out, nil
}

// ServeAddress is where a server of Serve listens: a port that no earlier one has had.
func (l *Lab) ServeAddress() (ip string, port int) {
	l.serial++
	return l.muxed.pair.A.Addr.Addr().String(), int(firstPort + 2*(l.serial%(portSpan/2)))
}

// Sockets are those of the daemons of host A and host B of the muxed pair.
func (l *Lab) Sockets() (a, b string) {
	return l.muxed.socket(l.muxed.pair.A), l.muxed.socket(l.muxed.pair.B)
}
