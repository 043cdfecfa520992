//go:build linux

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/show"
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
and process, how it is attached and by which device, the mode of the mux, whether the
socket of a queue has zero copy or why not, the size of its segment, its state, and its tags.
PATHS is shown if an endpoint has memory paths, by which it exchanges frames with other
endpoints of this host: how many.
A device eth0/2 of 4 is queue 2 of eth0, over 4 queues of which the sender spreads frames:
the endpoint gets those that come in on queue 2. The interface is
shown if there are several. The state is leased, or waiting if unetd has taken the endpoint
over from an earlier unetd and its application has not connected again yet. If unetd is
being drained (unetd drain), a last line says so.
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
		Long: `Counters writes the counters of the BPF programs of the unetd at the socket, in
frames: received (rx), sent (tx), delivered, and dropped, by reason; and the leases that
unetd has granted and refused. Without --all counters that are 0 are left out.
Frames by memory paths pass no program: unetd status has them by endpoint.

With --check it writes instead how many frames were received, sent and delivered, and
whether the counters add up: each frame that was redirected to a port must have arrived
there or be counted as lost. It waits up to a second for frames on their way, and fails if
frames have disappeared.
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

func newUplinks() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uplinks",
		Short: "Show the interfaces that a running unetd serves",
		Long: `Uplinks writes a line for each interface that the unetd at the socket serves: its
number, the mode of the mux, the state of the link, and the number of endpoints; or why
the interface cannot be used now. unetd serves it again when that is over. If unetd is
being drained (unetd drain), a last line says so.
` + whoMayAsk,
		Example: `  unetd uplinks
  unetd uplinks --json | jq .draining`,
		Args: cobra.NoArgs,
	}
	ask(cmd, show.Uplinks)
	return cmd
}

func newReload() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a running unetd read its policy again",
		Long: `Reload makes the unetd at the socket read its policy file again, as SIGHUP does, and
writes which rules have changed. Endpoints keep what they have. If the file is wrong, the
old policy stays in force, and the command fails with the mistakes of the file.

The file is the one of the running unetd (unetd serve --policy). See unetd check-config.
` + whoMayAsk,
		Example: `  unetd check-config && unetd reload`,
		Args:    cobra.NoArgs,
	}
	ask(cmd, show.Reload)
	return cmd
}

func newRevoke() *cobra.Command {
	var socket string
	var reason string
	cmd := &cobra.Command{
		Use:   "revoke ENDPOINT",
		Short: "End the lease of an endpoint",
		Long: `Revoke ends the lease of an endpoint of the unetd at the socket. The number is the one
that unetd list shows. The tags and the port of the endpoint are free when the command
ends, and the peers of its TCP connections get a RST. Every call of the application on
the endpoint fails from then on, with the reason, which is also in unetd's log.

The application may open another endpoint, as far as the policy permits: to prevent
that, change the policy first (unetd reload).
` + whoMayAsk,
		Example: `  unetd revoke 7 --reason "moved to another host"`,
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: firstIsEndpoint(&socket),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := endpointID(args[0])
			if err != nil {
				return err
			}
			if err := (control.Operator{Socket: socket}).Revoke(cmd.Context(), id, reason); err != nil {
				return failure{err}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "endpoint %d revoked\n", id)
			return failed(err)
		},
	}
	socketFlag(cmd, &socket)
	cmd.Flags().StringVar(&reason, "reason", "", "what the application is told, one line of at most 256 bytes")
	return cmd
}

func newDrain() *cobra.Command {
	var socket string
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Make a running unetd grant no new endpoints",
		Long: `Drain makes the unetd at the socket refuse every request for a new endpoint, with the
error "busy". Endpoints that there are go on: they may claim further tags, and those of an
earlier unetd can be presented by their applications. So the host becomes free of
endpoints as applications end; unetd list shows which are left.

Draining ends with --undo, or with unetd: the next one grants endpoints.
` + whoMayAsk,
		Example: `  unetd drain
  unetd list
  unetd drain --undo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			drain, text := control.Operator.Drain, "draining: no new endpoints are granted (unetd drain --undo)"
			if undo {
				drain, text = control.Operator.Resume, "new endpoints are granted"
			}
			if err := drain(control.Operator{Socket: socket}, cmd.Context()); err != nil {
				return failure{err}
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
			return failed(err)
		},
	}
	socketFlag(cmd, &socket)
	cmd.Flags().BoolVar(&undo, "undo", false, "grant new endpoints again")
	return cmd
}

// ask gives cmd the flags of the commands that ask a running unetd, and makes it call run.
func ask(cmd *cobra.Command, run func(ctx context.Context, socket string, w io.Writer, asJSON bool) error) {
	var socket string
	var asJSON bool
	socketFlag(cmd, &socket)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return failed(run(cmd.Context(), socket, cmd.OutOrStdout(), asJSON))
	}
}

// socketFlag gives cmd the flag by which a running unetd is found.
func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", control.DefaultSocket, "unix socket that unetd listens on")
}
