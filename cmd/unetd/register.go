package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/internal/xsk"
)

const registerName = "register-segment"

// registerCommand is how unetd calls itself: the file that runs, also after another
// was installed in its place.
var registerCommand = []string{"/proc/self/exe", registerName}

// newRegister is the command that unetd starts for each endpoint, to have its
// memory counted for its user. It has no use by hand.
func newRegister() *cobra.Command {
	return &cobra.Command{
		Use:                registerName,
		Short:              "Register a segment in a user's name (called by unetd itself)",
		Hidden:             true,
		DisableFlagParsing: true,
		Run:                func(cmd *cobra.Command, args []string) { os.Exit(xsk.RegisterMain(args, cmd.ErrOrStderr())) },
	}
}
