package main

import (
	"context"
	"flag"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet"
)

// network are the flags that choose the network.
type network struct {
	kernel bool
	cfg    unet.Config
}

func (n *network) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&n.kernel, "kernel", false, "use the kernel's sockets")
	settings := flag.NewFlagSet("", flag.ContinueOnError)
	n.cfg.RegisterFlags(settings)
	cmd.Flags().AddGoFlagSet(settings)
}

// open opens the network. Without --kernel it is unet's, or an error: a measurement must not use
// another network than the one it names.
func (n *network) open(ctx context.Context) (*unet.Opened, error) {
	if n.kernel {
		return &unet.Opened{Network: unet.Kernel()}, nil
	}
	return unet.OpenNetwork(ctx, n.cfg, nil)
}
