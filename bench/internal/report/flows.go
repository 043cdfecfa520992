package report

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Flow is one round of one connection over an impaired link, and one line of JSON.
type Flow struct {
	Bench    workload.Bench `json:"bench"` // goodput, or share of two that share the link
	Link     string         `json:"link"`
	Loss     float64        `json:"loss"` // probability, each way, as all of the link
	DelayMS  float64        `json:"delay_ms"`
	RateMbit float64        `json:"rate_mbit"`
	From     string         `json:"from"` // transports
	To       string         `json:"to"`
	Attach   string         `json:"attach"`
	Wait     string         `json:"wait"`
	Round    int            `json:"round"`            // from 1
	Seed     uint64         `json:"seed"`             // of the link in this round
	Beside   string         `json:"beside,omitempty"` // share: what sends on the other connection
	Share    float64        `json:"share,omitempty"`  // of what both have received

	Bytes         int64   `json:"bytes"` // received by the application
	Seconds       float64 `json:"seconds"`
	MbitPerS      float64 `json:"mbit_per_s"`
	Retransmitted int64   `json:"retransmitted_bytes"`
	Timeouts      int64   `json:"timeouts"`
	RTTMS         float64 `json:"rtt_ms"` // smoothed, of the sender at the end
	// Processor time of both processes, user and system, for a megabyte received. What the
	// kernels do when the link hands them frames is not in it.
	CPUMSPerMB float64 `json:"cpu_ms_per_mb"`
}

// NewFlows makes the records of a run.
func NewFlows(run plan.Run, j workload.Job, round int, seed uint64, out []lab.Outcome) []Flow {
	flows := make([]Flow, len(out))
	var total int64
	for _, o := range out {
		total += o.Server.Bytes
	}
	for i, o := range out {
		f, rule := run.Flows[i], run.Link.Rule
		mb := float64(o.Server.Bytes) / 1e6
		x := Flow{
			Bench: workload.Goodput, Link: run.Link.Name, Loss: rule.Loss, DelayMS: rule.Delay.Seconds() * 1e3, RateMbit: float64(rule.Rate) / 1e6,
			From: f.From.Name, To: f.To.Name, Attach: j.Attach, Wait: j.Wait, Round: round, Seed: seed,
			Bytes: o.Server.Bytes, Seconds: o.Server.Elapsed.Seconds(),
			Retransmitted: o.Client.Retransmitted, Timeouts: o.Client.Timeouts, RTTMS: o.Client.RTT.Seconds() * 1e3,
		}
		if mb > 0 {
			x.MbitPerS = 8 * mb / x.Seconds
			x.CPUMSPerMB = float64(o.Client.CPU+o.Server.CPU) / float64(time.Millisecond) / mb
		}
		if run.Shared() && total > 0 {
			x.Bench, x.Beside = workload.Share, run.Flows[1-i].From.Name
			x.Share = float64(o.Server.Bytes) / float64(total)
		}
		flows[i] = x
	}
	return flows
}

// FlowRow is one flow over all rounds.
type FlowRow struct {
	Run    plan.Run
	Index  int // in Run.Flows
	Rounds int

	MbitPerS Spread
	Share    Spread  // percent
	Again    Spread  // retransmitted bytes, percent of those received
	CPU      Spread  // milliseconds a megabyte
	RTT      Spread  // milliseconds
	Timeouts float64 // a round
}

// SummarizeFlows gathers the records of each run: flows[i] has those of runs[i], by round.
func SummarizeFlows(runs []plan.Run, flows [][][]Flow) (rows []FlowRow) {
	for i, run := range runs {
		for k := range run.Flows {
			var of []Flow
			for _, round := range flows[i] {
				of = append(of, round[k])
			}
			if len(of) == 0 {
				continue
			}
			over := func(figure func(Flow) float64) Spread { return over(of, figure) }
			row := FlowRow{
				Run: run, Index: k, Rounds: len(of),
				MbitPerS: over(func(f Flow) float64 { return f.MbitPerS }),
				Share:    over(func(f Flow) float64 { return 100 * f.Share }),
				Again:    over(func(f Flow) float64 { return 100 * float64(f.Retransmitted) / float64(max(f.Bytes, 1)) }),
				CPU:      over(func(f Flow) float64 { return f.CPUMSPerMB }),
				RTT:      over(func(f Flow) float64 { return f.RTTMS }),
			}
			for _, f := range of {
				row.Timeouts += float64(f.Timeouts) / float64(len(of))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// baseline is the goodput of the kernel on the same link.
func baseline(rows []FlowRow, link string) float64 {
	for _, r := range rows {
		if !r.Run.Shared() && r.Run.Link.Name == link && r.Run.Flows[0].Kernel() {
			return r.MbitPerS.Median
		}
	}
	return 0
}

// PrintFlows writes the tables of goodput and shares.
func PrintFlows(w io.Writer, rows []FlowRow) {
	alone := slices.DeleteFunc(slices.Clone(rows), func(r FlowRow) bool { return r.Run.Shared() })
	shared := slices.DeleteFunc(slices.Clone(rows), func(r FlowRow) bool { return !r.Run.Shared() })
	first := [][]column[FlowRow]{text("link", func(r FlowRow) string { return r.Run.Link.Name }), text("flow", FlowRow.name),
		extremes("Mb/s", func(r FlowRow) Spread { return r.MbitPerS }, 1, 2)}
	last := slices.Concat(median("again %", func(r FlowRow) Spread { return r.Again }, 1, 2), value("timeouts", func(r FlowRow) string { return fmt.Sprintf("%.1f", r.Timeouts) }),
		median("rtt ms", func(r FlowRow) Spread { return r.RTT }, 1, 2), median("cpu ms/MB", func(r FlowRow) Spread { return r.CPU }, 1, 2))
	if len(alone) > 0 {
		printTable(w, fmt.Sprintf(`Goodput over an impaired link, from the first byte on: medians over %d rounds (lowest..highest)
Loss and delay are each way. The same frames of a round are lost and delayed for all. again is what was sent again, of what was received;
timeouts are a round's; rtt is the smoothed one at the end; cpu is of both processes, without what the kernels do in the link's own system calls.`, alone[0].Rounds),
			alone, append(first, quotient("vs kernel", "x", func(r FlowRow) (float64, bool) { return ratio(r.MbitPerS.Median, baseline(rows, r.Run.Link.Name)) }), last)...)
	}
	if len(shared) > 0 {
		printTable(w, fmt.Sprintf("Shares of a bottleneck, of two connections over the same time: medians over %d rounds (lowest..highest)", shared[0].Rounds),
			shared, append(first, extremes("share %", func(r FlowRow) Spread { return r.Share }, 1, 1), last)...)
	}
}

func (r FlowRow) name() string {
	s := r.Run.Flows[r.Index].String()
	if r.Run.Shared() {
		s += " beside " + r.Run.Flows[1-r.Index].From.Name
	}
	return s
}

// fullLine is the bound where nothing is lost at random: both fill the link, and their
// difference is noise.
const fullLine = 0.98

// Shares are to be within these bounds, in percent.
const (
	leastShare = 40
	mostShare  = 60
)

// FlowGoalsTitle is the title of FlowGoals.
const FlowGoalsTitle = "Figures to reach (goodput, medians of interleaved rounds)"

// FlowGoals are the figures that flows are held to. The kernel's own are not.
func FlowGoals(rows []FlowRow) (goals []Goal) {
	for _, r := range rows {
		f := r.Run.Flows[r.Index]
		if f.Kernel() {
			continue
		}
		g := Goal{Figure: r.Run.Link.Name + ": " + r.name(), format: "%.2f"}
		if r.Run.Shared() {
			g.Figure += ", share %"
			g.Measured, g.Known, g.format = r.Share.Median, true, "%.1f"
			low, high := g, g
			low.Bound, high.Bound, high.AtMost = leastShare, mostShare, true
			goals = append(goals, low, high)
			continue
		}
		g.Figure += " / go-tcp > go-tcp"
		if g.Bound = 1; r.Run.Link.Rule.Loss == 0 {
			g.Bound = fullLine
		}
		g.Measured, g.Known = ratio(r.MbitPerS.Median, baseline(rows, r.Run.Link.Name))
		goals = append(goals, g)
	}
	return goals
}
