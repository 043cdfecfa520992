package report

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/unet-go/unet/bench/internal/plan"
)

// serviceFigure is a figure of a Service that the two networks are compared by.
type serviceFigure struct {
	name  string
	of    func(Service) float64
	lower bool // lower is better
}

var (
	serviceRate = serviceFigure{"requests/s", func(s Service) float64 { return s.PerS }, false}
	serviceP50  = serviceFigure{"p50", func(s Service) float64 { return s.P50US }, true}
	serviceP99  = serviceFigure{"p99", func(s Service) float64 { return s.P99US }, true}
	serviceCPU  = serviceFigure{"processor time", func(s Service) float64 { return s.CPUUS }, true}

	serviceFigures = []serviceFigure{serviceRate, serviceP50, serviceP99, serviceCPU}
)

// ServiceRow is a cell of the matrix over all rounds.
type ServiceRow struct {
	plan.ServiceCell
	by       map[string]contrast // by the name of the figure
	fairness map[string]float64  // by network, the median
	failed   map[string]int      // by network, with lost requests, of all rounds
}

// of is the contrast by a figure.
func (r ServiceRow) of(f serviceFigure) contrast { return r.by[f.name] }

// SummarizeServices compares the networks in the cells that have a round with both.
func SummarizeServices(cells []plan.ServiceCell, all []Service) (rows []ServiceRow) {
	for _, c := range cells {
		r := ServiceRow{ServiceCell: c, by: map[string]contrast{}, fairness: map[string]float64{}, failed: map[string]int{}}
		for _, f := range serviceFigures {
			rounds := map[string]map[int]float64{OnUnet: {}, OnKernel: {}}
			for _, s := range all {
				if s.cell() == c {
					rounds[s.Network][s.Round] = f.of(s)
				}
			}
			r.by[f.name] = contrastOf(rounds[OnKernel], rounds[OnUnet])
		}
		if r.of(serviceRate).rounds == 0 {
			continue
		}
		for _, network := range []string{OnUnet, OnKernel} {
			var shares []float64
			for _, s := range all {
				if s.cell() == c && s.Network == network {
					shares = append(shares, s.Fairness)
					r.failed[network] += s.Failed + s.Lost
				}
			}
			r.fairness[network] = spread(shares).Median
		}
		rows = append(rows, r)
	}
	return rows
}

// PrintServices writes the tables of a matrix.
func PrintServices(w io.Writer, rows []ServiceRow) {
	if len(rows) == 0 {
		return
	}
	cell := slices.Concat(text("service", func(r ServiceRow) string { return r.Service }),
		value("conns", func(r ServiceRow) int { return r.Connections }), value("procs", func(r ServiceRow) int { return r.Procs }))
	// besides are the medians of both networks and of their ratio.
	besides := func(head string, f serviceFigure, digits int) []column[ServiceRow] {
		return slices.Concat(median(head+"unet", func(r ServiceRow) Spread { return r.of(f).other }, 1, digits),
			median("kernel", func(r ServiceRow) Spread { return r.of(f).base }, 1, digits), median("ratio", func(r ServiceRow) Spread { return r.of(f).ratio }, 1, 2))
	}
	fair := func(head, network string) []column[ServiceRow] {
		return value(head, func(r ServiceRow) string { return fmt.Sprintf("%.2f", r.fairness[network]) })
	}
	fmt.Fprintf(w, `
Services on unet and on the kernel's sockets: medians over %s
ratio is unet / kernel in the same round, with its lowest and highest value.
procs is GOMAXPROCS; with 1, server and client are pinned to a processor each.
`, roundsText(rows, func(r ServiceRow) int { return r.of(serviceRate).rounds })) // they differ if the run was interrupted
	printTable(w, "Requests answered a second", rows, cell, besides("", serviceRate, 0), extremes("", func(r ServiceRow) Spread { return r.of(serviceRate).ratio }, 1, 2)[1:])
	printTable(w, "Time of a request, microseconds", rows, cell, besides("p50 ", serviceP50, 0), besides("p99 ", serviceP99, 0))
	printTable(w, `Processor time of both processes, microseconds a request; fairness: turns of the
connection with the fewest / with the most; failed: requests that failed or were
lost in all rounds, unet / kernel`, rows, cell, besides("cpu ", serviceCPU, 1), fair("fair unet", OnUnet), fair("kernel", OnKernel),
		value("failed", func(r ServiceRow) string { return fmt.Sprintf("%d / %d", r.failed[OnUnet], r.failed[OnKernel]) }))
	printTable(w, "Ratios unet / kernel of all cells", serviceFigures, text("figure", func(f serviceFigure) string { return f.name }),
		value("geometric mean", func(f serviceFigure) string { mean, _ := overall(rows, f); return fmt.Sprintf("%.2f", mean) }),
		value("worst", func(f serviceFigure) string {
			_, worst := overall(rows, f)
			return fmt.Sprintf("%.2f", worst.of(f).ratio.Median)
		}),
		value("worst cell", func(f serviceFigure) string { _, worst := overall(rows, f); return worst.String() }))
}

// PrintServiceGoals writes the goals of services on one host.
func PrintServiceGoals(w io.Writer, rows []ServiceRow) {
	var goals []Goal
	for _, service := range []string{plan.HTTP, plan.Redis} {
		of := slices.DeleteFunc(slices.Clone(rows), func(r ServiceRow) bool { return r.Service != service })
		if mean, _ := overall(of, serviceRate); len(of) > 0 {
			goals = append(goals, Goal{Figure: service, Attach: "port", Bound: 2, Measured: mean, Known: true, format: "%.2f"})
		}
	}
	if len(goals) > 0 {
		printGoals(w, "Figures of services to reach (requests a second on unet / on the kernel's sockets\nover lo, geometric mean of the service's cells)", goals)
	}
}

// overall is the geometric mean of a ratio over all cells, and the cell in which unet is worst.
func overall(rows []ServiceRow, f serviceFigure) (mean float64, worst ServiceRow) {
	sum := 0.0
	for i, r := range rows {
		v, w := r.of(f).ratio.Median, worst.of(f).ratio.Median
		sum += math.Log(v)
		if i == 0 || v < w != f.lower && v != w {
			worst = r
		}
	}
	return math.Exp(sum / float64(len(rows))), worst
}
