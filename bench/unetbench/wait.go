package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// waiting measures what waiting costs, by the wait mode, the number of goroutines that wait, and
// GOMAXPROCS.
type waiting struct {
	attach  string
	waiters int
	procs   []int
	rounds  int
	pause   time.Duration
	rtt     plan.Selection
	rest    time.Duration
	lines   []report.Waiting
}

func newWait(c *common) *cobra.Command {
	k := waiting{attach: "port", waiters: 63, procs: []int{0, 2}, rounds: 7, rtt: rttSelection(), rest: time.Second}
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Latency against processor time, by wait mode, waiting goroutines and GOMAXPROCS",
		Long: `wait measures round trips of 64 bytes over TCP on one connection: alone, and while
at both ends goroutines wait for data on other connections, one on each (--waiters).
With GOMAXPROCS 0 each process is pinned to a processor of its own; otherwise they
have that GOMAXPROCS and run where the kernel puts them. cpu us is the processor time of both
processes, a round trip. Afterwards the client is idle: all its goroutines but one
wait for data, and that one sleeps. idle % is its processor time then, in percent of
a processor. With --pause the client sleeps for so long between two round trips.`,
		Example: `  unetbench wait
  unetbench wait --procs 0 --pause 1ms
  unetbench wait --procs 0,1,2,8 --waiters 1023 --rounds 3`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case k.rounds < 1:
				return usageError{fmt.Errorf("--rounds %d: want at least 1", k.rounds)}
			case k.waiters < 1 || k.waiters > plan.MaxConnects:
				return usageError{fmt.Errorf("--waiters %d: want 1 to %d", k.waiters, plan.MaxConnects)}
			case k.pause < 0 || k.pause > k.rtt.Limit:
				return usageError{fmt.Errorf("--pause %v: want 0 to %v", k.pause, k.rtt.Limit)}
			case len(k.procs) == 0:
				return usageError{fmt.Errorf("--procs is empty")}
			}
			for _, n := range k.procs {
				if n < 0 {
					return usageError{fmt.Errorf("--procs %d: want 0 or more", n)}
				}
			}
			k.rtt.Attach = []string{k.attach}
			if _, err := k.rtt.Combinations(); err != nil {
				return usageError{err}
			}
			return c.run(cmd, lab.Config{Muxed: true, Plain: true}, &k)
		},
	}
	f := cmd.Flags()
	f.StringVar(&k.attach, "attach", k.attach, "attachment of endpoints: port, queue")
	f.IntVar(&k.waiters, "waiters", k.waiters, "goroutines that wait on connections of their own")
	f.IntSliceVar(&k.procs, "procs", k.procs, "GOMAXPROCS of both processes; 0: each is pinned to a processor")
	f.DurationVar(&k.pause, "pause", k.pause, "how long the client sleeps between two round trips")
	f.IntVar(&k.rounds, "rounds", k.rounds, "rounds of everything")
	return cmd
}

func (k *waiting) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	var all []report.Waiting
	for _, procs := range k.procs {
		for _, way := range [][2]string{{transport.TCP, "spin"}, {transport.TCP, "adaptive"}, {transport.TCP, "block"}, {transport.GoTCP, "block"}} {
			for _, waiters := range []int{0, k.waiters} {
				all = append(all, report.Waiting{Bench: "wait", Transport: way[0], Wait: way[1], Waiters: waiters, Procs: procs})
			}
		}
	}
	out.total = len(all) * k.rounds
	for round := 1; round <= k.rounds; round++ {
		for _, i := range plan.Order(len(all), seed, round) {
			line := all[i]
			line.Round = round
			out.step("round %d of %d: %s", round, k.rounds, line.Key())
			t, err := transport.ByName(line.Transport)
			if err != nil {
				return err
			}
			j := k.rtt.Job(plan.Combination{Bench: workload.RTT, Transport: t, Attach: k.attach, Wait: line.Wait, Size: 64, Batch: 1})
			j.Waiters, j.Procs, j.Pause = line.Waiters, line.Procs, k.pause
			if line.Wait == "adaptive" || line.Transport == transport.GoTCP {
				j.Rest = k.rest
			}
			got, err := l.Measure(ctx, t, plan.Pair, j, nil)
			if err != nil {
				return err
			}
			line.Measured(j, got)
			k.lines = append(k.lines, line)
			out.line(line)
		}
	}
	return nil
}

func (k *waiting) print(w io.Writer) {
	if len(k.lines) > 0 {
		report.PrintWaiting(w, k.lines)
		report.PrintGoals(w, report.WaitingGoalsTitle, report.WaitingGoals(k.lines))
	}
}
