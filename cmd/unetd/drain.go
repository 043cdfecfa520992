//go:build linux

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/control"
)

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
			if err := control.Drain(contextOf(cmd), socket, !undo); err != nil {
				return failure{err}
			}
			text := "draining: no new endpoints are granted (unetd drain --undo)"
			if undo {
				text = "new endpoints are granted"
			}
			fmt.Fprintln(cmd.OutOrStdout(), text)
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "socket", control.DefaultSocket, "unix socket that unetd listens on")
	cmd.Flags().BoolVar(&undo, "undo", false, "grant new endpoints again")
	return cmd
}
