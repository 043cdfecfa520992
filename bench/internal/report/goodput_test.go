package report

import (
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// TestFlowGoals: goodput is held against the kernel's on the same link, and a share
// against both bounds.
func TestFlowGoals(t *testing.T) {
	ours, _ := transport.ByName(transport.TCP)
	kernel, _ := transport.ByName(transport.GoTCP)
	slow, fast := plan.Link{Name: "slow"}, plan.Link{Name: "fast", Rule: impair.Rule{Loss: 0.1}}
	runs := []plan.Run{
		{Link: slow, Flows: []plan.Flow{{From: kernel, To: kernel}}},
		{Link: slow, Flows: []plan.Flow{{From: ours, To: kernel}}},
		{Link: fast, Flows: []plan.Flow{{From: ours, To: kernel}}},
		{Link: slow, Flows: []plan.Flow{{From: ours, To: ours}, {From: kernel, To: kernel}}},
	}
	flows := make([][][]Flow, len(runs))
	for round, mb := range [][]int64{{10, 8, 99, 65, 35}, {20, 24, 99, 50, 50}, {30, 99, 99, 70, 30}} {
		for i, run := range runs {
			var out []lab.Outcome
			for k := range run.Flows {
				out = append(out, lab.Outcome{
					Server: workload.Report{Bytes: mb[i+k] * 1e6, Elapsed: 8 * time.Second, CPU: time.Duration(mb[i+k]) * time.Millisecond},
					Client: workload.Report{Retransmitted: mb[i+k] * 1e4, Timeouts: int64(round)},
				})
			}
			flows[i] = append(flows[i], NewFlows(run, workload.Job{}, round+1, 7, out))
		}
	}
	rows := SummarizeFlows(runs, flows)
	if len(rows) != 5 {
		t.Fatalf("%d rows", len(rows))
	}
	if r := rows[0]; r.MbitPerS != (Spread{20, 10, 30}) || r.Again.Median != 1 || r.CPU.Median != 1 || r.Timeouts != 1 {
		t.Errorf("%+v", r)
	}
	want := []struct {
		bound, measured float64
		known, met      bool
	}{{fullLine, 1.2, true, true}, {1, 0, false, false}, {leastShare, 65, true, true}, {mostShare, 65, true, false}}
	goals := FlowGoals(rows)
	if len(goals) != len(want) {
		t.Fatalf("%+v", goals)
	}
	for i, w := range want {
		if g := goals[i]; g.Bound != w.bound || g.Measured != w.measured || g.Known != w.known || g.Known && g.Met() != w.met {
			t.Errorf("%+v, want %+v", g, w)
		}
	}
	var b strings.Builder
	PrintFlows(&b, rows)
	PrintGoals(&b, FlowGoalsTitle, goals)
	for _, s := range []string{"1.20x", "65.0", "(50.0..70.0)", "not measured", "short", "tcp > tcp beside go-tcp"} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("no %q in:\n%s", s, &b)
		}
	}
}
