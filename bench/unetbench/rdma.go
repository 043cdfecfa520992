package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Comparisons of rdma.
const (
	latencyTable   = "latency"
	rateTable      = "rate"
	targetTable    = "target"
	bandwidthTable = "bandwidth"
)

var rdmaTables = []string{latencyTable, rateTable, targetTable, bandwidthTable}

// rdmaPlan is what rdma measures.
type rdmaPlan struct {
	tables []string
	attach []string
	places []string
	rounds int
	limit  time.Duration
	sizes  []int // of messages and operations
	bytes  []int // of operations in rate
	depths []int
	mtus   []int // of the network in bandwidth
}

func defaultRDMA() rdmaPlan {
	return rdmaPlan{
		tables: slices.Clone(rdmaTables), attach: attachments, places: []string{workload.Pair}, rounds: 5, limit: 150 * time.Millisecond,
		sizes: []int{64, 512, 1400}, bytes: []int{64, 1024, 65536}, depths: []int{4, 16, 128},
		mtus: bandwidthSelection().MTUs,
	}
}

func newRDMA(c *common) *cobra.Command {
	p := defaultRDMA()
	long := `rdma measures the operations of package verbs, between two processes, beside udp, msg, kernel
sockets and raw AF_XDP, or on one host (--place local) a bare memory path:

  latency    round trips by size: SEND and WRITE there and back, the receiver of WRITEs polls
             its memory; READ and FETCH_ADD until they complete; beside udp and kernel-udp
  rate       operations and bytes a second by size and by operations in flight; beside msg
  target     processor time of the server's process for each operation, one at a time, where
             both block; beside a request and its reply over udp and kernel sockets
  bandwidth  operations of 64 KiB, with the largest path MTU that the link carries (4096 of
             9000, 1024 of 1500), beside a flood of full frames without a stack

The application of the server waits for the end and takes no part in one-sided operations.
One completion stands for several operations. What is asked for in bench rdma is timed by the
client, to the completion.

Operations:
`
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "RDMA verbs: latency, rate, bandwidth, processor time at the target",
		Long:  long + about(transport.Operations),
		Example: `  unetbench rdma
  unetbench rdma --table latency --attach queue --rounds 13
  unetbench rdma --table rate --size 64,4096 --depth 1,8,64,512
  unetbench rdma --table target --json > rdma.jsonl
  unetbench rdma --place local --attach port
  unetbench oneway --transport msg,rc-send,kernel-udp
  unetbench rtt --transport udp,rc-send,rc-write --wait spin`,
	}
	f := cmd.Flags()
	f.StringSliceVar(&p.tables, "table", p.tables, "what to measure: "+strings.Join(rdmaTables, ", "))
	f.StringSliceVar(&p.attach, "attach", p.attach, attachUsage)
	f.StringSliceVar(&p.places, "place", p.places, placeUsage)
	f.IntVar(&p.rounds, "rounds", p.rounds, "rounds of everything")
	f.DurationVar(&p.limit, "limit", p.limit, "measured time of a round")
	f.IntSliceVar(&p.sizes, "latency-size", p.sizes, "sizes in latency, bytes")
	f.IntSliceVar(&p.bytes, "size", p.bytes, "sizes in rate, bytes")
	f.IntSliceVar(&p.depths, "depth", p.depths, "operations in flight in rate; latency has those one at a time")
	f.IntSliceVar(&p.mtus, "mtu", p.mtus, "MTUs of the network in bandwidth, bytes")
	return c.benchmark(cmd, func() error {
		for _, t := range p.tables {
			if !slices.Contains(rdmaTables, t) {
				return fmt.Errorf("--table %q: there are %s", t, strings.Join(rdmaTables, ", "))
			}
		}
		return nil
	}, func() (m *messages, parts [][]plan.Selection) {
		for _, table := range rdmaTables {
			if slices.Contains(p.tables, table) {
				parts = append(parts, p.part(table))
			}
		}
		return &messages{}, parts
	})
}

// part are the selections of a comparison, which are measured in the same rounds.
func (p rdmaPlan) part(table string) (part []plan.Selection) {
	roundTrips := func(wait string, transports ...string) plan.Selection {
		s := rttSelection()
		s.Transports, s.Wait = transports, []string{wait}
		return s
	}
	operations := func(wait string, depths []int, names ...string) plan.Selection {
		s := defaultSelection(workload.RDMA)
		s.Transports, s.Wait, s.Depths, s.N, s.WarmUp = names, []string{wait}, depths, 10_000_000, 20_000
		return s
	}
	single := func(wait string, names ...string) plan.Selection {
		s := operations(wait, []int{1}, names...)
		s.N, s.WarmUp = 50_000, 2_000
		return s
	}
	switch table {
	case latencyTable:
		messages := roundTrips("spin", transport.UDP, transport.KernelUDP, transport.RCSend, transport.RCWrite)
		read := single("spin", transport.RCRead, transport.RCFetchAdd)
		messages.Sizes, read.Sizes = p.sizes, p.sizes
		part = []plan.Selection{messages, read}
	case rateTable:
		ops := operations("spin", p.depths, transport.RCSend, transport.RCWrite, transport.RCRead)
		ops.Sizes, ops.Batches = p.bytes, []int{1, plan.RateBatch}
		messages := rateSelection()
		messages.Transports, messages.Batches, messages.N = []string{transport.Message}, []int{plan.RateBatch}, 200_000
		part = []plan.Selection{messages, ops}
	case targetTable:
		part = []plan.Selection{
			roundTrips("block", transport.UDP, transport.GoUDP),
			single("block", transport.RCSend, transport.RCWrite, transport.RCRead, transport.RCFetchAdd),
		}
	case bandwidthTable:
		flood := bandwidthSelection()
		flood.Transports = []string{transport.Floor, transport.Ring}
		ops := operations("spin", []int{plan.RDMAWriteDepth}, transport.RCSend, transport.RCWrite, transport.RCRead)
		flood.MTUs, ops.MTUs, ops.Sizes = p.mtus, p.mtus, []int{plan.RDMAWrite}
		part = []plan.Selection{flood, ops}
	}
	for i := range part {
		part[i].Attach, part[i].Places, part[i].Rounds = p.attach, p.places, p.rounds
		if part[i].Bench != workload.Rate {
			part[i].Limit = p.limit
		}
	}
	return part
}
