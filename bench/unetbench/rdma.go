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

// Tables of rdma.
const (
	latencyTable   = "latency"
	rateTable      = "rate"
	targetTable    = "target"
	bandwidthTable = "bandwidth"
)

var rdmaTables = []string{latencyTable, rateTable, targetTable, bandwidthTable}

func defaultRDMA() rdmaPlan {
	return rdmaPlan{
		tables: slices.Clone(rdmaTables), attach: attachments, places: []string{plan.Pair}, rounds: 5, limit: 150 * time.Millisecond,
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
	addFlags(cmd, flag{"table", &p.tables, "what to measure: " + strings.Join(rdmaTables, ", ")},
		flag{"attach", &p.attach, "attachment of endpoints: port, queue"},
		flag{"place", &p.places, placeUsage},
		flag{"rounds", &p.rounds, "rounds of everything"},
		flag{"limit", &p.limit, "measured time of a round"},
		flag{"latency-size", &p.sizes, "sizes in latency, bytes"},
		flag{"size", &p.bytes, "sizes in rate, bytes"},
		flag{"depth", &p.depths, "operations in flight in rate; those one at a time are in the table of latencies"},
		flag{"mtu", &p.mtus, "MTUs of the network in bandwidth, bytes"})
	return c.benchmark(cmd, p.check, func() (*messages, [][]plan.Selection) { return &messages{rdma: true}, p.parts() })
}

// check reports flags that the selections do not check.
func (p *rdmaPlan) check() error {
	for _, t := range p.tables {
		if !slices.Contains(rdmaTables, t) {
			return fmt.Errorf("--table %q: there are %s", t, strings.Join(rdmaTables, ", "))
		}
	}
	if len(p.depths) == 0 || slices.Min(p.depths) < 1 || slices.Max(p.depths) > 4096 {
		return fmt.Errorf("--depth %v: want some of 1 to 4096", p.depths)
	}
	return nil
}

// selection is the base of operations.
func (p rdmaPlan) selection(wait string, transports ...string) plan.Selection {
	s := defaultSelection(workload.RDMA)
	s.Transports, s.Wait, s.Depths = transports, []string{wait}, []int{plan.RDMADepth}
	s.Limit, s.N, s.WarmUp = p.limit, 10_000_000, 20_000
	return s
}

// single is a selection of operations one at a time.
func (p rdmaPlan) single(wait string, transports ...string) plan.Selection {
	s := p.selection(wait, transports...)
	s.N, s.WarmUp, s.Depths = 50_000, 2_000, []int{1}
	return s
}

// roundTrips is a selection of messages there and back.
func (p rdmaPlan) roundTrips(wait string, transports ...string) plan.Selection {
	s := rttSelection()
	s.Transports, s.Wait, s.Limit = transports, []string{wait}, p.limit
	return s
}

func (p rdmaPlan) bulk(operations ...string) (flood, ops plan.Selection) {
	flood = bandwidthSelection()
	flood.Transports, flood.Limit, flood.MTUs = []string{transport.Floor, transport.Ring}, p.limit, p.mtus
	ops = p.selection("spin", operations...)
	ops.MTUs, ops.Sizes, ops.Depths = flood.MTUs, []int{plan.RDMAWrite}, []int{plan.RDMAWriteDepth}
	return flood, ops
}

// parts are the selections of the tables. What is compared is measured in the same rounds.
func (p rdmaPlan) parts() (parts [][]plan.Selection) {
	for _, table := range rdmaTables {
		if !slices.Contains(p.tables, table) {
			continue
		}
		var part []plan.Selection
		switch table {
		case latencyTable:
			messages := p.roundTrips("spin", transport.UDP, transport.KernelUDP, transport.RCSend, transport.RCWrite)
			read := p.single("spin", transport.RCRead, transport.RCFetchAdd)
			messages.Sizes, read.Sizes = p.sizes, p.sizes
			part = []plan.Selection{messages, read}
		case rateTable:
			ops := p.selection("spin", transport.RCSend, transport.RCWrite, transport.RCRead)
			ops.Sizes, ops.Batches, ops.Depths = p.bytes, []int{1, plan.RateBatch}, p.depths
			rate := rateSelection() // what the rate of operations is compared with
			rate.Transports, rate.Batches, rate.N = []string{transport.Message}, []int{plan.RateBatch}, 200_000
			part = []plan.Selection{rate, ops}
		case targetTable:
			part = []plan.Selection{
				p.roundTrips("block", transport.UDP, transport.GoUDP),
				p.single("block", transport.RCSend, transport.RCWrite, transport.RCRead, transport.RCFetchAdd),
			}
		case bandwidthTable:
			flood, ops := p.bulk(transport.RCSend, transport.RCWrite, transport.RCRead)
			part = []plan.Selection{flood, ops}
		}
		for i := range part {
			part[i].Attach, part[i].Places, part[i].Rounds = p.attach, p.places, p.rounds
		}
		parts = append(parts, part)
	}
	return parts
}

// short is what all measures of rdma, in one of so many rounds: the figures of the goals. They
// belong to the rounds of round trips, of rates and of bandwidth.
func (p rdmaPlan) short(every int) (latency, rate, bulk []plan.Selection) {
	write := p.selection("spin", transport.RCWrite)
	write.Batches = []int{plan.RateBatch}
	_, ops := p.bulk(transport.RCWrite)
	latency = []plan.Selection{p.roundTrips("spin", transport.RCSend, transport.RCWrite), p.single("spin", transport.RCRead, transport.RCFetchAdd)}
	rate, bulk = []plan.Selection{write}, []plan.Selection{ops}
	for _, part := range [][]plan.Selection{latency, rate, bulk} {
		for i := range part {
			part[i].Every, part[i].Rounds = every, p.rounds
		}
	}
	return latency, rate, bulk
}
