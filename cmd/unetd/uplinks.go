//go:build linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/show"
)

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
