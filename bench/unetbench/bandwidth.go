package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

func bandwidthSelection() plan.Selection {
	s := defaultSelection(workload.Bandwidth)
	s.Transports = transport.BulkNames()
	s.MTUs = []int{1500, 9000}
	s.Sizes = []int{64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20}
	s.N, s.Limit = 20_000_000, 200*time.Millisecond
	s.Patience = 5 * time.Second
	return s
}

func newBandwidth(c *common) *cobra.Command {
	s := bandwidthSelection()
	long := `bandwidth writes to one connection for some time, as fast as it takes writes of a
size, and counts what the other side reads. What counts is the payload received in
the measured time, which begins when a quarter of it has passed: windows have grown
then. Both processes spin.

The receiver compares the first and the last bytes of each read with what was
written there, and in a short round that is not measured every byte. What was sent
and has not arrived is counted. It ends with the figures that unet is held to if
writes of 64 KiB are among those measured.

Transports:
`
	for _, t := range transport.Bulk {
		long += fmt.Sprintf("  %-17s %s\n", t.Name, t.About)
	}
	cmd := &cobra.Command{
		Use:   "bandwidth",
		Short: "Bytes a second over one connection, by size of the writes",
		Long:  long,
		Example: `  unetbench bandwidth
  unetbench bandwidth --size 65536 --rounds 13
  unetbench bandwidth --transport tcp,kernel-tcp --attach queue --mtu 9000`,
		Args: noArguments,
	}
	f := cmd.Flags()
	f.StringSliceVar(&s.Transports, "transport", s.Transports, "transports to measure")
	f.StringSliceVar(&s.Attach, "attach", s.Attach, "how endpoints meet the mux: port, queue")
	f.StringSliceVar(&s.Wait, "wait", s.Wait, "how endpoints wait: spin, adaptive, block")
	f.IntSliceVar(&s.Sizes, "size", s.Sizes, "sizes of the writes, bytes, growing")
	f.IntSliceVar(&s.MTUs, "mtu", s.MTUs, "MTUs of the network, bytes")
	f.IntVar(&s.Rounds, "rounds", s.Rounds, "rounds of every combination")
	f.DurationVar(&s.Limit, "limit", s.Limit, "measured time of a round")
	cmd.RunE = c.measure(&s)
	return cmd
}
