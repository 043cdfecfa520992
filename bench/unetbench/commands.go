package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/endpoint"
)

const description = `unetbench measures unet against the kernel's own sockets.

It makes two hosts (network namespaces joined by a veth pair), starts unetd on
each, and runs client and server as separate processes of uid nobody, pinned to
a processor each. Kernel baselines run on an identical pair of hosts without any
XDP program. gVisor's netstack runs on a third pair, in processes of root: it opens
AF_XDP sockets and loads its XDP program itself. Rounds of all transports are
interleaved. unetbench needs root, and leaves nothing behind.

Where the machine has hardware counters, tables and lines also have user and kernel
instructions and cycles a message, of both processes with all of their threads. The kernel's work in
their system calls is in them, a hypervisor's is not. A round whose counters the kernel
shared with somebody else has none: nothing is extrapolated. Without counters
(most virtual machines) one line says so.

Transports:
`

func newCommand() *cobra.Command {
	long := description
	for _, t := range slices.Concat(transport.All, transport.IPv6, transport.Verbs) {
		long += fmt.Sprintf("  %-15s %s\n", t.Name, t.About)
	}
	root := cli.Root(&cobra.Command{
		Use:   "unetbench",
		Short: "Measure unet against the kernel's own sockets",
		Long:  long,
		Example: `  sudo bin/unetbench rtt --transport msg,udp,kernel-udp --attach port
  sudo bin/unetbench rate --batch 1,64
  sudo bin/unetbench all --json > all.jsonl
  bin/unetplot all.jsonl > rtt.svg`,
		Args: cli.Args(0),
		RunE: cli.Missing("which benchmark? rtt, rate, oneway, connect, bandwidth, goodput, rdma, memory, scale, services, kernel or all"),
	})
	var c common
	for _, benchmark := range []*cobra.Command{newRTT(&c), newRate(&c), newOneWay(&c), newConnect(&c), newBandwidth(&c), newGoodput(&c), newRDMA(&c), newMemory(&c), newScale(&c), newServices(&c), newKernel(&c), newAll(&c)} {
		c.flags(benchmark)
		root.AddCommand(benchmark)
	}
	root.AddCommand(newChild())
	return root
}

// selectionFlags are the flags of what is combined.
func selectionFlags(cmd *cobra.Command, s *plan.Selection) {
	f := cmd.Flags()
	f.StringSliceVar(&s.Transports, "transport", s.Transports, "transports to measure")
	f.StringSliceVar(&s.Attach, "attach", s.Attach, "attachment of endpoints: port, queue")
	f.StringSliceVar(&s.Places, "place", s.Places, "where client and server are: pair (two hosts), crowd (two hosts with 255 other endpoints each), local (one host)")
	f.StringSliceVar(&s.Wait, "wait", s.Wait, "wait mode of endpoints: spin, adaptive, block")
	f.IntSliceVar(&s.Sizes, "size", s.Sizes, "message sizes, bytes of payload")
	f.IntVar(&s.Rounds, "rounds", s.Rounds, "rounds of every combination")
	f.IntVar(&s.N, "n", s.N, "messages (rtt: round trips) a round, at most")
	f.IntVar(&s.WarmUp, "warm-up", s.WarmUp, "messages before the measured ones")
}

// messageTimeout is the time after which a message counts as lost. Tests have a longer one.
var messageTimeout = 250 * time.Millisecond

// defaultSelection is what the benchmarks have in common.
func defaultSelection(b workload.Bench) plan.Selection {
	return plan.Selection{
		Bench:      b,
		Transports: transport.Names(),
		Attach:     []string{"port", "queue"},
		Places:     []string{plan.Pair},
		Wait:       []string{"spin"},
		Sizes:      []int{64},
		Batches:    []int{1},
		Rounds:     5,
		WarmUp:     2000,
		Timeout:    messageTimeout,
	}
}

func rttSelection() plan.Selection {
	s := defaultSelection(workload.RTT)
	s.N, s.Limit = 20_000, 300*time.Millisecond
	return s
}

func newRTT(c *common) *cobra.Command {
	s := rttSelection()
	cmd := &cobra.Command{
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
  unetbench rtt --transport msg,udp --attach port --wait spin,adaptive,block
  unetbench rtt --transport tcp,go-tcp --attach port --wait spin,adaptive,block --waiters 0,63 --procs 0,2 --idle 1s
  unetbench rtt --rounds 10 --n 50000 --json > rtt.jsonl`,
		Args: cli.Args(0),
	}
	selectionFlags(cmd, &s)
	f := cmd.Flags()
	f.DurationVar(&s.Limit, "limit", s.Limit, "end a round after this time, with fewer round trips")
	f.IntSliceVar(&s.Waiters, "waiters", nil, "goroutines that wait on TCP connections of their own, at each end (default 0)")
	f.IntSliceVar(&s.Procs, "procs", nil, "GOMAXPROCS of both processes (default 0: each is pinned to a processor)")
	f.DurationVar(&s.Pause, "pause", 0, "how long the client sleeps between two round trips")
	f.DurationVar(&s.Rest, "idle", 0, "how long the client is idle after a round that does not spin, to read its processor time")
	cmd.RunE = c.measure(&s)
	return cmd
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
	cmd := &cobra.Command{
		Use:   "rate",
		Short: "Messages a second, one way",
		Long: `rate sends as fast as the transport takes messages. What counts is what arrives:
different messages a second, from the first to the last. Messages that do not
arrive are lost, and counted. With a batch of 1 messages are sent and received
one at a time; in larger batches kernel-udp uses sendmmsg and recvmmsg.

Over TCP a batch is one write. Written one at a time, messages share segments in
tcp, which lets small writes gather while others are in flight, and have a segment
each in kernel-tcp, which has TCP_NODELAY. Window and acknowledgments are sent by
the receiving process in tcp, and by the kernel in kernel-tcp: where the two
processes do not run at the same time, tcp becomes slower than kernel-tcp does.`,
		Example: `  unetbench rate
  unetbench rate --transport msg,kernel-udp --batch 1,32,64
  unetbench rate --size 1400 --limit 2s --n 5000000`,
		Args: cli.Args(0),
	}
	selectionFlags(cmd, &s)
	cmd.Flags().IntSliceVar(&s.Batches, "batch", s.Batches, "messages sent together")
	cmd.Flags().DurationVar(&s.Limit, "limit", s.Limit, "end a round after this time, with fewer messages")
	cmd.RunE = c.measure(&s)
	return cmd
}

func oneWaySelection() plan.Selection {
	s := defaultSelection(workload.OneWay)
	s.Transports = append(s.Transports, transport.RCSend)
	s.N, s.Window, s.Credit = 100_000, 128, 32
	return s
}

func newOneWay(c *common) *cobra.Command {
	s := oneWaySelection()
	cmd := &cobra.Command{
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
		Args: cli.Args(0),
	}
	selectionFlags(cmd, &s)
	cmd.Flags().IntSliceVar(&s.Batches, "batch", s.Batches, "messages sent together")
	cmd.Flags().IntVar(&s.Window, "window", s.Window, "messages in flight without credit, at most")
	cmd.Flags().IntVar(&s.Credit, "credit", s.Credit, "messages a credit")
	cmd.RunE = c.measure(&s)
	return cmd
}

// idleConnections: memory of a process varies by some hundred KiB, which is little for each
// of so many.
const idleConnections = 4096

func newMemory(c *common) *cobra.Command {
	attach, idle := []string{"port", "queue"}, idleConnections
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Resident memory of an idle endpoint's process, and of an idle connection",
		Long: `memory opens a default endpoint, alone (msg) and with a stack and a socket on it
(udp), and compares the idle process with the same program that has none. Then it
opens connections of tcp, has one request answered on each, and divides by them
what the processes at both ends have grown by.`,
		Example: "  unetbench memory --attach port",
		Args:    cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, a := range attach {
				if _, err := endpoint.ParseAttachment(a); err != nil {
					return cli.Usage(err)
				}
			}
			if idle < 1 || idle > plan.MaxConnects {
				return cli.Usage(fmt.Errorf("--idle %d: want 1 to %d", idle, plan.MaxConnects))
			}
			return c.messages(cmd, &messages{memory: attach, idle: idle})
		},
	}
	cmd.Flags().StringSliceVar(&attach, "attach", attach, "attachment of endpoints: port, queue")
	cmd.Flags().IntVar(&idle, "idle", idle, "idle connections to find the memory of one from")
	return cmd
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
		Args: cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if openings < 1 {
				return cli.Usage(fmt.Errorf("--openings %d: want at least 1", openings))
			}
			return c.messages(cmd, &messages{openings: openings}, []plan.Selection{scaleSelection(rounds)})
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "rounds of every combination")
	cmd.Flags().IntVar(&openings, "openings", openings, "endpoints to open on each host")
	return cmd
}

func scaleSelection(rounds int) plan.Selection {
	s := rttSelection()
	s.Transports, s.Rounds = []string{transport.Message}, rounds
	s.Places = []string{plan.Pair, plan.Crowd, plan.Local}
	return s
}

func newAll(c *common) *cobra.Command {
	rounds := 13
	cmd := &cobra.Command{
		Use:   "all",
		Short: "Everything, and the table of goals",
		Long: `all runs every benchmark with its defaults: round trips of all sizes and wait
modes, rates, oneway, connect, bandwidth with writes of 64 KiB, memory, the kernel's own
traffic (kernel), and what rdma has goals for, in one of three rounds. It takes
more than a quarter of an hour, and ends with the table of goals for speed and memory. (scale has a table
of its own.)`,
		Example: `  unetbench all
  unetbench all --json > all.jsonl`,
		Args: cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.messages(cmd, &messages{memory: []string{"port", "queue"}, idle: idleConnections, kernel: newKernelTraffic(c, rounds)}, everything(rounds)...)
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "rounds of what the goals compare")
	return cmd
}

// everything is the plan of all. What the goals compare has more rounds than the rest.
func everything(rounds int) [][]plan.Selection {
	rtt := rttSelection()
	rtt.Rounds = rounds
	rtt.Transports = slices.DeleteFunc(rtt.Transports, func(name string) bool { return name == transport.GoTCP })
	adaptive := rttSelection() // with go-tcp, which is compared with them and so has the same rounds
	adaptive.Transports, adaptive.Wait, adaptive.Rounds = []string{transport.TCP, transport.GoTCP}, []string{"adaptive"}, rounds
	few := (rounds + 2) / 3
	waits := rttSelection()
	waits.Transports = []string{transport.Message, transport.UDP}
	waits.Attach, waits.Wait = []string{"port"}, []string{"adaptive", "block"}
	waits.Rounds = few
	sizes := rttSelection()
	sizes.Sizes = []int{16, 256, 1024, 1400}
	sizes.Rounds = few
	rate := rateSelection()
	rate.N, rate.Rounds = 200_000, rounds
	// Growing buffers allocate some hundred objects once. More messages make them few for
	// each.
	streams := rateSelection()
	streams.Transports, streams.Rounds = transport.Connecting(), rounds
	rate.Transports = slices.DeleteFunc(rate.Transports, func(name string) bool { return slices.Contains(streams.Transports, name) })
	oneWay := oneWaySelection()
	oneWay.Rounds = rounds
	connect := connectSelection()
	connect.Rounds = rounds
	bandwidth := bandwidthSelection()
	bandwidth.Sizes, bandwidth.Rounds = []int{64 << 10}, rounds
	rdma := rdmaPlan{attach: []string{"port", "queue"}, rounds: rounds, limit: 150 * time.Millisecond, mtus: bandwidthSelection().MTUs}
	latency, writes, bulk := rdma.short(3)
	return [][]plan.Selection{
		append(latency, rtt), {adaptive}, {waits}, {sizes}, append(writes, rate), {streams}, {oneWay}, {connect}, append(bulk, bandwidth),
	}
}

func newChild() *cobra.Command {
	return &cobra.Command{
		Use:    "child",
		Hidden: true,
		Args:   cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lab.RunChild(os.Stdin, os.Stdout) != nil {
				return cli.ErrReported
			}
			return nil
		},
	}
}

// measure is the RunE of a command that measures one selection.
func (c *common) measure(s *plan.Selection) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return c.messages(cmd, &messages{}, []plan.Selection{*s})
	}
}

// messages adds parts to m, the selections that are measured in the same rounds, and runs it.
func (c *common) messages(cmd *cobra.Command, m *messages, parts ...[]plan.Selection) error {
	for _, p := range parts {
		if err := m.add(p...); err != nil {
			return err
		}
	}
	return c.run(cmd, m.lab(), m)
}

func connectSelection() plan.Selection {
	s := defaultSelection(workload.Connect)
	s.Transports = transport.Connecting()
	s.N, s.WarmUp, s.Limit, s.Connections = 2_000, 200, time.Second, 1
	s.Address = plan.Own
	s.Timeout = max(messageTimeout, 2*time.Second) // a SYN that is lost is sent again after one
	return s
}

func newConnect(c *common) *cobra.Command {
	s := connectSelection()
	cmd := &cobra.Command{
		Use:   "connect",
		Short: "Connections opened and closed a second",
		Long: `connect opens and closes connections of TCP, one after the other. One is: the
client dials, sends 64 bytes, reads 64 bytes in answer, closes its side, reads the
end of file with which the server closes the other, and closes the connection. The
server accepts, reads, answers, reads the end of file, closes, and accepts again.
The clock is read once a connection; percentiles are exact. A connection that is
not done in time is counted as late, one that ends with an error as failed, and
the next one is opened.

unet's client has an address of its own, as the kernel has, and so all of its
ports. With --address shared it has the interface's, and claims ports from unetd,
64 at a time. kernel-tcp makes raw non-blocking system calls and spins. go-tcp is
package net's Dialer and Listener.

With --connections above 1 so many goroutines of the client do this at once, and
the server has a goroutine for each connection. Those of kernel-tcp take turns to
spin, which costs it system calls that find nothing.

Each connection leaves its pair of ports in TIME-WAIT at the client: for a minute
in the kernel, for two seconds in unet. So rounds are short, and each has a server
port of its own: with up to 20,000 connections none runs out of the 28,232 local
ports that both choose from.`,
		Example: `  unetbench connect
  unetbench connect --transport tcp,kernel-tcp --connections 16
  unetbench connect --n 10000 --limit 5s --rounds 3 --attach port`,
		Args: cli.Args(0),
	}
	selectionFlags(cmd, &s)
	f := cmd.Flags()
	f.IntVar(&s.Connections, "connections", s.Connections, "connections at a time")
	f.StringVar(&s.Address, "address", s.Address, "address of unet's client: own (one of its own), shared (the interface's, with ports from blocks)")
	f.DurationVar(&s.Limit, "limit", s.Limit, "end a round after this time, with fewer connections")
	for flag, usage := range map[string]string{
		"transport": "transports to measure: those of TCP",
		"size":      "sizes of request and answer, bytes",
		"n":         "connections a round, at most",
		"warm-up":   "connections before the measured ones",
	} {
		f.Lookup(flag).Usage = usage
	}
	cmd.RunE = c.measure(&s)
	return cmd
}

func bandwidthSelection() plan.Selection {
	s := defaultSelection(workload.Bandwidth)
	s.Transports = transport.BulkNames()
	s.MTUs = []int{1500, 9000}
	s.Sizes = []int{64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20}
	s.N, s.Limit = 20_000_000, 200*time.Millisecond
	s.Timeout = 5 * time.Second
	return s
}

func newBandwidth(c *common) *cobra.Command {
	s := bandwidthSelection()
	long := `bandwidth writes to one connection for some time, as fast as it takes writes of a
size, and counts what the other side reads. What counts is the payload received in
the measured time, --limit. It begins as long after the first byte, when buffers and
windows have grown. Both processes spin.

The receiver compares the first and the last bytes of each read with what was
written there, and in a short round that is not measured every byte. Bytes that have not
arrived are counted as lost. With writes of 64 KiB it ends with the table of goals.

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
		Args: cli.Args(0),
	}
	f := cmd.Flags()
	f.StringSliceVar(&s.Transports, "transport", s.Transports, "transports to measure")
	f.StringSliceVar(&s.Attach, "attach", s.Attach, "attachment of endpoints: port, queue")
	f.StringSliceVar(&s.Wait, "wait", s.Wait, "wait mode of endpoints: spin, adaptive, block")
	f.IntSliceVar(&s.Sizes, "size", s.Sizes, "sizes of the writes, bytes, growing")
	f.IntSliceVar(&s.MTUs, "mtu", s.MTUs, "MTUs of the network, bytes")
	f.IntVar(&s.Rounds, "rounds", s.Rounds, "rounds of every combination")
	f.DurationVar(&s.Limit, "limit", s.Limit, "measured time of a round")
	cmd.RunE = c.measure(&s)
	return cmd
}
