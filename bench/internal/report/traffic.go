package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/lab"
)

// Traffic is one round of the kernel's own traffic, and one line of JSON.
type Traffic struct {
	Bench  string  `json:"bench"` // kernel
	Figure string  `json:"figure"`
	Mux    bool    `json:"mux"`  // on the interface
	Mode   string  `json:"mode"` // of the mux, as it was asked for
	Round  int     `json:"round"`
	N      int     `json:"n"` // round trips, or bytes
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"` // us: less is better; Gb/s: more is better
}

// Units of Traffic.
const (
	Micros = "us"
	GbPerS = "Gb/s"
)

func (t Traffic) benchmark() (string, int, []figure) {
	name := fmt.Sprintf("Kernel/figure=%s/mux=%t/mode=%s", t.Figure, t.Mux, t.Mode)
	if t.Unit == Micros {
		return name, t.N, []figure{{t.Value * 1e3, "p50-ns/op"}}
	}
	return name, t.N, []figure{{t.Value * 1e9 / 8, "B/s"}}
}

// TrafficRow is a figure over all rounds, with the mux / without.
type TrafficRow struct {
	Figure, Unit string
	contrast
}

// SummarizeTraffic gathers the rounds that were measured with the mux and without.
func SummarizeTraffic(all []Traffic) (rows []TrafficRow) {
	for _, g := range KernelFigures {
		r, rounds := TrafficRow{Figure: g.Name}, [2]map[int]float64{{}, {}}
		for _, t := range all {
			if t.Figure == g.Name && t.Mux {
				rounds[1][t.Round] = t.Value
			} else if t.Figure == g.Name {
				r.Unit, rounds[0][t.Round] = t.Unit, t.Value
			}
		}
		if r.contrast = contrastOf(rounds[0], rounds[1]); r.rounds > 0 {
			rows = append(rows, r)
		}
	}
	return rows
}

// PrintTraffic writes the table, if there is anything.
func PrintTraffic(w io.Writer, mode string, rows []TrafficRow) {
	if len(rows) == 0 {
		return
	}
	printTable(w, fmt.Sprintf("The kernel's own traffic on an interface with the mux (mode %s) and without: medians over %d rounds (lowest..highest)\n"+
		"The ratio is of each round. A stream has writes of 64 KiB and the interface's offloads.", mode, rows[0].rounds), rows,
		text("figure", func(r TrafficRow) string { return r.Figure + ", " + r.Unit }), extremes("without", func(r TrafficRow) Spread { return r.base }, 1, 2),
		extremes("with", func(r TrafficRow) Spread { return r.other }, 1, 2), extremes("with / without", func(r TrafficRow) Spread { return r.ratio }, 1, 2))
}

// Figures of Traffic.
const (
	KernelRTT        = "UDP round trip"
	KernelIn         = "TCP stream in"
	KernelOut        = "TCP stream out"
	KernelForwardRTT = "forwarded UDP round trip"
	KernelForward    = "forwarded TCP stream"
)

// KernelFigures are what is measured, in the order of the table, with the bounds of the ratio with
// the mux / without. A figure without a bound is no goal.
var KernelFigures = []struct {
	Name, Way string // Way is one of package lab's directions
	Stream    bool
	bound     float64
	atMost    bool
}{
	{KernelRTT, lab.In, false, 1.05, true},
	{KernelIn, lab.In, true, 0.95, false},
	{KernelOut, lab.Out, true, 0.95, false},
	{KernelForwardRTT, lab.Forward, false, 0, false},
	{KernelForward, lab.Forward, true, 0, false},
}

// KernelGoalsTitle is the title of KernelGoals.
const KernelGoalsTitle = "Figures to reach (the kernel's own traffic, medians of the ratios of interleaved rounds)"

// KernelGoals are about the median of the ratios.
func KernelGoals(rows []TrafficRow) (goals []Goal) {
	for _, k := range KernelFigures {
		if k.bound == 0 {
			continue
		}
		g := Goal{Figure: "kernel " + k.Name + " with the mux / without", Bound: k.bound, AtMost: k.atMost, format: "%.2f"}
		if i := slices.IndexFunc(rows, func(r TrafficRow) bool { return r.Figure == k.Name }); i >= 0 {
			g.Known, g.Measured = true, rows[i].ratio.Median
		}
		goals = append(goals, g)
	}
	return goals
}
