// Package cli is what the commands of the benchmarks have in common: errors in the command line,
// exit codes, signals.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/internal/version"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// usageError is an error in the command line or in the input.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks an error in the command line or in the input.
func Usage(err error) error { return usageError{err} }

// IsUsage reports whether err is one.
func IsUsage(err error) bool {
	var u usageError
	return errors.As(err, &u)
}

// Main runs a command and exits. The first SIGTERM or interrupt ends its context, a second one the
// process.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := cmd.ExecuteContext(ctx)
	if err != nil && ctx.Err() != nil {
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted")
		} else {
			err = fmt.Errorf("interrupted: %w", err)
		}
	}
	Exit(cmd, err)
}

// Exit ends the process after a command, if it has failed.
func Exit(cmd *cobra.Command, err error) {
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.Name(), err)
	if IsUsage(err) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailure)
}

// Root completes the root of a command line: its version, and errors that Main writes.
func Root(cmd *cobra.Command) *cobra.Command {
	cmd.Version = version.Line(cmd.Name())
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	return cmd
}

// Missing is the RunE of a root that needs a subcommand.
func Missing(question string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		_ = cmd.Help()
		return Usage(errors.New(question))
	}
}

// Args is cobra.ExactArgs with our exit code.
func Args(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return Usage(fmt.Errorf("%s has %d arguments, want %d: see %s --help", cmd.CommandPath(), len(args), n, cmd.CommandPath()))
		}
		return nil
	}
}
