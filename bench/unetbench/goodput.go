package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/workload"
)

func goodputPlan() plan.Goodput {
	return plan.Goodput{
		Loss:   []float64{0.1, 1, 5},
		Delay:  []time.Duration{time.Millisecond, 20 * time.Millisecond},
		Rate:   300e6,
		Attach: "port", Wait: "adaptive",
		Rounds: 5, Time: 4 * time.Second, ShareTime: 20 * time.Second,
	}
}

// Links of --on.
const (
	lossy      = "loss"
	reordering = "reordering"
	narrow     = "bottleneck"
	shared     = "share"
)

var kinds = []string{lossy, reordering, narrow, shared}

func newGoodput(c *common) *cobra.Command {
	p := goodputPlan()
	on, rate := slices.Clone(kinds), p.Rate/1e6
	cmd := &cobra.Command{
		Use:   "goodput",
		Short: "Bulk over impaired links, and shares of a bottleneck, beside the kernel's CUBIC",
		Long: `goodput sends as much as it can over one TCP connection for some seconds and counts
what the receiving application reads, from the first byte on: unet to unet, unet to
the kernel, the kernel to unet, and, for comparison, the kernel to the kernel. Between the hosts is an impaired link (--on):

  loss        frames are lost at random, each way; --loss and --delay are combined
  bottleneck  100 Mb/s, 10 ms each way, a queue of 250 kB that drops when it is full
  reordering  the same, and 2 % of the frames are held back by up to 4 ms
  share       the bottleneck, for two connections at a time: of the kernel, of unet, and
              one of each

--delay is that of a frame, so a round trip takes twice as long. In each round
frame n of a direction is lost or not by the round's seed, so all flows lose the
same frames. Nothing is lost while connections are opened.

A thread of this program carries the frames, on the same processors, so --rate
bounds the load. Offloads are off, so that a frame is a segment. The kernel has CUBIC and its usual buffers
(net.ipv4.tcp_rmem, tcp_wmem), and does not use metrics of earlier connections
(tcp_no_metrics_save). Its processes are those of go-tcp: package net, blocking.`,
		Example: `  unetbench goodput
  unetbench goodput --on loss --loss 1 --delay 20ms --rounds 9 --time 10s
  unetbench goodput --on share --json > share.jsonl`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.Rate = rate * 1e6
			for _, k := range on {
				if !slices.Contains(kinds, k) {
					return usageError{fmt.Errorf("--on %s: there are %v", k, kinds)}
				}
			}
			if !slices.Contains(on, lossy) {
				p.Loss = nil
			}
			if slices.Contains(on, narrow) {
				p.Others = append(p.Others, plan.Bottleneck())
			}
			if slices.Contains(on, reordering) {
				p.Others = append(p.Others, plan.Reordering())
			}
			if slices.Contains(on, shared) {
				p.Shares = append(p.Shares, plan.Bottleneck())
			}
			runs, err := p.Runs()
			if err != nil {
				return usageError{err}
			}
			g := &goodput{plan: p, runs: runs, flows: make([][][]report.Flow, len(runs))}
			return c.run(cmd, lab.Config{Muxed: true, Plain: true, Impaired: true}, g)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&on, "on", on, "links: loss, reordering, bottleneck, share")
	f.Float64SliceVar(&p.Loss, "loss", p.Loss, "percent of the frames that are lost, each way")
	f.DurationSliceVar(&p.Delay, "delay", p.Delay, "how long a frame takes, each way")
	f.Int64Var(&rate, "rate", rate, "of the link with losses, Mb/s")
	f.StringVar(&p.Attach, "attach", p.Attach, "attachment of endpoints: port, queue")
	f.StringVar(&p.Wait, "wait", p.Wait, "wait mode of endpoints: spin, adaptive, block")
	f.IntVar(&p.Rounds, "rounds", p.Rounds, "rounds of everything")
	f.DurationVar(&p.Time, "time", p.Time, "how long a connection is measured")
	f.DurationVar(&p.ShareTime, "share-time", p.ShareTime, "how long two that share are measured")
	return cmd
}

// goodput measures bulk over impaired links.
type goodput struct {
	plan  plan.Goodput
	runs  []plan.Run
	flows [][][]report.Flow // of each run, of each round
}

// firstByte is how long the first byte may take.
const firstByte = 10 * time.Second

func (g *goodput) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	out.total = len(g.runs) * g.plan.Rounds
	for round := 1; round <= g.plan.Rounds; round++ {
		for _, i := range plan.Order(len(g.runs), seed, round) {
			run := g.runs[i]
			out.step("round %d of %d: %v", round, g.plan.Rounds, run)
			j := workload.Job{Bench: workload.Goodput, Attach: g.plan.Attach, Wait: g.plan.Wait, Limit: g.plan.Time, Timeout: firstByte}
			if run.Shared() {
				j.Limit = g.plan.ShareTime
			}
			linkSeed := 2 * (seed + uint64(round)) // each direction has one
			got, err := l.Goodput(ctx, run, j, linkSeed)
			if err != nil {
				return err
			}
			flows := report.NewFlows(run, j, round, linkSeed, got)
			g.flows[i] = append(g.flows[i], flows)
			for _, f := range flows {
				out.line(f)
			}
		}
	}
	return nil
}

func (g *goodput) print(w io.Writer) {
	if rows := report.SummarizeFlows(g.runs, g.flows); len(rows) > 0 {
		report.PrintFlows(w, rows)
		report.PrintGoals(w, report.FlowGoalsTitle, report.FlowGoals(rows))
	}
}
