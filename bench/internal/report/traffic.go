package report

import (
	"fmt"
	"io"
	"slices"
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

// TrafficRow is a figure over all rounds.
type TrafficRow struct {
	Figure, Unit  string
	Rounds        int
	Without, With Spread
	Ratio         Spread // with / without, of each round
}

// SummarizeTraffic gathers the rounds that were measured with the mux and without.
func SummarizeTraffic(all []Traffic) (rows []TrafficRow) {
	for _, name := range kernelFigures {
		var unit string
		var without, with, ratios []float64
		for _, a := range all {
			for _, b := range all {
				if a.Figure != name || b.Figure != name || a.Round != b.Round || a.Mux || !b.Mux {
					continue
				}
				if r, ok := ratio(b.Value, a.Value); ok {
					unit, without, with, ratios = a.Unit, append(without, a.Value), append(with, b.Value), append(ratios, r)
				}
			}
		}
		if len(ratios) > 0 {
			rows = append(rows, TrafficRow{name, unit, len(ratios), spread(without), spread(with), spread(ratios)})
		}
	}
	return rows
}

// PrintTraffic writes the table, if there is anything.
func PrintTraffic(w io.Writer, mode string, rows []TrafficRow) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\nThe kernel's own traffic on an interface with the mux (mode %s) and without: medians over %d rounds (lowest..highest)\n", mode, rows[0].Rounds)
	fmt.Fprintln(w, "The ratio is of each round. A stream has writes of 64 KiB and the interface's offloads.")
	g := grid{left: 1}
	g.add("figure", "without", "", "with", "", "with / without", "")
	for _, r := range rows {
		cells := []string{r.Figure + ", " + r.Unit}
		for _, s := range []Spread{r.Without, r.With, r.Ratio} {
			cells = append(cells, fmt.Sprintf("%.2f", s.Median), fmt.Sprintf("(%.2f..%.2f)", s.Min, s.Max))
		}
		g.add(cells...)
	}
	g.print(w)
}

// Bounds of the kernel's own traffic with the mux / without.
const (
	mostKernelRTT     = 1.05
	leastKernelStream = 0.95
)

// Figures of Traffic, in the order of the table.
const (
	KernelRTT        = "UDP round trip"
	KernelIn         = "TCP stream in"
	KernelOut        = "TCP stream out"
	KernelForwardRTT = "forwarded UDP round trip"
	KernelForward    = "forwarded TCP stream"
)

var kernelFigures = []string{KernelRTT, KernelIn, KernelOut, KernelForwardRTT, KernelForward}

// KernelGoalsTitle is the title of KernelGoals.
const KernelGoalsTitle = "Figures to reach (the kernel's own traffic, medians of the ratios of interleaved rounds)"

// KernelGoals are about the median of the ratios.
func KernelGoals(rows []TrafficRow) (goals []Goal) {
	for _, name := range []string{KernelRTT, KernelIn, KernelOut} {
		g := Goal{Figure: "kernel " + name + " with the mux / without", Bound: leastKernelStream, format: "%.2f"}
		if name == KernelRTT {
			g.Bound, g.AtMost = mostKernelRTT, true
		}
		if i := slices.IndexFunc(rows, func(r TrafficRow) bool { return r.Figure == name }); i >= 0 {
			g.Known, g.Measured = true, rows[i].Ratio.Median
		}
		goals = append(goals, g)
	}
	return goals
}
