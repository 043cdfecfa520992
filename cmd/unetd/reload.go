//go:build linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/show"
)

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
