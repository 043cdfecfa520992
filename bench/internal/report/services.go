package report

import (
	"fmt"

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
	Bench       string  `json:"bench"` // services
	Service     string  `json:"service"`
	Network     string  `json:"network"` // unet or kernel
	Connections int     `json:"connections"`
	Procs       int     `json:"procs"` // GOMAXPROCS; 1: server and client are pinned to a processor each
	Place       string  `json:"place"` // pair or local
	Neighbours  bool    `json:"neighbours"`
	Wait        string  `json:"wait"` // of unet
	Round       int     `json:"round"`
	N           int     `json:"n"` // requests that were answered
	Failed      int     `json:"failed"`
	Lost        int     `json:"lost"`
	PerS        float64 `json:"requests_per_s"`
	P50US       float64 `json:"p50_us"`
	P99US       float64 `json:"p99_us"`
	CPUUS       float64 `json:"cpu_us_per_request"` // user and system time of both processes
	Least       int     `json:"least_turns"`        // requests of the connection with the fewest
	Most        int     `json:"most_turns"`
	Fairness    float64 `json:"fairness"` // Least / Most
}

// NewService is the line of what a client has measured.
func NewService(c plan.ServiceCell, network, place, wait string, neighbours bool, round int, r load.Result) Service {
	return Service{
		Bench: "services", Service: c.Service, Network: network, Connections: c.Connections, Procs: c.Procs,
		Place: place, Neighbours: neighbours, Wait: wait, Round: round,
		N: r.Requests, Failed: r.Failed, Lost: r.Lost,
		PerS:  float64(r.Requests) / r.Elapsed.Seconds(),
		P50US: float64(r.P50) / 1e3, P99US: float64(r.P99) / 1e3,
		CPUUS: float64(r.CPU) / 1e3 / float64(max(1, r.Requests)),
		Least: r.Least, Most: r.Most, Fairness: r.Fairness(),
	}
}

// cell is the cell of the matrix that s belongs to.
func (s Service) cell() plan.ServiceCell {
	return plan.ServiceCell{Service: s.Service, Connections: s.Connections, Procs: s.Procs}
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
