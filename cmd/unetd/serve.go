package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/mux"
)

// serveFlags are the flags of unetd serve, as text.
type serveFlags struct {
	iface, mode                     string
	socket, socketMode, socketGroup string
	policy, bpffs                   string
	grace                           time.Duration
	keep                            bool
	uncheckedFills                  bool
	logLevel, logFormat             string
	readyFD                         int
}

const serveExamples = `  # Serve eth0 to root alone.
  unetd serve --interface eth0

  # Let everybody ask; the policy says who gets what.
  unetd serve --interface eth0 --policy /etc/unet/policy.yaml --socket-mode 0666

  # Members of the group unet can ask.
  unetd serve --interface eth0 --socket-group unet

  # Read the policy again after a change.
  unetd check-config && systemctl reload unetd

  # Restart without an interruption: endpoints go on while no unetd is there.
  unetd serve --interface eth0 --keep

  # A socket of your own, and programs run by the driver or not at all.
  unetd serve --interface eth0 --socket /run/lab/unetd.sock --mode native`

const serveLong = `Serve attaches the multiplexer to an interface, listens on a unix socket, and
grants endpoints to whoever asks for them there and may have them by the policy.
When a connection closes, its tags and its port are reclaimed; the memory and the
network namespace of an endpoint live until the application closes its
descriptors, and count against its user's limits until then.

Policy: a file says who may claim which tags on which interface, how many
endpoints and how much memory; the first rule that fits decides, and whom none
fits gets nothing. Without --policy it is ` + policy.DefaultFile + ` if that exists;
without any file only uid 0 gets endpoints. SIGHUP reads it again: what runs is not
touched, and if the file is wrong the old policy stays. The socket's mode (0600 by
default) decides who can ask at all: with a policy, --socket-mode 0666 or
--socket-group lets others ask. See unetd check-config, and docs/policy.md.

The host's firewall (netfilter, tc) does not see what endpoints send and
receive: its rules do not apply to them. A rule with trusted: true lets a user
attach to a queue of the interface itself: who owns a queue reads every frame that
arrives there, can keep the others from getting any, and sends frames that nobody
checks.

Network address translation: a port that a translated flow uses, or that a rule
forwards, is refused as one in use. A port that masquerading may use later is refused too,
unless the user's rule says nat: warn. See docs/policy.md.

Crashes: programs, tables and links are pinned in a BPF file system (--bpffs), so
endpoints work on when unetd is killed. The next unetd of the interface takes them
over, and applications come back to it by themselves; what nobody comes back for
within --grace is reclaimed. A second unetd for the same interface is refused.

SIGINT or SIGTERM ends all leases and tells their owners, detaches from the
interface, unpins and removes the socket. With --keep it leaves everything
working instead, for the next unetd. More of these signals do not disturb that; one
that comes more than five seconds after the first ends the process at once, as a crash
would, for when unetd hangs, and unetd says how to remove what is left. If the interface is deleted or its MAC address changes, all leases end,
and unetd ends with status 1.

unetd needs root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_IPC_LOCK and CAP_SETUID (and
CAP_NET_BIND_SERVICE if the policy permits ports below
net.ipv4.ip_unprivileged_port_start), and to write to the BPF file system.
NOTIFY_SOCKET is honoured (systemd Type=notify).`

// newServe is the command. stderr is for the log.
func newServe(stderr *logWriter) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:     "serve --interface NAME",
		Short:   "Attach to an interface and grant endpoints on it",
		Long:    serveLong,
		Example: serveExamples,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), stderr)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.iface, "interface", "", "network interface to attach to (required)")
	flags.StringVar(&f.mode, "mode", "auto", "how XDP programs are attached: native (by the driver), generic, or auto: native on hardware that can, else generic")
	flags.StringVar(&f.socket, "socket", control.DefaultSocket, "unix socket to listen on; its folder is made if missing")
	flags.StringVar(&f.socketMode, "socket-mode", "", "permissions of the socket, octal (default 0600, or 0660 with --socket-group)")
	flags.StringVar(&f.socketGroup, "socket-group", "", "group of the socket, a name or a number")
	flags.StringVar(&f.policy, "policy", "", "file that says who may have what (default "+policy.DefaultFile+" if it exists, else only uid 0 may)")
	flags.StringVar(&f.bpffs, "bpffs", uplink.DefaultBPFFS, "BPF file system for what outlives unetd; mounted if nothing is mounted there")
	flags.DurationVar(&f.grace, "grace", 10*time.Second, "how long endpoints of a unetd that has died wait for their applications")
	flags.BoolVar(&f.keep, "keep", false, "leave everything working at the end, for the next unetd")
	flags.BoolVar(&f.uncheckedFills, "unchecked-fill-rings", false, "grant endpoints to users who are not trusted also on a kernel on which their fill rings cannot be checked")
	flags.StringVar(&f.logLevel, "log-level", "info", "least severe level to log: debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	flags.IntVar(&f.readyFD, "ready-fd", 0, "write a line to this open file descriptor (3 or above) when ready")
	return cmd
}

// run reads the flags, then serves. Errors that are not a failure are about
// the flags.
func (f serveFlags) run(ctx context.Context, stderr *logWriter) error {
	if f.iface == "" {
		return errors.New("no --interface given")
	}
	if f.grace <= 0 {
		return fmt.Errorf("--grace %v: want more than 0", f.grace)
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
	mode, err := mux.ParseMode(f.mode)
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

	// The reader of the log may go away, and Go's runtime would end the process then.
	signal.Ignore(syscall.SIGPIPE)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	ctx = f.untilSignal(ctx, log, stderr)
	source, err := policy.OpenSource(f.policy, policy.DefaultFile, policy.SystemNames(), log)
	if err != nil {
		return failure{err}
	}
	if err := uplink.Check(f.iface); err != nil {
		return failure{err}
	}
	log.Info("policy", "policy", source.Policy().String(), "rules", len(source.Policy().Rules))
	go reloadOn(reload, source, log)
	err = daemon.Run(ctx, daemon.Config{
		Socket: socket,
		Ready:  ready,
		Keep:   f.keep,
		Log:    log,
		Open: func(limits mux.Limits) (daemon.Mux, error) {
			return uplink.Open(uplink.Config{
				Interface: f.iface, Mode: mode, BPFFS: f.bpffs, Grace: f.grace, Policy: source, Limits: limits, Register: registerCommand, Log: log,
				UncheckedFillRings: f.uncheckedFills,
			})
		},
	})
	if err != nil {
		return failure{err}
	}
	return nil
}

// reloadOn reads the policy again at each signal. What is wrong with it has a
// line each in the log.
func reloadOn(signals <-chan os.Signal, source *policy.Source, log *slog.Logger) {
	for range signals {
		err := source.Reload()
		if err == nil {
			log.Info("policy reloaded", "policy", source.Policy().String(), "rules", len(source.Policy().Rules))
			continue
		}
		for line := range strings.Lines(err.Error()) {
			log.Error("policy not reloaded, the old one stays", "error", strings.TrimSpace(line))
		}
	}
}

// endWithin is how long the end of unetd is not disturbed by another signal.
const endWithin = 5 * time.Second

// untilSignal ends with the first SIGINT or SIGTERM. Others change nothing while
// unetd ends, which takes less than a second mostly: whoever sends two wants it to end,
// not to leave everything attached. One that comes when endWithin is over ends the
// process at once: what is attached is pinned and stays, as if it had been killed, until
// the next unetd or unetd cleanup.
func (f serveFlags) untilSignal(ctx context.Context, log *slog.Logger, stderr *logWriter) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		begin := time.Now()
		log.Info("stopping", "signal", s.String())
		cancel()
		for s := range signals {
			if time.Since(begin) > endWithin {
				fmt.Fprintf(stderr, "unetd: %v again, after %v: ended before everything was detached from %s: its programs, ports and pins and %s may be left: remove them (unetd cleanup --bpffs %s --socket %s), or start unetd again\n",
					s, time.Since(begin).Round(time.Second), f.iface, f.socket, f.bpffs, f.socket)
				stderr.flush()
				os.Exit(exitFailure)
			}
			log.Warn("still stopping; if unetd hangs, another signal ends it at once", "signal", s.String(), "from", endWithin.String())
		}
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
