//go:build linux

package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/demo"
	"github.com/unet-go/unet/cmd/unetd/internal/show"
	"github.com/unet-go/unet/control"
)

func newDemo() *cobra.Command {
	cfg := demo.Config{Command: []string{"/proc/self/exe"}, Application: []string{"/proc/self/exe", applicationName}}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show all of unet in two network namespaces, explained as it runs",
		Long: `Demo makes two hosts on this machine, which are network namespaces joined by a veth
pair. On one it starts unetd, and an application of user nobody, which opens an endpoint;
the other is an ordinary host of the kernel, whose sockets the application answers. Then it
shows, with the commands of unetd and their real output: endpoints and sockets, who holds
a port, captured frames, a refused port, a forged message, unetd killed and started again
while traffic flows, and the counters.

It needs root, takes a few seconds, and touches no interface, socket or file of this
machine: its folders are in a mount namespace of its own. All of it ends with the command,
in whatever way that ends. Exit status 1 if something did not work, or after SIGINT, SIGTERM or SIGHUP.`,
		Example: `  unetd demo
  unetd demo --pause    # with a pause before each step`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			_, terminal := show.TerminalWidth(cmd.OutOrStdout())
			cfg.Color = terminal && os.Getenv("NO_COLOR") == ""
			cfg.Stdin, cfg.Stdout = cmd.InOrStdin(), cmd.OutOrStdout()
			return failed(demo.Run(ctx, cfg))
		},
	}
	cmd.Flags().BoolVar(&cfg.Pause, "pause", false, "wait for the Enter key before each step")
	return cmd
}

const applicationName = "demo-application"

// newDemoApplication is the application that unetd demo starts. It is not for use by hand.
func newDemoApplication() *cobra.Command {
	return &cobra.Command{
		Use:    applicationName,
		Short:  "The application of unetd demo (called by unetd itself)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return failed(demo.Application(cmd.Context(), control.DefaultSocket, cmd.InOrStdin(), cmd.OutOrStdout()))
		},
	}
}
