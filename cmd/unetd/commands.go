//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/show"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/control"
)

// whoMayAsk is in the help of the commands that ask a running unetd.
const whoMayAsk = `
Root, the user that unetd runs as, and users to whom the policy gives operator: true
may run it. The socket's mode must let them connect.`

func newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the endpoints of a running unetd",
		Long: `List writes a line for each endpoint of the unetd at the socket: its number, user
and process, how it is attached and by which device, the mode of the mux, whether its
socket has zero copy or why not, the size of its segment, and its tags.
A device eth0/2 of 4 is queue 2 of eth0 where the sender spreads frames over 4 queues: the
endpoint gets those that come in on queue 2. The interface is shown if there are several. The state is leased, or waiting if unetd has taken the endpoint over from an
earlier unetd and its application has not connected again yet. If unetd is being drained
(unetd drain), a last line says so.
` + whoMayAsk,
		Example: `  unetd list
  unetd list --json | jq '.[] | select(.uid == 1001) | .tags'`,
		Args: cobra.NoArgs,
	}
	ask(cmd, show.List)
	return cmd
}

func newCounters() *cobra.Command {
	var zeros, check bool
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show the counters of a running unetd",
		Long: `Counters writes the counters of the XDP programs of the unetd at the socket, in
frames: received (rx), sent (tx), delivered, and dropped, by reason; and the leases that
unetd has granted and refused. Without --all counters that are 0 are left out.

With --check it writes instead how many frames were received, sent and delivered, and whether the
counters add up: each frame that was redirected to a port must have arrived there or be
counted as lost. It waits up to a second for frames on their way, and fails if frames have disappeared.
` + whoMayAsk,
		Example: `  unetd counters
  unetd counters --all --json
  unetd counters --check`,
		Args: cobra.NoArgs,
	}
	ask(cmd, func(ctx context.Context, socket string, w io.Writer, asJSON bool) error {
		if check {
			return show.Check(ctx, socket, w, asJSON)
		}
		return show.Counters(ctx, socket, w, asJSON, zeros)
	})
	cmd.Flags().BoolVar(&check, "check", false, "check that the counters add up")

	cmd.Flags().BoolVar(&zeros, "all", false, "show also counters that are 0")
	cmd.MarkFlagsMutuallyExclusive("check", "all")
	return cmd
}

// ask gives cmd the flags of the commands that ask a running unetd, and makes it call run.
func ask(cmd *cobra.Command, run func(ctx context.Context, socket string, w io.Writer, asJSON bool) error) {
	socket := cmd.Flags().String("socket", control.DefaultSocket, "unix socket that unetd listens on")
	asJSON := cmd.Flags().Bool("json", false, "write JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := run(contextOf(cmd), *socket, cmd.OutOrStdout(), *asJSON); err != nil {
			return failure{err}
		}
		return nil
	}
}

// contextOf is the context of a command, which has none if it is run by ExecuteC.
func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func newCleanup() *cobra.Command {
	var socket, bpffs string
	var force bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what a killed unetd has left",
		Long: `Cleanup removes what a unetd of this network namespace has left if it was killed
and no other was started after it: XDP programs and links, pins, ports, and the socket.
It also removes the pins for interfaces that no longer exist. What a running unetd
serves stays. What applications still use stays for the next unetd to take over;
--force removes that, too. Nothing that is not unet's is touched.`,
		Example: `  unetd cleanup
  unetd cleanup --force    # also endpoints whose applications still run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			found := false
			report := func(what string) {
				found = true
				fmt.Fprintln(out, what)
			}
			err := uplink.Cleanup(bpffs, force, report)
			err = errors.Join(err, daemon.CleanSocket(socket, report))
			if err != nil {
				return failure{err}
			}
			if !found {
				fmt.Fprintln(out, "nothing to clean up")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "socket", control.DefaultSocket, "unix socket that unetd listened on")
	cmd.Flags().StringVar(&bpffs, "bpffs", uplink.DefaultBPFFS, "BPF file system that unetd used")
	cmd.Flags().BoolVar(&force, "force", false, "also remove what applications still use")
	return cmd
}
