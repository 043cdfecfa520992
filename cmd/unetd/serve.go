//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/metrics"
	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/internal/version"
	"github.com/unet-go/unet/mux"
)

// serveFlags are the values of the flags of unetd serve.
type serveFlags struct {
	interfaces                      []string
	mode                            string
	socket, socketMode, socketGroup string
	policy, bpffs                   string
	grace                           time.Duration
	keep                            bool
	uncheckedFills                  bool
	logLevel, logFormat             string
	readyFD                         int
	metrics                         string
}

const serveExamples = `  # Serve eth0 to root alone.
  unetd serve --interface eth0

  # Let every user connect; the policy decides what each gets.
  unetd serve --interface eth0 --policy /etc/unet/policy.yaml --socket-mode 0666

  # Serve two interfaces.
  unetd serve --interface eth0 --interface eth1

  # Let members of the group unet connect.
  unetd serve --interface eth0 --socket-group unet

  # Read the policy again after a change.
  unetd check-config && systemctl reload unetd

  # Restart without an interruption: endpoints go on while no unetd runs.
  unetd serve --interface eth0 --keep

  # Let Prometheus scrape this unetd.
  unetd serve --interface eth0 --metrics 127.0.0.1:9810

  # Another socket, and native mode: if the driver has none, unetd does not start.
  unetd serve --interface eth0 --socket /run/lab/unetd.sock --mode native`

const serveLong = `Serve attaches the multiplexer to interfaces, listens on a unix socket, and
grants endpoints to applications that ask for them there, if the policy permits it.
When a connection closes, the tags and the port of its endpoint are reclaimed. The
memory and the network namespace of the endpoint exist until the application closes
its descriptors, and count against its user's limits until then.

Policy: a file with rules, each of which gives users tags on interfaces, a number of
endpoints and an amount of memory. The first rule that applies to a user decides; a
user to whom none applies gets nothing. The default file is ` + policy.DefaultFile + `;
without a file only uid 0 gets endpoints. SIGHUP or unetd reload reads the file again:
endpoints keep what they have, and if the file is wrong the old policy stays. The
socket's mode (0600 by default) decides which users can connect: with a policy,
--socket-mode 0666 or --socket-group lets others connect. See unetd check-config, and
docs/policy.md.

The rules of the host's firewall (netfilter, tc) do not apply to what endpoints send
and receive. A rule with trusted: true lets a user attach to a queue of the interface
itself: the owner of a queue reads every frame that arrives there, can keep other
endpoints from getting any, and sends frames that are not checked. The rule's queues
say which queues.

Network address translation: a port that a translated flow uses, or that a rule
forwards, is refused as one in use. A port that masquerading may use later is refused too,
unless the user's rule has nat: warn. See docs/policy.md.

Crashes: programs, tables and links are pinned in a BPF file system (--bpffs), so
endpoints go on when unetd is killed. The next unetd of the interface takes them
over, and applications connect to it by themselves. Endpoints whose applications do not
connect within --grace are reclaimed. A second unetd for the same interface is refused.

SIGINT or SIGTERM ends all leases, with a reason to their owners, detaches from the
interface, unpins and removes the socket. With --keep everything stays attached and
working instead, for the next unetd. Further signals within five seconds have no effect.
A later one, for a unetd that hangs, ends the process at once, as a crash would, and
unetd prints how to remove what is left.

If an interface is deleted, leaves the network namespace or gets another MAC address, its
leases end, with the reason. unetd goes on, and serves the interface again as soon as
there is one of that name; applications open new endpoints. An interface that is renamed
or set down keeps its endpoints.

With several --interface, an endpoint is on the one that its request names
(Config.Interface, UNET_INTERFACE), else on the one that has the addresses of its tags,
else on the only one on which the policy gives its user an endpoint. The limits of the
policy are for each interface; those of all users together are divided among them.
--mode is for each.

unetd needs root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_IPC_LOCK and CAP_SETUID (and
CAP_NET_BIND_SERVICE if the policy permits ports below
net.ipv4.ip_unprivileged_port_start), and to write to the BPF file system.
NOTIFY_SOCKET is honoured (systemd Type=notify); unetd goes on if it cannot be reached.`

// newServe is the command. stderr is for the log.
func newServe(stderr *logWriter) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:     "serve --interface NAME",
		Short:   "Attach to interfaces and grant endpoints on them",
		Long:    serveLong,
		Example: serveExamples,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), stderr)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.interfaces, "interface", nil, "network interface to attach to, by any of its names (required); may be given several times")
	flags.StringVar(&f.mode, "mode", "auto", "how programs are attached to the interface: native (XDP in the driver), tcx (traffic control), or auto: native on hardware that supports it, else tcx")
	flags.StringVar(&f.socket, "socket", control.DefaultSocket, "unix socket to listen on; its folder is made if missing")
	flags.StringVar(&f.socketMode, "socket-mode", "", "permissions of the socket, octal (default 0600, or 0660 with --socket-group)")
	flags.StringVar(&f.socketGroup, "socket-group", "", "group of the socket, a name or a number")
	flags.StringVar(&f.policy, "policy", "", "policy file (default "+policy.DefaultFile+" if it exists, else only uid 0 gets endpoints)")
	flags.StringVar(&f.bpffs, "bpffs", uplink.DefaultBPFFS, "BPF file system for the pins; mounted if nothing is mounted there")
	flags.DurationVar(&f.grace, "grace", 10*time.Second, "how long endpoints of an earlier unetd wait for their applications to connect")
	flags.BoolVar(&f.keep, "keep", false, "at the end leave everything attached and working, for the next unetd")
	flags.BoolVar(&f.uncheckedFills, "unchecked-fill-rings", false, "grant endpoints to untrusted users even if the kernel has no way to check their fill rings")
	flags.StringVar(&f.logLevel, "log-level", "info", "lowest level that is logged: debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	flags.StringVar(&f.metrics, "metrics", "", "answer Prometheus at HOST:PORT or unix:PATH, without authentication")
	flags.IntVar(&f.readyFD, "ready-fd", 0, "write a line to this open file descriptor (3 or above) when ready")
	completeInterface(cmd)
	return cmd
}

// run checks the flags, then serves. An error that is not a failure is about the flags.
func (f serveFlags) run(ctx context.Context, stderr *logWriter) error {
	if len(f.interfaces) == 0 {
		return errors.New("no --interface given")
	}
	for i, name := range f.interfaces {
		name, _ = uplink.Names(name)
		f.interfaces[i] = name
		if slices.Contains(f.interfaces[:i], name) {
			return fmt.Errorf("--interface %s: given twice", name)
		}
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

	// Otherwise, if the reader of the log ends, SIGPIPE ends this process at the next write.
	signal.Ignore(syscall.SIGPIPE)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	ctx = f.untilSignal(ctx, log, stderr)
	source, err := policy.OpenSource(f.policy, policy.DefaultFile, policy.SystemNames(), log)
	if err != nil {
		return failure{err}
	}
	if err := uplink.Check(f.interfaces...); err != nil {
		return failure{err}
	}
	var suppressed, faults atomic.Uint64
	observe := func(*uplink.Uplinks) {}
	if f.metrics != "" {
		ln, err := metrics.Listen(f.metrics)
		if errors.Is(err, metrics.ErrAddress) {
			return err
		}
		if err != nil {
			return failure{err}
		}
		defer ln.Close()
		observe = func(u *uplink.Uplinks) {
			stop := metrics.Serve(ln, u, metrics.Process{Version: version.Of(), LogDropped: stderr.allDropped, LogSuppressed: suppressed.Load, Faults: faults.Load})
			context.AfterFunc(ctx, stop)
			log.Info("metrics", "address", ln.Addr().String())
		}
	}
	log.Info("policy", "policy", source.Policy().String(), "rules", len(source.Policy().Rules))
	go reloadOn(reload, source)
	err = daemon.Run(ctx, daemon.Config{
		Socket: socket,
		Ready:  ready,
		Keep:   f.keep,
		Log:    log,

		Suppressed: &suppressed,
		Faults:     &faults,
		Open: func(limits mux.Limits) (daemon.Mux, error) {
			u, err := uplink.Open(f.interfaces, mux.Config{
				Mode: mode, Pin: f.bpffs, Dir: filepath.Dir(f.socket), Grace: f.grace, Limits: limits, Log: log, UncheckedFillRings: f.uncheckedFills,
			}, source, registerCommand)
			if err != nil {
				return nil, err
			}
			observe(u)
			return u, nil
		},
	})
	return failed(err)
}

// reloadOn reads the policy again at each signal. The source logs the outcome.
func reloadOn(signals <-chan os.Signal, source *policy.Source) {
	for range signals {
		_, _ = source.Reload()
	}
}

// endWithin is the time after the first signal in which further ones have no effect.
const endWithin = 5 * time.Second

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. Further
// signals within endWithin have no effect, so that two signals in a row do not leave the
// programs attached: unetd usually ends in less than a second. A later one ends the
// process at once: what is attached is pinned and stays, as after SIGKILL, until the next
// unetd or unetd cleanup.
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
				fmt.Fprintf(stderr, "unetd: %v again, after %v: ended before everything was detached from %s: programs, ports, pins and %s may be left: remove them (unetd cleanup --bpffs %s --socket %s), or start unetd again\n",
					s, time.Since(begin).Round(time.Second), strings.Join(f.interfaces, ", "), f.socket, f.bpffs, f.socket)
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
		gid, err := policy.GroupOf(f.socketGroup)
		if err != nil {
			return s, fmt.Errorf("--socket-group: %w", err)
		}
		s.GID, s.Mode = int(gid), 0o660
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
