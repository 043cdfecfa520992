package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
)

// kernelTraffic measures the kernel's own traffic on an interface with the mux and without.
type kernelTraffic struct {
	mode   string
	rounds int
	rtt    plan.Selection
	stream plan.Selection
	lines  []report.Traffic
}

func newKernelTraffic(c *common, rounds int) *kernelTraffic {
	k := &kernelTraffic{mode: c.mode, rounds: rounds, rtt: rttSelection(), stream: bandwidthSelection()}
	k.stream.MTUs, k.stream.Sizes = []int{1500}, []int{64 << 10}
	return k
}

func newKernel(c *common) *cobra.Command {
	rounds := 13
	cmd := &cobra.Command{
		Use:   "kernel",
		Short: "The kernel's own traffic on an interface with the mux and without",
		Long: `kernel measures what the mux costs traffic that is not unet's. Three hosts are in
a line: host A, a router, host B. Two such lines differ in one thing: on one,
unetd runs on the router and serves its interface to host A. All sockets are the
kernel's; they are non-blocking and spin, and nobody has an endpoint. It measures

  UDP round trip            64 bytes, host A and the router
  TCP stream in             from host A to the router, writes of 64 KiB, with the
                            interfaces' offloads: frames are as long as TSO makes them
  TCP stream out            from the router to host A
  forwarded UDP round trip  host A and host B, through the router
  forwarded TCP stream      from host A to host B

Rounds are interleaved. The ratio is of the two measurements of a round; the
table has its median and its extremes.`,
		Example: `  unetbench kernel
  unetbench kernel --mode tcx --rounds 25
  unetbench kernel --mode native --json > kernel.jsonl`,
		Args: cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rounds < 1 {
				return cli.Usage(fmt.Errorf("--rounds %d: want at least 1", rounds))
			}
			return c.run(cmd, lab.Config{Routed: true}, newKernelTraffic(c, rounds))
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "rounds of everything")
	return cmd
}

// steps is how many measurements there are.
func (k *kernelTraffic) steps() int { return 2 * len(report.KernelFigures) * k.rounds }

func (k *kernelTraffic) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	out.total = k.steps()
	return k.measure(ctx, l, seed, out)
}

func (k *kernelTraffic) measure(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	udp, err1 := transport.ByName(transport.KernelUDP)
	tcp, err2 := transport.BulkByName(transport.KernelTCP)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for round := 1; round <= k.rounds; round++ {
		for _, i := range plan.Order(2*len(report.KernelFigures), seed, round) {
			f, mux := report.KernelFigures[i/2], i%2 == 1
			out.step("round %d of %d: %s, mux %t", round, k.rounds, f.Name, mux)
			t, s := udp, k.rtt
			if f.Stream {
				t, s = tcp, k.stream
			}
			c := plan.Combination{Bench: s.Bench, Transport: t, Attach: transport.None, Wait: "spin", Size: s.Sizes[0], Batch: 1}
			j := s.Job(c)
			got, err := l.Kernel(ctx, t, f.Way, mux, j)
			if err != nil {
				return err
			}
			line := report.Traffic{Bench: "kernel", Figure: f.Name, Mux: mux, Mode: k.mode, Round: round, N: got.Client.N, Value: float64(got.Client.Latency.P50) / 1e3, Unit: report.Micros}
			if f.Stream {
				c.MTU = s.MTUs[0]
				line.N, line.Value, line.Unit = got.Server.N, report.NewRecord(c, j, round, got, nil).GbPerS, report.GbPerS
			}
			k.lines = append(k.lines, line)
			out.line(line)
		}
	}
	return nil
}

func (k *kernelTraffic) print(w io.Writer) {
	if rows := report.SummarizeTraffic(k.lines); len(rows) > 0 {
		report.PrintTraffic(w, k.mode, rows)
		report.PrintGoals(w, report.KernelGoalsTitle, report.KernelGoals(rows))
	}
}
