package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/netlab"
)

// How long a daemon may take to be ready, and to end.
const (
	readyPatience = 15 * time.Second
	stopPatience  = 10 * time.Second
)

// daemon is unetd on one host.
type daemon struct {
	host   *netlab.Host
	cmd    *exec.Cmd
	output tail
	ended  chan struct{} // closed when err is set
	err    error
}

// startDaemon starts unetd inside h and returns when it says that it is ready.
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
	case <-time.After(readyPatience):
		return nil, errors.Join(d.failed(fmt.Sprintf("is not ready within %v", readyPatience)), d.stop())
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), d.stop())
	}
}

// stop asks the daemon to end, and waits until it has.
func (d *daemon) stop() error {
	select {
	case <-d.ended:
		return d.failed("ended early")
	default:
	}
	// An error means that it has ended just now.
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
		if d.err != nil {
			return d.failed("did not end well")
		}
		return nil
	case <-time.After(stopPatience):
		err := d.cmd.Process.Kill()
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		<-d.ended
		return errors.Join(d.failed(fmt.Sprintf("did not end within %v", stopPatience)), err)
	}
}

// failed describes what became of the daemon.
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
