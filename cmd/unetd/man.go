//go:build linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/manpage"
	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/internal/version"
)

// newMan is the command with which make writes the manual pages.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER [DATE]",
		Short:  "Write the manual pages to a folder (called by make)",
		Hidden: true,
		Args:   cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			pages := manpage.Set{Root: cmd.Root(), Version: version.Of(), Sections: []manpage.Section{
				{Title: "EXIT STATUS", Text: `0 if the command succeeded, for serve after SIGINT or SIGTERM; 1 if it failed or the policy file is wrong;
2 if the command line is wrong.`},
				{Title: "FILES", Text: "  " + policy.DefaultFile + `     the policy: who gets which endpoints
  /etc/default/unetd        options of unetd serve, for the systemd unit
  ` + control.DefaultSocket + `      the socket that applications connect to
  ` + uplink.DefaultBPFFS + `/unet          programs and tables that outlive unetd`},
			}}
			if len(args) > 1 {
				pages.Date = args[1]
			}
			if err := pages.Write(args[0]); err != nil {
				return failure{err}
			}
			return nil
		},
	}
}
