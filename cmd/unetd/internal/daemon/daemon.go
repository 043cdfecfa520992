//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/session"
	"github.com/unet-go/unet/mux"
)

// Mux is what the daemon needs of the mux.
type Mux interface {
	session.Provider
	// Describe names the interfaces and their modes.
	Describe() (interfaces, modes string)
	// Close detaches everything. Every lease is closed by then.
	Close() error
	// Abandon leaves everything as it is, for the next unetd.
	Abandon() error
}

// Config is the configuration of a daemon.
type Config struct {
	Socket Socket
	Ready  *os.File // a line is written to it when the daemon is ready, then it is closed; may be nil
	Keep   bool     // leave everything attached and working at the end
	Log    *slog.Logger
	// Suppressed counts records about leases that were left out of the log; may be nil.
	Suppressed *atomic.Uint64
	// Faults counts sessions that a fault of unetd's own has ended; may be nil.
	Faults *atomic.Uint64
	// Open opens the mux with these limits.
	Open func(limits mux.Limits) (Mux, error)
}

// Run runs a daemon until ctx ends, which is no error.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Ready != nil {
		defer cfg.Ready.Close()
	}
	limits, muxLimits := limitsFor(raiseOpenFiles(cfg.Log))
	ln, err := cfg.Socket.listen()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.remove()) }()
	m, err := cfg.Open(muxLimits)
	if err != nil {
		return err
	}
	defer func() {
		if cfg.Keep {
			if aerr := m.Abandon(); aerr != nil {
				err = errors.Join(err, fmt.Errorf("not everything was left as it was: %w", aerr))
			}
		} else if cerr := m.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("not everything was detached: %w", cerr))
		}
	}()
	interfaces, modes := m.Describe()
	cfg.Log.Info("ready", "interface", interfaces, "mode", modes, "socket", ln.path)
	if err := notifyReady(cfg.Ready, cfg.Log); err != nil {
		return err
	}
	server := session.Server{Provider: m, Log: cfg.Log, Limits: limits, Keep: cfg.Keep, Suppressed: cfg.Suppressed, Faults: cfg.Faults}
	err = server.Serve(ctx, ln.UnixListener)
	cfg.Log.Info("stopped", "interface", interfaces, "kept", cfg.Keep)
	return err
}

// Inherited returns a descriptor that the parent process has left open for this one. A
// descriptor with FD_CLOEXEC belongs to this process: the error is EBADF.
func Inherited(fd int, name string) (*os.File, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err == nil && flags&unix.FD_CLOEXEC != 0 {
		err = unix.EBADF
	}
	if err != nil {
		return nil, fmt.Errorf("%w: pass an open descriptor", err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name), nil
}

// notifyReady reports that the daemon is ready: to a service manager by sd_notify(3), and by
// a line to a descriptor. A service manager that cannot be reached is logged: it decides itself what
// to do with a service that does not report, and the variable may be left over from another one.
func notifyReady(line *os.File, log *slog.Logger) error {
	if path := os.Getenv("NOTIFY_SOCKET"); path != "" {
		if err := sdNotify(path, "READY=1"); err != nil {
			log.Warn("the service manager cannot be told that unetd is ready", "NOTIFY_SOCKET", path, "error", err)
		}
	}
	if line == nil {
		return nil
	}
	if _, err := line.WriteString("ready\n"); err != nil {
		return fmt.Errorf("cannot write that unetd is ready: %w: pass an open descriptor", err)
	}
	return line.Close()
}

// sdNotify sends one state. A leading @ means the abstract namespace to package net, as to
// sd_notify(3).
func sdNotify(path, state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}
