package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/internal/version"
)

func newCommand() *cobra.Command {
	long := `unetservice serves and asks services of ordinary Go libraries on unet, or with --kernel on
the kernel's sockets. unetbench services starts it; by hand it measures between two machines.

Services:
`
	for _, s := range plan.ServiceList {
		long += fmt.Sprintf("  %-10s %s\n", s.Name, s.About)
	}
	root := &cobra.Command{
		Use:   "unetservice",
		Short: "Server and client of the services that unetbench measures",
		Long:  long,
		Example: `  unetservice serve grpc 10.0.0.1:9000
  unetservice ask grpc 10.0.0.1:9000 --connections 16
  unetservice ask grpc 10.0.0.1:9000 --connections 16 --kernel`,
		Version:       version.Line("unetservice"),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usageError{errors.New("which command? serve, ask or compute")}
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newServe(), newAsk(), newCompute())
	return root
}

// arguments is cobra.ExactArgs with our exit code.
func arguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%s has %d arguments, want %d: see %s --help", cmd.CommandPath(), len(args), n, cmd.CommandPath())}
		}
		return nil
	}
}
