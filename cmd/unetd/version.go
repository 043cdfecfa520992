package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/internal/version"
)

func versionLine() string {
	return version.Line("unetd", fmt.Sprintf("control protocol %d", daemon.ProtocolVersion))
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), versionLine()) },
	}
}
