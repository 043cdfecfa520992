package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
)

// Serving is one round of a service, asked by a program, and one line of JSON.
type Serving struct {
	Bench   string  `json:"bench"`   // services
	Service string  `json:"service"` // what was asked
	Network string  `json:"network"` // unet or kernel
	Procs   int     `json:"procs"`   // GOMAXPROCS; 0: one pinned processor for each process
	Wait    string  `json:"wait"`
	Round   int     `json:"round"`
	N       int     `json:"n"` // requests that were answered
	Failed  int     `json:"failed"`
	PerS    float64 `json:"requests_per_s"`
	P50US   float64 `json:"p50_us"`
	P99US   float64 `json:"p99_us"`
	CPUUS   float64 `json:"cpu_us_per_request"` // of both processes, from their start to their end
}

// Networks of Serving.
const (
	OnUnet   = "unet"
	OnKernel = "kernel"
)

// Services, in the order of the tables.
const (
	HTTP    = "http"
	RespSet = "resp set"
	RespGet = "resp get"
	QUIC    = "quic"
)

var serviceOrder = []string{HTTP, RespSet, RespGet, QUIC}

// Key says what was measured.
func (s Serving) Key() string {
	return fmt.Sprintf("%s on %s, GOMAXPROCS %d", s.Service, s.Network, s.Procs)
}

func (s Serving) benchmark() (string, int, []figure) {
	return fmt.Sprintf("Services/service=%s/network=%s/procs=%d/wait=%s", s.Service, s.Network, s.Procs, s.Wait), s.N,
		[]figure{{s.P50US * 1e3, "p50-ns/op"}, {s.P99US * 1e3, "p99-ns/op"}, {s.CPUUS * 1e3, "cpu-ns/op"}, {s.PerS, "requests/s"}, {float64(s.Failed), "lost"}}
}

// servingFigure is a figure of Serving.
type servingFigure struct {
	name, format string
	of           func(Serving) float64
}

var (
	requestsPerS = servingFigure{"requests/s", "%.0f", func(s Serving) float64 { return s.PerS }}
	requestP50   = servingFigure{"p50 us", "%.1f", func(s Serving) float64 { return s.P50US }}
	requestP99   = servingFigure{"p99 us", "%.1f", func(s Serving) float64 { return s.P99US }}
	requestCPU   = servingFigure{"cpu us", "%.2f", func(s Serving) float64 { return s.CPUUS }}
)

// compareServing compares the two networks.
func compareServing(all []Serving, service string, procs int, f servingFigure) (contrast, bool) {
	networks := map[string]map[int]float64{OnUnet: {}, OnKernel: {}}
	for _, s := range all {
		if s.Service == service && s.Procs == procs {
			networks[s.Network][s.Round] = f.of(s)
		}
	}
	return contrastOf(networks[OnKernel], networks[OnUnet])
}

// servingCase is a service with a GOMAXPROCS.
type servingCase struct {
	service string
	procs   int
}

// servingCases are those that were measured, in the order of the tables.
func servingCases(all []Serving) (cases []servingCase) {
	for _, s := range all {
		if c := (servingCase{s.Service, s.Procs}); !slices.Contains(cases, c) {
			cases = append(cases, c)
		}
	}
	slices.SortFunc(cases, func(a, b servingCase) int {
		return cmp.Or(cmp.Compare(a.procs, b.procs), cmp.Compare(slices.Index(serviceOrder, a.service), slices.Index(serviceOrder, b.service)))
	})
	return cases
}

// PrintServing writes the table.
func PrintServing(w io.Writer, all []Serving) {
	failed, n := map[string]int{}, 0
	for _, s := range all {
		failed[s.Network] += s.Failed
		n += s.N
	}
	least, most := math.MaxInt, 0 // rounds that have both networks: a run may have been ended
	for _, c := range servingCases(all) {
		v, _ := compareServing(all, c.service, c.procs, requestsPerS)
		least, most = min(least, v.rounds), max(most, v.rounds)
	}
	rounds := fmt.Sprint(most)
	if least < most {
		rounds = fmt.Sprintf("%d to %d", least, most)
	}
	fmt.Fprintf(w, "\nServices on unet and on the kernel's sockets, on the same hosts and processors: medians over %s rounds (lowest..highest)\n", rounds)
	fmt.Fprintln(w, "GOMAXPROCS 0: server and client are pinned to a processor each. The ratio is of each round. cpu is of both processes, a request.")
	g := grid{left: 1}
	g.add("service", "GOMAXPROCS", "figure", "unet", "", "kernel", "", "unet / kernel", "")
	for _, c := range servingCases(all) {
		for _, f := range []servingFigure{requestsPerS, requestP50, requestP99, requestCPU} {
			if v, ok := compareServing(all, c.service, c.procs, f); ok {
				g.add(slices.Concat([]string{c.service, fmt.Sprint(c.procs), f.name}, v.other.cells(f.format), v.base.cells(f.format), v.ratio.cells("%.2f"))...)
			}
		}
	}
	g.print(w)
	fmt.Fprintf(w, "%d requests were answered; failed: %d on unet, %d on the kernel's sockets\n", n, failed[OnUnet], failed[OnKernel])
}

// ServingGoalsTitle is the title of ServingGoals.
const ServingGoalsTitle = "Figures to reach (medians of the ratios of interleaved rounds, unet / kernel)"

// servingGoals are the bounds by service.
var servingGoals = []struct {
	service, figure string
	of              servingFigure
	bound           float64
	atMost          bool
}{
	{HTTP, "http, wrk with 64 connections, requests/s", requestsPerS, 1.2, false},
	{RespSet, "resp, redis-benchmark -c 50, SET, requests/s", requestsPerS, 1.3, false},
	{RespGet, "resp, redis-benchmark -c 50, GET, requests/s", requestsPerS, 1.3, false},
	{RespSet, "resp, redis-benchmark -c 50, SET, p99", requestP99, 1.0, true},
	{RespGet, "resp, redis-benchmark -c 50, GET, p99", requestP99, 1.0, true},
	{QUIC, "quic-go, one stream, 64 bytes, RTT p50", requestP50, 0.8, true},
}

// ServingGoals are about the services that were measured.
func ServingGoals(all []Serving) (goals []Goal) {
	cases := servingCases(all)
	for _, c := range cases {
		for _, g := range servingGoals {
			if g.service != c.service {
				continue
			}
			v, ok := compareServing(all, c.service, c.procs, g.of)
			goals = append(goals, v.goal(fmt.Sprintf("%s, GOMAXPROCS %d", g.figure, c.procs), g.bound, g.atMost, ok))
		}
	}
	return goals
}
