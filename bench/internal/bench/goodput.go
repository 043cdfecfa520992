package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Goodput is a measurement over impaired links.
type Goodput struct {
	Plan plan.Goodput
	Runs []plan.Run
	Seed uint64

	OnFlow func(report.Flow)
	OnStep func(done, total int, what string)
}

// NewGoodput checks a selection.
func NewGoodput(p plan.Goodput) (*Goodput, error) {
	runs, err := p.Runs()
	return &Goodput{Plan: p, Runs: runs}, err
}

// Do measures. After an error the rows are of what was measured before it.
func (g *Goodput) Do(ctx context.Context, l *lab.Lab) ([]report.FlowRow, error) {
	flows := make([][][]report.Flow, len(g.Runs))
	done, total := 0, len(g.Runs)*g.Plan.Rounds
	for round := 1; round <= g.Plan.Rounds; round++ {
		for _, i := range plan.Order(len(g.Runs), g.Seed, round) {
			run := g.Runs[i]
			g.OnStep(done, total, fmt.Sprintf("round %d of %d: %v", round, g.Plan.Rounds, run))
			done++
			j := workload.Job{Bench: workload.Goodput, Attach: g.Plan.Attach, Wait: g.Plan.Wait, Limit: g.Plan.Time, Patience: firstByte}
			if run.Shared() {
				j.Limit = g.Plan.ShareTime
			}
			seed := 2 * (g.Seed + uint64(round)) // each direction has one
			out, err := l.Goodput(ctx, run, j, seed)
			if err != nil {
				return report.SummarizeFlows(g.Runs, flows), err
			}
			of := report.NewFlows(run, j, round, seed, out)
			flows[i] = append(flows[i], of)
			for _, f := range of {
				g.OnFlow(f)
			}
		}
	}
	return report.SummarizeFlows(g.Runs, flows), nil
}

// firstByte is how long the first byte may take.
const firstByte = 10 * time.Second
