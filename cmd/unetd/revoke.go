//go:build linux

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/control"
)

func newRevoke() *cobra.Command {
	var socket, reason string
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
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return fmt.Errorf("%q is not the number of an endpoint, as unetd list shows it", args[0])
			}
			if err := control.Revoke(contextOf(cmd), socket, id, reason); err != nil {
				return failure{err}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "endpoint %d revoked\n", id)
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "socket", control.DefaultSocket, "unix socket that unetd listens on")
	cmd.Flags().StringVar(&reason, "reason", "", "what the application is told, one line of at most 256 bytes")
	return cmd
}
