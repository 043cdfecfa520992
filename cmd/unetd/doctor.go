//go:build linux

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/doctor"
	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/show"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
)

func newDoctor() *cobra.Command {
	var cfg doctor.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine whether and how well unetd can run on this system",
		Long: `Doctor examines the kernel, the limits, the BPF file system, the socket, the policy
and the interfaces, and writes a line for each: ok, note (something to
know, or that could not be seen) or problem, with what to do about it. Without
--interface it examines each Ethernet interface that has an address.

It opens an endpoint in a network namespace of its own, as a test, and changes nothing.
Run it as root, on the host or in the container in which unetd is to run. Without
root it says what it could not see. Exit status: 0 without a problem, 1 with one.`,
		Example: `  unetd doctor
  unetd doctor --interface eth0
  unetd doctor --json | jq '.findings[] | select(.verdict == "problem")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Interface, _ = uplink.Names(cfg.Interface)
			findings := doctor.Examine(cmd.Context(), cfg)
			problems, err := show.Findings(cmd.OutOrStdout(), findings, asJSON)
			if err == nil && problems == 1 {
				err = fmt.Errorf("there is a problem")
			} else if err == nil && problems > 1 {
				err = fmt.Errorf("there are %d problems", problems)
			}
			return failed(err)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Interface, "interface", "", "network interface that unetd is to serve (default: each Ethernet interface with an address)")
	socketFlag(cmd, &cfg.Socket)
	flags.StringVar(&cfg.BPFFS, "bpffs", uplink.DefaultBPFFS, "BPF file system for the pins")
	flags.StringVar(&cfg.Policy, "policy", "", "policy file (default "+policy.DefaultFile+" if it exists)")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	completeInterface(cmd)
	return cmd
}
