package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

const description = `unetbench measures unet against the kernel's own sockets.

It makes two hosts (network namespaces joined by a veth pair), starts unetd on
each, and runs client and server as separate processes of uid nobody, pinned to
a processor each. Kernel baselines run on an identical pair of hosts without any
XDP program. gVisor's netstack runs on a third pair, in processes of root: it opens
AF_XDP sockets and loads its XDP program itself. Rounds of all transports are
interleaved. unetbench needs root, and leaves nothing behind.

With --place local both processes are on one host that unetd serves: two endpoints
that share the address of its interface (rc-*: the client has an address of its own),
which exchange packets through memory, kernel sockets over lo, and unix sockets. The
floor there is ring. Endpoints on queues, netstack and transports about the interface
are left out, and refused where --transport names them.

Transports:
`

func newCommand() *cobra.Command {
	c := &common{}
	benchmarks := []*cobra.Command{newRTT(c), newRate(c), newOneWay(c), newConnect(c), newBandwidth(c), newRDMA(c), newScale(c), newServices(c), newAll(c)}
	var names []string
	for _, b := range benchmarks {
		names = append(names, b.Name())
	}
	last := len(names) - 1
	root := cli.Root(&cobra.Command{
		Use:   "unetbench",
		Short: "Measure unet against the kernel's own sockets",
		Long:  description + about(slices.Concat(transport.All, transport.IPv6, transport.Verbs)),
		Example: `  sudo bin/unetbench rtt --transport msg,udp,kernel-udp --attach port
  sudo bin/unetbench rate --batch 1,64
  sudo bin/unetbench rtt --place local --transport udp,tcp,kernel-udp,kernel-tcp,unix
  sudo bin/unetbench all --json > all.jsonl
  bin/unetplot < all.jsonl > rtt.svg`,
		Args: cli.Args(0),
		RunE: cli.Missing(fmt.Sprintf("which benchmark? %s or %s", strings.Join(names[:last], ", "), names[last])),
	})
	root.AddCommand(benchmarks...)
	root.AddCommand(&cobra.Command{
		Use: "child", Hidden: true, Args: cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			context.AfterFunc(cmd.Context(), func() { os.Exit(0) }) // a server serves until SIGTERM
			return lab.RunChild(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	})
	return root
}

// about is what --help says about transports.
func about(all []transport.Transport) (text string) {
	for _, t := range all {
		text += fmt.Sprintf("  %-17s %s\n", t.Name, t.About)
	}
	return text
}

// messageTimeout is the time after which a message counts as lost. Tests have a longer one.
var messageTimeout = 250 * time.Millisecond

var attachments = []string{"port", "queue"}

const attachUsage = "attachment of endpoints: port, queue"

const placeUsage = "where client and server are: pair (two hosts), crowd (two hosts with 255 other endpoints each), local (both on one host)"

// defaultSelection is what the benchmarks have in common.
func defaultSelection(b workload.Bench) plan.Selection {
	return plan.Selection{
		Bench:      b,
		Transports: transport.Names(transport.All),
		Attach:     attachments,
		Places:     []string{workload.Pair},
		Wait:       []string{"spin"},
		Sizes:      []int{64},
		Batches:    []int{1},
		Rounds:     5,
		Effort:     workload.Effort{WarmUp: 2000, Timeout: messageTimeout},
	}
}

// newSelected is a command that measures one selection, with some of the flags of what is combined. It may
// have others.
func (c *common) newSelected(cmd *cobra.Command, s *plan.Selection, names string) *cobra.Command {
	all := new(cobra.Command).Flags()
	all.StringSliceVar(&s.Transports, "transport", s.Transports, "transports to measure")
	all.StringSliceVar(&s.Attach, "attach", s.Attach, attachUsage)
	all.StringSliceVar(&s.Places, "place", s.Places, placeUsage)
	all.StringSliceVar(&s.Wait, "wait", s.Wait, "wait mode of endpoints: spin, adaptive, block")
	all.IntSliceVar(&s.Sizes, "size", s.Sizes, "sizes of messages or writes, bytes of payload")
	all.IntVar(&s.Rounds, "rounds", s.Rounds, "rounds of every combination")
	all.IntVar(&s.N, "n", s.N, "messages (rtt: round trips, connect: connections) a round, at most")
	all.IntVar(&s.WarmUp, "warm-up", s.WarmUp, "messages or connections before the measured ones")
	all.DurationVar(&s.Limit, "limit", s.Limit, "end a round after this time; bandwidth: measured time of a round")
	all.IntSliceVar(&s.Batches, "batch", s.Batches, "messages sent together")
	all.IntSliceVar(&s.MTUs, "mtu", s.MTUs, "MTUs of the network, bytes")
	all.IntSliceVar(&s.Waiters, "waiters", s.Waiters, "goroutines that wait on TCP connections of their own, at each end (default 0)")
	all.IntSliceVar(&s.Procs, "procs", s.Procs, "GOMAXPROCS of both processes (default 0: each is pinned to a processor)")
	all.DurationVar(&s.Rest, "idle", s.Rest, "how long the client is idle after a round that does not spin, to read its processor time")
	all.IntVar(&s.Window, "window", s.Window, "messages in flight without credit, at most")
	all.IntVar(&s.Credit, "credit", s.Credit, "messages a credit")
	all.IntVar(&s.Connections, "connections", s.Connections, "connections at a time")
	all.StringVar(&s.Address, "address", s.Address, "address of unet's client: own (one of its own), shared (the interface's, with ports from blocks)")
	for _, name := range strings.Fields(names) {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	return c.benchmark(cmd, func() error {
		s.Named = cmd.Flags().Changed("transport")
		return nil
	}, func() (*messages, [][]plan.Selection) { return &messages{}, [][]plan.Selection{{*s}} })
}

// benchmark completes a command that measures selections, each part of them in the same rounds.
func (c *common) benchmark(cmd *cobra.Command, check func() error, of func() (*messages, [][]plan.Selection)) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return cli.Usage(err)
		}
		m, parts := of()
		for _, p := range parts {
			if err := m.add(p...); err != nil {
				return err
			}
		}
		cfg, err := m.lab()
		if err != nil {
			return err
		}
		return c.run(cmd, cfg, m)
	}
	return c.flags(cmd)
}

const messageFlags = "transport attach place wait size rounds n warm-up "

func rttSelection() plan.Selection {
	s := defaultSelection(workload.RTT)
	s.N, s.Limit = 20_000, 300*time.Millisecond
	return s
}

func newRTT(c *common) *cobra.Command {
	s := rttSelection()
	return c.newSelected(&cobra.Command{
		Use:   "rtt",
		Short: "Round-trip times",
		Long: `rtt sends one message at a time and waits until it is back. The clock is read
once a round trip; percentiles are exact. A message that is not back in time is
counted as lost, and the next one is sent.

--waiters and --procs show latency against processor time. With waiters as many
goroutines wait at each end for data on TCP connections of their own. With
GOMAXPROCS 0 each process is pinned to a processor of its own; otherwise it runs where
the kernel places it. With --idle the client rests afterwards: all its goroutines
wait, and idle % is its processor time then, in percent of a processor.`,
		Example: `  unetbench rtt
  unetbench rtt --transport floor,msg,udp,kernel-udp --size 16,64,256,1024,1400
  unetbench rtt --transport tcp,go-tcp --attach port --wait spin,adaptive,block --waiters 0,63 --procs 0,2 --idle 1s
  unetbench rtt --rounds 10 --n 50000 --json > rtt.jsonl`,
	}, &s, messageFlags+"limit waiters procs idle")
}

func rateSelection() plan.Selection {
	s := defaultSelection(workload.Rate)
	s.Batches = []int{1, plan.RateBatch}
	s.N, s.Limit = 500_000, time.Second
	s.WarmUp = 20_000 // more than buffers hold, so that they have grown
	return s
}

func newRate(c *common) *cobra.Command {
	s := rateSelection()
	return c.newSelected(&cobra.Command{
		Use:   "rate",
		Short: "Messages a second, one way",
		Long: `rate sends as fast as the transport takes messages. What counts is what arrives:
different messages a second, from the first to the last. Messages that do not
arrive are lost, and counted. With a batch of 1 messages are sent and received
one at a time; in larger batches kernel-udp uses sendmmsg and recvmmsg.

Over TCP a batch is one write. Written one at a time, messages share segments in
tcp, which lets small writes gather while others are in flight, and have a segment
each in kernel-tcp, which has TCP_NODELAY.`,
		Example: `  unetbench rate
  unetbench rate --transport msg,kernel-udp --batch 1,32,64
  unetbench rate --size 1400 --limit 2s --n 5000000`,
	}, &s, messageFlags+"limit batch")
}

func oneWaySelection() plan.Selection {
	s := defaultSelection(workload.OneWay)
	s.Transports = append(s.Transports, transport.RCSend)
	s.N, s.Window, s.Credit = 100_000, 128, 32
	return s
}

func newOneWay(c *common) *cobra.Command {
	s := oneWaySelection()
	return c.newSelected(&cobra.Command{
		Use:   "oneway",
		Short: "A number of messages one way, until all have arrived",
		Long: `oneway sends 100,000 messages and times from the first send until the receiver
has them all, and has said so. A sender sees only its own queue, not the
receiver's, so the workload has a credit window: the receiver returns a credit
every so many messages, and no more than the window are in flight.
Losses and duplicates are counted.`,
		Example: `  unetbench oneway
  unetbench oneway --transport msg,kernel-udp --window 512 --credit 128
  unetbench oneway --batch 1,32`,
	}, &s, messageFlags+"batch window credit")
}

func connectSelection() plan.Selection {
	s := defaultSelection(workload.Connect)
	s.Transports = transport.Connecting()
	s.N, s.WarmUp, s.Limit, s.Connections = 2_000, 200, time.Second, 1
	s.Address = workload.Own
	s.Timeout = max(messageTimeout, 2*time.Second) // a SYN that is lost is sent again after one
	return s
}

func newConnect(c *common) *cobra.Command {
	s := connectSelection()
	return c.newSelected(&cobra.Command{
		Use:   "connect",
		Short: "Connections opened and closed a second",
		Long: `connect opens and closes connections of TCP, one after the other. One is: the
client dials, sends 64 bytes, reads 64 bytes in answer, closes its side, reads the
end of file with which the server closes the other, and closes the connection. The
server accepts, reads, answers, reads the end of file, closes, and accepts again.
A connection that is not done in time is counted as late, one that ends with an
error as failed, and the next one is opened.

unet's client has an address of its own, as the kernel has, and so all of its
ports. With --address shared it has the interface's, and claims ports from unetd,
64 at a time. kernel-tcp makes raw non-blocking system calls and spins. go-tcp is
package net's Dialer and Listener.

With --connections above 1 so many goroutines of the client do this at once, and
the server has a goroutine for each connection. Those of kernel-tcp take turns to
spin, which costs it system calls that find nothing.

Each connection leaves its pair of ports in TIME-WAIT at the client: for a minute
in the kernel, for two seconds in unet. So rounds are short, of at most 20,000
connections, and each has a server port of its own.`,
		Example: `  unetbench connect
  unetbench connect --transport tcp,kernel-tcp --connections 16
  unetbench connect --n 10000 --limit 5s --rounds 3 --attach port`,
	}, &s, messageFlags+"limit connections address")
}

func bandwidthSelection() plan.Selection {
	s := defaultSelection(workload.Bandwidth)
	s.Transports = transport.Names(transport.Bulk)
	s.MTUs = []int{1500, 9000}
	s.Sizes = []int{64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20}
	s.N, s.Limit = 20_000_000, 200*time.Millisecond
	s.Timeout = 5 * time.Second
	return s
}

func newBandwidth(c *common) *cobra.Command {
	s := bandwidthSelection()
	return c.newSelected(&cobra.Command{
		Use:   "bandwidth",
		Short: "Bytes a second over one connection, by size of the writes",
		Long: `bandwidth writes to one connection for some time, as fast as it takes writes of a
size, and counts what the other side reads. What counts is the payload received in
the measured time, --limit. It begins as long after the first byte, when buffers and
windows have grown. Both processes spin.

The receiver compares the first and the last bytes of each read with what was
written there, and in a short round that is not measured every byte. Bytes that have not
arrived are counted as lost. With writes of 64 KiB it ends with the table of goals.

On one host (--place local) the MTU is that of endpoints; the one of lo is 65,536.

Transports:
` + about(transport.Bulk),
		Example: `  unetbench bandwidth
  unetbench bandwidth --size 65536 --rounds 13
  unetbench bandwidth --transport tcp,kernel-tcp --attach queue --mtu 9000
  unetbench bandwidth --transport kernel-tcp,kernel-tcp-mux --size 65536 --mtu 1500
  unetbench bandwidth --place local --transport tcp,kernel-tcp,unix --size 65536 --mtu 1500`,
	}, &s, "transport attach place wait size mtu rounds limit")
}

func newScale(c *common) *cobra.Command {
	rounds, openings := 13, 51
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Many endpoints, and endpoints as neighbours",
		Long: `scale compares round trips of messages with one endpoint open on each host and
with 256, over ports and over queues, and between two endpoints of one host and
of two, in interleaved rounds. It also times the opening of an endpoint through unetd, on an empty host
and on one with 255 endpoints.`,
		Example: `  unetbench scale
  unetbench scale --rounds 25 --openings 101 --json > scale.jsonl`,
	}
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "rounds of every combination")
	cmd.Flags().IntVar(&openings, "openings", openings, "endpoints to open on each host")
	return c.benchmark(cmd, func() error {
		if openings < 1 {
			return fmt.Errorf("--openings %d: want at least 1", openings)
		}
		return nil
	}, func() (*messages, [][]plan.Selection) {
		s := rttSelection()
		s.Transports, s.Rounds = []string{transport.Message}, rounds
		s.Places = []string{workload.Pair, workload.Crowd, workload.Local}
		return &messages{openings: openings}, [][]plan.Selection{{s}}
	})
}

func newAll(c *common) *cobra.Command {
	rounds, places := 13, []string{workload.Pair}
	cmd := &cobra.Command{
		Use:   "all",
		Short: "Everything but services and scale, and the table of goals",
		Long: `all runs the benchmarks with their defaults: round trips of all sizes and wait
modes, rates, oneway, connect, bandwidth with writes of 64 KiB, and the operations of
verbs that have goals. What the goals compare has more rounds than the rest. With
--place local the goals are those of one host.`,
		Example: `  unetbench all
  unetbench all --json > all.jsonl
  unetbench all --place local`,
	}
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "rounds of what the goals compare")
	cmd.Flags().StringSliceVar(&places, "place", places, placeUsage)
	return c.benchmark(cmd, func() error { return nil }, func() (*messages, [][]plan.Selection) {
		return &messages{all: places}, everything(rounds, places)
	})
}

// everything is the plan of all. What the goals compare has more rounds than the rest.
func everything(rounds int, places []string) (parts [][]plan.Selection) {
	few := (rounds + 2) / 3
	with := func(s plan.Selection, rounds int, change func(*plan.Selection)) plan.Selection {
		s.Rounds = rounds
		change(&s)
		return s
	}
	without := func(s *plan.Selection, names ...string) {
		s.Transports = slices.DeleteFunc(s.Transports, func(name string) bool { return slices.Contains(names, name) })
	}
	rtt := with(rttSelection(), rounds, func(s *plan.Selection) { without(s, transport.GoTCP, transport.GoUDP) })
	// With package net's, which are compared with them and so have the same rounds.
	waits := with(rttSelection(), rounds, func(s *plan.Selection) {
		s.Transports = []string{transport.Message, transport.UDP, transport.TCP, transport.GoUDP, transport.GoTCP}
		s.Wait = []string{"adaptive", "block"}
	})
	sizes := with(rttSelection(), few, func(s *plan.Selection) { s.Sizes = []int{16, 256, 1024, 1400} })
	rate := with(rateSelection(), rounds, func(s *plan.Selection) { s.N = 200_000; without(s, transport.Connecting()...) })
	// Growing buffers allocate some hundred objects once. More messages make them few for
	// each.
	streams := with(rateSelection(), rounds, func(s *plan.Selection) { s.Transports = transport.Connecting() })
	same := func(*plan.Selection) {}
	oneWay, connect := with(oneWaySelection(), rounds, same), with(connectSelection(), rounds, same)
	bandwidth := with(bandwidthSelection(), rounds, func(s *plan.Selection) { s.Sizes = []int{64 << 10} })
	// What is measured twice counts in the first selection.
	verbs := defaultRDMA()
	verbs.rounds, verbs.sizes, verbs.bytes, verbs.depths = rounds, []int{64}, []int{64}, []int{plan.RDMADepth}
	beside := func(s plan.Selection, table string) []plan.Selection {
		return append([]plan.Selection{s}, verbs.part(table)...)
	}
	parts = [][]plan.Selection{
		beside(rtt, latencyTable), {waits}, {sizes}, beside(rate, rateTable), {streams}, {oneWay}, {connect}, beside(bandwidth, bandwidthTable),
	}
	for _, part := range parts {
		for i := range part {
			part[i].Places = places
		}
	}
	return parts
}

// measurement is what a command measures, in a lab.
type measurement interface {
	// do measures, and writes each line when it has it.
	do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error
	// print writes the tables of what was measured, also after an error of do.
	print(out *output)
}
