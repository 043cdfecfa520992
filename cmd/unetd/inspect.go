package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/show"
)

// Who may see what others do, in the help of the commands that show it.
const whoMayAsk = `
It is for root, for the user that unetd runs as, and for whom the policy gives
operator: true. The socket's mode has to let them connect.`

func newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the endpoints of a running unetd",
		Long: `List writes a line for each endpoint of the unetd at the socket: its number, user
and process, how it is attached and by which device, the size of its segment, and
its tags. The state is leased, or waiting if unetd has taken the endpoint over from
one that has died and its application has not come back yet.
` + whoMayAsk,
		Example: `  unetd list
  unetd list --json | jq '.[] | select(.uid == 1001) | .tags'`,
		Args: cobra.NoArgs,
	}
	ask(cmd, show.List)
	return cmd
}

func newCounters() *cobra.Command {
	var zeros bool
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show the counters of a running unetd",
		Long: `Counters writes what the programs of the unetd at the socket have counted, in
frames: what came in (rx), was sent (tx) and delivered, and what was dropped and
why; and the leases that unetd has granted and refused. Those that are 0 are left
out, unless --all is given.
` + whoMayAsk,
		Example: `  unetd counters
  unetd counters --all --json`,
		Args: cobra.NoArgs,
	}
	ask(cmd, func(ctx context.Context, socket string, w io.Writer, asJSON bool) error {
		return show.Counters(ctx, socket, w, asJSON, zeros)
	})
	cmd.Flags().BoolVar(&zeros, "all", false, "show also those that are 0")
	return cmd
}

// ask gives a command the flags of those that ask a running unetd, and what it runs.
func ask(cmd *cobra.Command, run func(ctx context.Context, socket string, w io.Writer, asJSON bool) error) {
	socket := cmd.Flags().String("socket", daemon.DefaultSocket, "unix socket that unetd listens on")
	asJSON := cmd.Flags().Bool("json", false, "write JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		if err := run(ctx, *socket, cmd.OutOrStdout(), *asJSON); err != nil {
			return failure{err}
		}
		return nil
	}
}
