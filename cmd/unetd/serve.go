package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
)

// serveFlags are the flags of unetd serve, as text.
type serveFlags struct {
	iface, mode                     string
	socket, socketMode, socketGroup string
	logLevel, logFormat             string
	readyFD                         int
	allowQueue                      bool
}

const serveExamples = `  # Serve eth0; only root can connect.
  unetd serve --interface eth0

  # Members of the group unet can connect.
  unetd serve --interface eth0 --socket-group unet

  # A socket of your own, and programs run by the driver or not at all.
  unetd serve --interface eth0 --socket /run/lab/unetd.sock --mode native

  # Trusted users may own a whole queue of the interface.
  unetd serve --interface eth0 --socket-group wheel --allow-queue`

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve --interface NAME",
		Short: "Attach to an interface and grant endpoints on it",
		Long: `Serve attaches the multiplexer to an interface, listens on a unix socket, and
grants endpoints to whoever may connect to it: access is governed by the
socket's mode and group. UDP ports below net.ipv4.ip_unprivileged_port_start are
for uid 0 only. When a connection closes, its tags and its port are reclaimed;
the memory and the network namespace of an endpoint live until the application
closes its descriptors.

The host's firewall (netfilter, tc) does not see what endpoints send and
receive: its rules do not apply to them.

With --allow-queue, applications may also attach to a queue of the interface
itself. The owner of a queue reads every frame that arrives there, can keep the
others from getting any, and sends frames that nobody checks: allow it only
where everybody who may connect is trusted.

SIGINT or SIGTERM closes all leases, detaches from the interface and removes the
socket; a second one ends the process at once. If the interface is deleted or
its link address changes, unetd does the same by itself and ends with status 1.
NOTIFY_SOCKET is honoured (systemd Type=notify).`,
		Example: serveExamples,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.iface, "interface", "", "network interface to attach to (required)")
	flags.StringVar(&f.mode, "mode", "auto", "how XDP programs are attached: native (by the driver), generic, or auto: native on hardware that can, else generic")
	flags.StringVar(&f.socket, "socket", daemon.DefaultSocket, "unix socket to listen on; its folder is made if missing")
	flags.StringVar(&f.socketMode, "socket-mode", "", "permissions of the socket, octal (default 0600, or 0660 with --socket-group)")
	flags.StringVar(&f.socketGroup, "socket-group", "", "group of the socket, a name or a number")
	flags.BoolVar(&f.allowQueue, "allow-queue", false, "let applications attach to a queue of the interface: they read and can starve it, and send unchecked; for trusted users only")
	flags.StringVar(&f.logLevel, "log-level", "info", "least severe level to log: debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	flags.IntVar(&f.readyFD, "ready-fd", 0, "write a line to this open file descriptor (3 or above) when ready")
	return cmd
}

// run reads the flags, then serves. Errors that are not a failure are about
// the flags.
func (f serveFlags) run(ctx context.Context, stderr io.Writer) error {
	if f.iface == "" {
		return errors.New("no --interface given")
	}
	if f.readyFD < 0 || f.readyFD > 0 && f.readyFD < 3 {
		return fmt.Errorf("--ready-fd %d: want 3 or above", f.readyFD)
	}
	var ready *os.File
	if f.readyFD > 0 {
		var err error
		if ready, err = daemon.Inherited(f.readyFD, "ready-fd"); err != nil {
			return fmt.Errorf("--ready-fd %d: %w", f.readyFD, err)
		}
	}
	mode, err := uplink.ParseMode(f.mode)
	if err != nil {
		return fmt.Errorf("--mode: %w", err)
	}
	socket, err := f.parseSocket()
	if err != nil {
		return err
	}
	log, err := newLogger(stderr, f.logLevel, f.logFormat)
	if err != nil {
		return err
	}

	ctx = untilSignal(ctx, log)
	if err := uplink.Check(f.iface); err != nil {
		return failure{err}
	}
	err = daemon.Run(ctx, daemon.Config{
		Socket: socket,
		Ready:  ready,
		Log:    log,
		Open: func() (daemon.Mux, error) {
			return uplink.Open(uplink.Config{Interface: f.iface, Mode: mode, AllowQueue: f.allowQueue, Log: log})
		},
	})
	if err != nil {
		return failure{err}
	}
	return nil
}

// untilSignal ends with the first SIGINT or SIGTERM. The second ends the
// process at once; the kernel then detaches what hangs on its descriptors.
func untilSignal(ctx context.Context, log *slog.Logger) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		log.Info("stopping", "signal", s)
		cancel()
		s = <-signals
		fmt.Fprintf(os.Stderr, "unetd: second signal (%v): ended without cleaning up\n", s)
		os.Exit(exitFailure)
	}()
	return ctx
}

func (f serveFlags) parseSocket() (daemon.Socket, error) {
	s := daemon.Socket{Path: f.socket, Mode: 0o600, GID: -1}
	if f.socket == "" {
		return s, errors.New("--socket: want a path")
	}
	if f.socketGroup != "" {
		group, err := user.LookupGroup(f.socketGroup)
		if err != nil {
			group, err = user.LookupGroupId(f.socketGroup)
		}
		switch {
		case err == nil:
			if s.GID, err = strconv.Atoi(group.Gid); err != nil {
				return s, fmt.Errorf("--socket-group %s: %w", f.socketGroup, err)
			}
		default:
			// A number need not be in the group database.
			gid, err := strconv.ParseUint(f.socketGroup, 10, 31)
			if err != nil {
				return s, fmt.Errorf("--socket-group %s: no such group", f.socketGroup)
			}
			s.GID = int(gid)
		}
		s.Mode = 0o660
	}
	if f.socketMode != "" {
		mode, err := strconv.ParseUint(f.socketMode, 8, 32)
		if err != nil || mode > 0o777 {
			return s, fmt.Errorf("--socket-mode %s: want an octal number such as 0660", f.socketMode)
		}
		s.Mode = fs.FileMode(mode)
	}
	return s, nil
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	least, ok := levels[level]
	if !ok {
		return nil, fmt.Errorf("--log-level %s: want debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: least}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format %s: want text or json", format)
}
