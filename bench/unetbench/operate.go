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
	"github.com/unet-go/unet/bench/internal/transport"
)

// operating measures what an operator's tools cost endpoints.
type operating struct {
	rtt      plan.Selection
	interval time.Duration
	scrapes  int // in each round
	lines    []report.Operating
	scraped  []report.Scrape
}

func newOperate(c *common) *cobra.Command {
	k := operating{rtt: rttSelection(), interval: time.Second, scrapes: 5}
	k.rtt.Transports, k.rtt.Attach = []string{transport.Message}, []string{"port"}
	k.rtt.Rounds, k.rtt.N, k.rtt.Limit = 13, 1_000_000, time.Second
	cmd := &cobra.Command{
		Use:   "operate",
		Short: "What metrics, captures and rate limits cost endpoints",
		Long: fmt.Sprintf(`operate measures round trips of 64 bytes over ports while an operator does something:

  plain          nothing
  scraped        both processes publish their state, and the metrics of both hosts are
                 scraped at an interval (--interval)
  rate-limited   both endpoints and their user have rate limits, which they do not reach
  capture-other  unetd capture writes the frames of another, idle endpoint of the
                 client's host to /dev/null
  capture-this   the same for the client's own endpoint

A capture's programs run for each packet of the machine, so here both hosts pay for it. The
tools of the operator run on the processors of client and server, as the kernel places them.
It also scrapes a unetd with %d endpoints, each with a full table of sockets.`, lab.ScrapedSize),
		Example: `  unetbench operate
  unetbench operate --transport msg,udp,tcp --rounds 5`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case k.interval <= 0 || k.interval > 2*k.rtt.Limit:
				return usageError{fmt.Errorf("--interval %v: want more than 0, and at most twice --limit, so that each round has a scrape", k.interval)}
			case k.scrapes < 1:
				return usageError{fmt.Errorf("--scrapes %d: want at least 1", k.scrapes)}
			}
			all, err := k.rtt.Combinations()
			if err != nil {
				return usageError{err}
			}
			for _, c := range all {
				if !slices.Contains([]string{transport.Message, transport.UDP, transport.TCP}, c.Transport.Name) {
					return usageError{fmt.Errorf("transport %s: operate has %s, %s and %s", c.Transport.Name, transport.Message, transport.UDP, transport.TCP)}
				}
			}
			return c.run(cmd, lab.Config{Muxed: true, Operated: true}, &k)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&k.rtt.Transports, "transport", k.rtt.Transports, "transports to measure: msg, udp, tcp")
	f.IntVar(&k.rtt.Rounds, "rounds", k.rtt.Rounds, "rounds of everything")
	f.DurationVar(&k.rtt.Limit, "limit", k.rtt.Limit, "measured time of a round")
	f.DurationVar(&k.interval, "interval", k.interval, "between two scrapes; the first is after half of it")
	f.IntVar(&k.scrapes, "scrapes", k.scrapes, "scrapes of the unetd with many endpoints, in each round")
	return cmd
}

func (k *operating) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	all, err := k.rtt.Combinations()
	if err != nil {
		return err
	}
	out.total = k.rtt.Rounds * (len(all)*len(lab.Conditions) + 1)
	for round := 1; round <= k.rtt.Rounds; round++ {
		for _, i := range plan.Order(len(all)*len(lab.Conditions), seed, round) {
			c, condition := all[i/len(lab.Conditions)], lab.Conditions[i%len(lab.Conditions)]
			out.step("round %d of %d: %s %s", round, k.rtt.Rounds, c.Transport.Name, condition)
			got, seen, err := l.Operate(ctx, c.Transport, condition, k.rtt.Job(c), k.interval)
			if err != nil {
				return err
			}
			line := report.NewOperating(c.Transport.Name, condition, round, got, seen)
			k.lines = append(k.lines, line)
			out.line(line)
		}
		out.step("round %d of %d: scrapes with %d endpoints", round, k.rtt.Rounds, lab.ScrapedSize)
		for range k.scrapes {
			n, took, err := l.Scrape(ctx)
			if err != nil {
				return err
			}
			line := report.Scrape{Bench: "scrape", Endpoints: lab.ScrapedSize, Round: round, N: n, MS: float64(took) / 1e6}
			k.scraped = append(k.scraped, line)
			out.line(line)
		}
	}
	return nil
}

func (k *operating) print(w io.Writer) {
	if len(k.lines) > 0 {
		report.PrintOperating(w, k.lines, k.scraped)
		report.PrintGoals(w, report.OperatingGoalsTitle, report.OperatingGoals(k.lines, k.scraped))
	}
}
