//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/control"
)

func newCleanup() *cobra.Command {
	var socket, bpffs string
	var force bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what a killed unetd has left",
		Long: `Cleanup removes what a unetd of this network namespace has left if it was killed
and no other was started after it: BPF programs and links, pins, ports, the socket, and
the tag tables beside it.
It also removes the pins for interfaces that no longer exist. What a running unetd
serves stays. What applications still use stays for the next unetd to take over;
--force removes that, too. Nothing that is not unet's is touched.`,
		Example: `  unetd cleanup
  unetd cleanup --force    # also endpoints whose applications still run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			found := false
			var unwritten error
			report := func(what string) {
				found = true
				if _, err := fmt.Fprintln(out, what); err != nil {
					unwritten = err // of each line the same
				}
			}
			err := errors.Join(uplink.Cleanup(bpffs, filepath.Dir(socket), force, report), daemon.CleanSocket(socket, report))
			if err == nil && !found {
				report("nothing to clean up")
			}
			return failed(errors.Join(err, unwritten))
		},
	}
	cmd.Flags().StringVar(&socket, "socket", control.DefaultSocket, "unix socket that unetd listened on")
	cmd.Flags().StringVar(&bpffs, "bpffs", uplink.DefaultBPFFS, "BPF file system that unetd used")
	cmd.Flags().BoolVar(&force, "force", false, "also remove what applications still use")
	return cmd
}
