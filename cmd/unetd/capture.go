//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/capture"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

func newCapture() *cobra.Command {
	cfg := capture.Config{Application: versionLine(), Stdout: os.Stdout}
	var socket string
	cmd := &cobra.Command{
		Use:   "capture ENDPOINT|--interface IF",
		Short: "Capture the frames of an endpoint",
		Long: `Capture shows the frames that an endpoint sends and receives, and those that the
programs of unetd drop, with the reason. tcpdump does not see them. ENDPOINT is a number
from unetd list; with --interface all endpoints of an interface are captured. Packets are
written as lines of text, or with -w as pcapng, which wireshark, tshark and tcpdump read. A
packet that was dropped or lost has the reason as its comment.

Capture writes all frames. To choose some, give them to tcpdump or tshark by a pipe.
tshark also shows and keeps the reasons and the direction.

The command attaches programs to tracepoints of the kernel as long as it runs; without it
there is nothing on the way of a frame. It needs CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and
CAP_SYS_ADMIN, so root, and the network namespace and BPF file system of unetd. It ends when the
endpoint does.

Frames between endpoints by shared memory pass no tracepoint. So the command asks unetd for
an end of the memory paths of what it captures; their frames go by the ports as long as it runs.

In native mode nothing can be captured. What an endpoint on a queue sends passes no program,
and is not captured either.
Checksums of sent and of local packets can be partial. At most ` + strconv.Itoa(capture.MaxSnap) + ` bytes of a frame
are captured.`,
		Example: `  unetd capture 3
  unetd capture 3 -w web.pcapng
  unetd capture 3 -w - | tcpdump -n -r - tcp port 80
  unetd capture --interface eth0 --kernel -w - | tshark -r - -Y 'arp or icmp'`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if cfg.Interface != "" {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return firstIsEndpoint(&socket)(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cfg.Interface == "" {
				if len(args) == 0 {
					return errors.New("an endpoint (see unetd list) or --interface is missing")
				}
				var err error
				if cfg.Endpoint, err = endpointID(args[0]); err != nil {
					return err
				}
				args = args[1:]
			}
			if cfg.Snaplen < 0 {
				return errors.New("--snapshot-length: a number of bytes, or 0 for all")
			}
			cfg.Interface, _ = uplink.Names(cfg.Interface)
			if len(args) > 0 {
				return fmt.Errorf("unexpected %q: give the frames to tcpdump or tshark to choose some (unetd capture ... -w - | tcpdump -n -r - FILTER)", args[0])
			}
			cfg.Stderr = cmd.ErrOrStderr()
			signal.Ignore(syscall.SIGPIPE) // a write to a closed pipe is an error, which ends the capture
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			if err := noMemoryPaths(ctx, socket, &cfg); err != nil && !errors.Is(err, endpoint.ErrNoEndpoint) { // Run says that
				fmt.Fprintln(cfg.Stderr, "warning: frames by shared memory are not captured:", err)
			}
			context.AfterFunc(ctx, stop) // a second signal ends the process, if the output blocks
			return failed(capture.Run(ctx, cfg))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Interface, "interface", "", "capture all endpoints of this interface")
	flags.StringVarP(&cfg.File, "write", "w", "", "write pcapng to this file (-: standard output)")
	flags.Uint64VarP(&cfg.Count, "count", "c", 0, "stop after this number of packets (0: do not)")
	flags.IntVarP(&cfg.Snaplen, "snapshot-length", "s", 0, "bytes captured of each frame (0: all, up to "+strconv.Itoa(capture.MaxSnap)+")")
	flags.BoolVar(&cfg.Kernel, "kernel", false, "capture also frames from the wire that are left to the kernel")
	flags.StringVar(&cfg.BPFFS, "bpffs", uplink.DefaultBPFFS, "BPF file system that unetd uses")
	flags.StringVar(&socket, "socket", control.DefaultSocket, "unix socket of the unetd that grants memory paths")
	completeInterface(cmd)
	return cmd
}

// noMemoryPaths makes unetd end the memory paths of what is captured, and grant none until ctx ends. It asks a unetd
// that follows, too.
func noMemoryPaths(ctx context.Context, socket string, cfg *capture.Config) error {
	var id *uint64
	if cfg.Interface == "" {
		id = &cfg.Endpoint
	}
	op := control.Operator{Socket: socket}
	ended, err := op.Capture(ctx, id)
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			<-ended
			for ctx.Err() == nil {
				if next, err := op.Capture(ctx, id); err == nil {
					ended = next
					break
				}
				time.Sleep(captureRetry)
			}
		}
	}()
	return nil
}

// captureRetry is the pause between attempts to ask the next unetd.
const captureRetry = 100 * time.Millisecond
