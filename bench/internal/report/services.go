package report

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Networks of a service.
const (
	OnUnet   = "unet"
	OnKernel = "kernel"
)

// Service is one round of a service on a network, and one line of JSON.
type Service struct {
	Bench string `json:"bench"` // services
	plan.ServiceCell
	Network    string `json:"network"` // unet or kernel
	Place      string `json:"place"`   // pair or local
	Neighbours bool   `json:"neighbours"`
	Wait       string `json:"wait"` // of unet
	Round      int    `json:"round"`
	load.Result
}

func (s Service) benchmark() (string, int, []figure) {
	name := fmt.Sprintf("Services/service=%s/network=%s/connections=%d/procs=%d/neighbours=%t/wait=%s", s.Service, s.Network, s.Connections, s.Procs, s.Neighbours, s.Wait)
	if s.Place != workload.Pair {
		name += "/place=" + s.Place
	}
	return name, s.N,
		[]figure{{s.P50US * 1e3, "p50-ns/op"}, {s.P99US * 1e3, "p99-ns/op"}, {s.CPUUS * 1e3, "cpu-ns/op"}, {s.PerS, "requests/s"},
			{s.Fairness, "fairness"}, {float64(s.Failed + s.Lost), "lost"}}
}

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
)

// ServiceRow is a cell of the matrix over the rounds that have both networks: one at least.
type ServiceRow struct {
	plan.ServiceCell
	unet, kernel []Service // of the same rounds
}

// ratio is the figure on unet / on the kernel, of each round.
func (r ServiceRow) ratio(f serviceFigure) Spread {
	var all []float64
	for i := range r.unet {
		all = append(all, f.of(r.unet[i])/f.of(r.kernel[i]))
	}
	return spread(all)
}

// SummarizeServices compares the networks in the cells that have a round with both.
func SummarizeServices(cells []plan.ServiceCell, all []Service) (rows []ServiceRow) {
	for _, c := range cells {
		r := ServiceRow{ServiceCell: c}
		for _, u := range all {
			i := slices.IndexFunc(all, func(k Service) bool { return k.ServiceCell == c && k.Network == OnKernel && k.Round == u.Round })
			if u.ServiceCell == c && u.Network == OnUnet && i >= 0 {
				r.unet, r.kernel = append(r.unet, u), append(r.kernel, all[i])
			}
		}
		if len(r.unet) > 0 {
			rows = append(rows, r)
		}
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
	onUnet := func(of func(Service) float64) func(ServiceRow) Spread {
		return func(r ServiceRow) Spread { return over(r.unet, of) }
	}
	onKernel := func(of func(Service) float64) func(ServiceRow) Spread {
		return func(r ServiceRow) Spread { return over(r.kernel, of) }
	}
	// besides are the medians of both networks and of their ratio.
	besides := func(head string, f serviceFigure, digits int) []column[ServiceRow] {
		return slices.Concat(median(head+"unet", onUnet(f.of), 1, digits), median("kernel", onKernel(f.of), 1, digits),
			median("ratio", func(r ServiceRow) Spread { return r.ratio(f) }, 1, 2))
	}
	fairness := func(s Service) float64 { return s.Fairness }
	failed := func(all []Service) (n int) {
		for _, s := range all {
			n += s.Failed + s.Lost
		}
		return n
	}
	fmt.Fprintf(w, `
Services on unet and on the kernel's sockets: medians over %s
ratio is unet / kernel in the same round, with its lowest and highest value.
procs is GOMAXPROCS; with 1, server and client are pinned to a processor each.
`, roundsText(rows, func(r ServiceRow) int { return len(r.unet) })) // they differ if the run was interrupted
	printTable(w, "Requests answered a second", rows, cell, besides("", serviceRate, 0), extremes("", func(r ServiceRow) Spread { return r.ratio(serviceRate) }, 1, 2)[1:])
	printTable(w, "Time of a request, microseconds", rows, cell, besides("p50 ", serviceP50, 0), besides("p99 ", serviceP99, 0))
	printTable(w, `Processor time of both processes, microseconds a request; fairness: turns of the
connection with the fewest / with the most; failed: requests that failed or were
lost in all rounds, unet / kernel`, rows, cell, besides("cpu ", serviceCPU, 1), median("fair unet", onUnet(fairness), 1, 2), median("kernel", onKernel(fairness), 1, 2),
		value("failed", func(r ServiceRow) string { return fmt.Sprintf("%d / %d", failed(r.unet), failed(r.kernel)) }))
	printTable(w, "Ratios unet / kernel of all cells", []serviceFigure{serviceRate, serviceP50, serviceP99, serviceCPU}, text("figure", func(f serviceFigure) string { return f.name }),
		value("geometric mean", func(f serviceFigure) string { mean, _ := overall(rows, f); return fmt.Sprintf("%.2f", mean) }),
		value("worst", func(f serviceFigure) string {
			_, worst := overall(rows, f)
			return fmt.Sprintf("%.2f", worst.ratio(f).Median)
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
		v, w := r.ratio(f).Median, worst.ratio(f).Median
		sum += math.Log(v)
		if i == 0 || v < w != f.lower && v != w {
			worst = r
		}
	}
	return math.Exp(sum / float64(len(rows))), worst
}
