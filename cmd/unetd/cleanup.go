package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
)

func newCleanup() *cobra.Command {
	var socket, bpffs string
	var force bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what a unetd that was killed has left",
		Long: `Cleanup removes what unetds of this network namespace have left behind when they
were killed and none came after them: XDP programs and links, pins, ports, and the
socket. It also removes what was pinned for interfaces that are gone. What a
running unetd serves stays, and so does what applications still use, which the
next unetd takes over; --force removes that, too. Nothing that is not unet's is
touched.`,
		Example: `  unetd cleanup
  unetd cleanup --force    # also endpoints whose applications live`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			found := false
			report := func(what string) {
				found = true
				fmt.Fprintln(out, what)
			}
			err := uplink.Cleanup(bpffs, force, report)
			err = errors.Join(err, daemon.CleanSocket(socket, report))
			if err != nil {
				return failure{err}
			}
			if !found {
				fmt.Fprintln(out, "nothing to clean up")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "socket", daemon.DefaultSocket, "unix socket that unetd listened on")
	cmd.Flags().StringVar(&bpffs, "bpffs", uplink.DefaultBPFFS, "BPF file system that unetd used")
	cmd.Flags().BoolVar(&force, "force", false, "remove also what applications still use")
	return cmd
}
