package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
)

// newCompute is the neighbour of a service: unetbench starts one on each processor.
func newCompute() *cobra.Command {
	return &cobra.Command{
		Use:     "compute",
		Short:   "Compute on one processor until SIGTERM or an interrupt",
		Long:    "compute writes a line when it begins, and keeps one processor busy until SIGTERM or an interrupt.",
		Example: "  taskset -c 1 unetservice compute",
		Args:    cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), "computing")
			compute(cmd.Context())
			return nil
		},
	}
}

// computed keeps the compiler from removing the loop of compute.
var computed atomic.Uint64

// compute runs a linear congruential generator until ctx ends.
func compute(ctx context.Context) {
	x := uint64(1)
	for ctx.Err() == nil {
		for range 1 << 16 {
			x = x*6364136223846793005 + 1442695040888963407
		}
	}
	computed.Store(x)
}
