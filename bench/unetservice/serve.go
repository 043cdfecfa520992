package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/service"
)

func newServe() *cobra.Command {
	var n network
	cmd := &cobra.Command{
		Use:   "serve SERVICE ADDRESS:PORT",
		Short: "Answer until SIGTERM or an interrupt",
		Long: `serve writes a line when it accepts connections, and answers until SIGTERM or an interrupt.
The server of redis is the program resp of examples/.`,
		Example: `  unetservice serve http 10.0.0.1:9000
  unetservice serve http 10.0.0.1:9000 --kernel`,
		Args: cli.Args(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s, err := service.ByName(args[0])
			switch {
			case err != nil:
				return cli.Usage(err)
			case s.Serve == nil:
				return cli.Usage(fmt.Errorf("the server of %s is the program resp of examples/", args[0]))
			}
			opened, err := n.open(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, opened.Close()) }()
			return s.Serve(cmd.Context(), opened, args[1], func(a net.Addr) { fmt.Fprintln(cmd.OutOrStdout(), "listening on", a) })
		},
	}
	n.flags(cmd)
	return cmd
}
