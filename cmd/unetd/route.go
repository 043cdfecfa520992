//go:build linux

package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/show"
)

func newRoute() *cobra.Command {
	var q show.RouteQuestion
	var from string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "route [DESTINATION]",
		Short: "Show how endpoints reach a destination, and their addresses",
		Long: `Route asks the unetd at the socket how an endpoint reaches an IP address, as ip route get
asks the kernel. For each interface that unetd serves it writes

  endpoint  the next hop, its MAC address, the source and the MTU that an endpoint on this
            interface gets, or why it gets none
  kernel    what ip route get says in unetd's network namespace
  differs   in what the two differ, if they do

Without DESTINATION it writes the addresses of each interface, the preferred ones first,
with their flags: secondary, temporary, deprecated, tentative (no port can be claimed there
until the check for duplicates is over) and dadfailed. The JSON has both.

An endpoint sends by its own interface only. Its source is chosen in two steps, as that of
a socket is: the route without a source names it, then ip rule applies to it. ip route
get stops after the first. The MAC address may have to be asked for, which takes at most
3.5 seconds. An endpoint on a queue reaches no address of this host.

Everybody may run it whom the socket's mode lets connect, about the interfaces on which the
policy gives them anything. Operators may ask about all. It opens no endpoint.`,
		Example: `  unetd route
  unetd route 10.0.9.7
  unetd route --interface eth1 --from 10.0.0.5 10.0.9.7
  unetd route 2001:db8::7 --json | jq -r '.[] | select(.route) | .route.source'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) > 0 {
				if q.To, err = netip.ParseAddr(args[0]); err != nil {
					return fmt.Errorf("%q is not an IP address", args[0])
				}
			}
			if from != "" {
				if q.From, err = netip.ParseAddr(from); err != nil {
					return fmt.Errorf("--from %q: not an IP address", from)
				}
				if !q.To.IsValid() {
					return fmt.Errorf("--from needs a DESTINATION")
				}
			}
			return failed(show.Routes(cmd.Context(), q, cmd.OutOrStdout(), asJSON))
		},
	}
	socketFlag(cmd, &q.Socket)
	cmd.Flags().StringVar(&q.Interface, "interface", "", "interface of unetd (default: each)")
	cmd.Flags().StringVar(&from, "from", "", "source address (default: the kernel chooses)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	completeInterface(cmd)
	return cmd
}
