// Command unetd is the operating system's part of unet: it attaches the mux to
// a network interface and grants endpoints to applications that ask for them
// on a unix socket. It is never on the data path.
//
//	unetd serve --interface eth0
//
// This package reads the command line. The life of the daemon is in
// internal/daemon, the mux behind it in internal/uplink, and the protocol with
// applications in package control.
//
// Exit status: 0 after SIGINT or SIGTERM, 1 if it could not run or
// lost its interface, 2 if the command line is wrong.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(run(os.Args[1:])) }

// failure is an error of the work, as opposed to one of the command line.
type failure struct{ error }

func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	line := strings.ReplaceAll(err.Error(), "\n", "; ")
	if errors.As(err, &failure{}) {
		fmt.Fprintln(os.Stderr, "unetd:", line)
		return exitFailure
	}
	fmt.Fprintln(os.Stderr, "unetd:", line+": see unetd serve --help")
	return exitUsage
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "unetd",
		Short: "Grant applications endpoints on a network interface",
		Long: `unetd attaches the unet multiplexer (XDP programs) to a network interface and
grants endpoints to applications: an AF_XDP socket and a communication segment
of their own. Frames that no application has claimed stay the kernel's.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newServe(), newVersion())
	return root
}
