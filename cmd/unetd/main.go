//go:build linux

// Command unetd is unet's daemon: it attaches the mux to network interfaces and
// grants endpoints to applications that ask for them on a unix socket. It is never
// on the data path.
//
//	unetd serve --interface eth0
//	unetd check-config --as alice
//	unetd list
//
// This package reads the command line. Package internal/daemon starts and stops the
// daemon, internal/session answers applications, internal/uplink opens the mux, and
// internal/policy reads the policy.
//
// Exit status: 0 if the command succeeded, for serve after SIGINT or SIGTERM; 1 if it
// failed or the policy file is wrong; 2 if the command line is wrong.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/version"
	"github.com/unet-go/unet/internal/xsk"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// failure marks an error of the command's work. Errors without it are about the command line.
type failure struct{ error }

// failed marks err, if it is one.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// run runs a command line and returns the exit status.
func run(args []string, out, errOut io.Writer) int {
	stderr := newLogWriter(errOut)
	defer stderr.flush()
	root := newRoot(stderr)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	line := strings.ReplaceAll(err.Error(), "\n", "; ")
	if errors.As(err, &failure{}) {
		fmt.Fprintln(stderr, "unetd:", line)
		return exitFailure
	}
	fmt.Fprintln(stderr, "unetd:", line+": see", cmd.CommandPath(), "--help")
	return exitUsage
}

// newRoot is the whole command line. stderr is for the log of serve.
func newRoot(stderr *logWriter) *cobra.Command {
	root := &cobra.Command{
		Use:   "unetd",
		Short: "Grant applications endpoints on a network interface",
		Example: `  # Serve eth0 by the policy in /etc/unet/policy.yaml.
  unetd serve --interface eth0 --socket-mode 0666

  # Can unetd run here, and how well?
  unetd doctor --interface eth0

  # Is the policy right, and what may alice have?
  unetd check-config
  unetd check-config --as alice --interface eth0

  # What is there now?
  unetd list
  unetd counters`,
		Long: `unetd attaches the unet multiplexer (BPF programs) to network interfaces and
grants endpoints to applications: an AF_XDP socket and a communication segment
of their own. Frames that no application has claimed go to the kernel.`,
		Version:       versionLine(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newServe(stderr), newCheckConfig(),
		newList(), newStatus(), newCounters(), newUplinks(), newRoute(),
		newRevoke(), newReload(), newDrain(),
		newCleanup(),
		newDoctor(), newCapture(),
		newVersion(), newRegister(),
	)
	return root
}

func versionLine() string {
	return version.Line("unetd", fmt.Sprintf("control protocol %d", protocol.Version))
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return failed(err)
		},
	}
}

const registerName = "register-segment"

// registerCommand is the command by which unetd starts its own executable, also if that file
// has been replaced since.
var registerCommand = []string{"/proc/self/exe", registerName}

// newRegister is the command that unetd starts for each endpoint, so that the kernel
// charges its memory to its user. It is not for use by hand.
func newRegister() *cobra.Command {
	return &cobra.Command{
		Use:                registerName,
		Short:              "Register a segment in a user's name (called by unetd itself)",
		Hidden:             true,
		DisableFlagParsing: true,
		Run:                func(cmd *cobra.Command, args []string) { os.Exit(xsk.RegisterMain(args, cmd.ErrOrStderr())) },
	}
}
