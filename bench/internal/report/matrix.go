package report

import (
	"fmt"
	"io"
	"math"

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
			r.by[f.name], _ = contrastOf(rounds[OnKernel], rounds[OnUnet])
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
	least, most := rows[0].of(serviceRate).rounds, 0 // they differ if the run was interrupted
	for _, r := range rows {
		n := r.of(serviceRate).rounds
		least, most = min(least, n), max(most, n)
	}
	fmt.Fprintf(w, "\nServices on unet and on the kernel's sockets: medians over %s\n", roundsText(least, most))
	fmt.Fprintln(w, "ratio is unet / kernel in the same round, with its lowest and highest value.")
	fmt.Fprintln(w, "procs is GOMAXPROCS; with 1, server and client are pinned to a processor each.")
	fmt.Fprintln(w, "\nRequests answered a second")
	printServiceGrid(w, rows, []string{"unet", "kernel", "ratio", ""}, func(r ServiceRow) []string {
		return append(besides("%.0f", r.of(serviceRate)), r.of(serviceRate).ratio.cells("%.2f")[1])
	})
	fmt.Fprintln(w, "\nTime of a request, microseconds")
	printServiceGrid(w, rows, []string{"p50 unet", "kernel", "ratio", "p99 unet", "kernel", "ratio"}, func(r ServiceRow) []string {
		return append(besides("%.0f", r.of(serviceP50)), besides("%.0f", r.of(serviceP99))...)
	})
	fmt.Fprintln(w, "\nProcessor time of both processes, microseconds a request; fairness: turns of the")
	fmt.Fprintln(w, "connection with the fewest / with the most; failed: requests that failed or were")
	fmt.Fprintln(w, "lost in all rounds, unet / kernel")
	printServiceGrid(w, rows, []string{"cpu unet", "kernel", "ratio", "fair unet", "kernel", "failed"}, func(r ServiceRow) []string {
		return append(besides("%.1f", r.of(serviceCPU)), fmt.Sprintf("%.2f", r.fairness[OnUnet]), fmt.Sprintf("%.2f", r.fairness[OnKernel]),
			fmt.Sprintf("%d / %d", r.failed[OnUnet], r.failed[OnKernel]))
	})
	fmt.Fprintln(w, "\nRatios unet / kernel of all cells")
	g := grid{left: 1}
	g.add("figure", "geometric mean", "worst", "worst cell")
	for _, f := range serviceFigures {
		mean, worst := overall(rows, f)
		g.add(f.name, fmt.Sprintf("%.2f", mean), fmt.Sprintf("%.2f", worst.of(f).ratio.Median), worst.String())
	}
	g.print(w)
}

// besides are the medians of both networks and of their ratio.
func besides(format string, c contrast) []string {
	return []string{fmt.Sprintf(format, c.other.Median), fmt.Sprintf(format, c.base.Median), fmt.Sprintf("%.2f", c.ratio.Median)}
}

func printServiceGrid(w io.Writer, rows []ServiceRow, heading []string, cells func(ServiceRow) []string) {
	g := grid{left: 1}
	g.add(append([]string{"service", "conns", "procs"}, heading...)...)
	for _, r := range rows {
		g.add(append([]string{r.Service, fmt.Sprint(r.Connections), fmt.Sprint(r.Procs)}, cells(r)...)...)
	}
	g.print(w)
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
