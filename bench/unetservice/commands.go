package main

import (
	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/plan"
)

func newCommand() *cobra.Command {
	long := `unetservice serves and asks services of ordinary Go libraries on unet, or with --kernel on
the kernel's sockets. unetbench services starts it; by hand it measures between two machines.

Services:
` + plan.AboutServices()
	root := cli.Root(&cobra.Command{
		Use:   "unetservice",
		Short: "Server and client of the services that unetbench measures",
		Long:  long,
		Example: `  unetservice serve grpc 10.0.0.1:9000
  unetservice ask grpc 10.0.0.1:9000 --connections 16
  unetservice ask grpc 10.0.0.1:9000 --connections 16 --kernel`,
		Args: cli.Args(0),
		RunE: cli.Missing("which command? serve, ask or compute"),
	})
	root.AddCommand(newServe(), newAsk(), newCompute())
	return root
}
