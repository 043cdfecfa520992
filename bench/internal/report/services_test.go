package report

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

// matrix are three rounds of two cells, and one round of a third one on one network.
func matrix() (cells []plan.ServiceCell, all []Service) {
	grpc := plan.ServiceCell{Service: plan.GRPC, Connections: 16, Procs: 1}
	stream := plan.ServiceCell{Service: plan.GRPCStream, Connections: 64, Procs: 2}
	quic := plan.ServiceCell{Service: plan.QUIC, Connections: 1, Procs: 2}
	add := func(c plan.ServiceCell, network string, round int, perS, us, fairness float64) {
		all = append(all, Service{ServiceCell: c, Network: network, Round: round,
			Result: load.Result{N: 1, PerS: perS, P50US: us, P99US: 2 * us, CPUUS: 3 * us, Fairness: fairness, Failed: 1, Lost: 2}})
	}
	for i, v := range []float64{1, 10, 100} {
		add(grpc, OnUnet, i+1, 100_000*v, 1000*v, 0)
		add(grpc, OnKernel, i+1, 200_000*v, 500*v, float64(i)/10)
		add(stream, OnKernel, i+1, 1000*v, 1000, 1)
		add(stream, OnUnet, i+1, (1000+1000*float64(i+1))*v, 125, 0.5)
	}
	add(quic, OnUnet, 1, 1, 1, 1) // the run ended
	return []plan.ServiceCell{grpc, stream, quic}, all
}

// TestServicesAreComparedWithinRounds: ratios are of one cell and round, and a cell without both networks is left out.
func TestServicesAreComparedWithinRounds(t *testing.T) {
	rows := SummarizeServices(matrix())
	if len(rows) != 2 {
		t.Fatalf("%+v", rows)
	}
	if r := rows[0]; r.Service != plan.GRPC || len(r.unet) != 3 || len(r.kernel) != 3 || r.ratio(serviceRate) != (Spread{0.5, 0.5, 0.5}) || r.ratio(serviceP99).Median != 2 {
		t.Errorf("%+v", r)
	}
	if r := rows[1]; r.ratio(serviceRate) != (Spread{3, 2, 4}) || r.ratio(serviceCPU).Median != 0.125 {
		t.Errorf("%+v", r)
	}
	mean, worst := overall(rows, serviceRate)
	if math.Abs(mean-math.Sqrt(0.5*3)) > 1e-9 || worst.Service != plan.GRPC {
		t.Errorf("mean %v, worst %v", mean, worst)
	}
	mean, worst = overall(rows, serviceP99)
	if math.Abs(mean-0.5) > 1e-9 || worst.Service != plan.GRPC {
		t.Errorf("mean %v, worst %v", mean, worst)
	}
	if _, worst := overall(rows[1:], serviceCPU); worst.Service != plan.GRPCStream {
		t.Errorf("worst of one is %v", worst)
	}
}

func TestServiceTablesFitATerminal(t *testing.T) {
	var out strings.Builder
	PrintServices(&out, nil)
	if out.Len() > 0 {
		t.Errorf("%s", &out)
	}
	PrintServices(&out, SummarizeServices(matrix()))
	for _, want := range []string{"medians over 3 rounds", "3.00  (2.00..4.00)", "9 / 9", " 2000000 ", " 0.00    0.10 ", "grpc, 16 connections, GOMAXPROCS 1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q:\n%s", want, &out)
		}
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 80+len("\n") {
			t.Errorf("more than 80 columns: %s", line)
		}
	}
}

// TestServiceGoals: the mean of the cells of each service that was measured is compared with its goal.
func TestServiceGoals(t *testing.T) {
	var all []Service
	var cells []plan.ServiceCell
	for i, ratio := range []float64{1, 9} {
		c := plan.ServiceCell{Service: plan.HTTP, Connections: i + 1, Procs: 1}
		cells = append(cells, c)
		for network, perS := range map[string]float64{OnKernel: 10, OnUnet: 10 * ratio} {
			all = append(all, Service{ServiceCell: c, Network: network, Round: 1, Result: load.Result{N: 1, PerS: perS, P50US: 1, P99US: 1, CPUUS: 1}})
		}
	}
	var out strings.Builder
	if PrintServiceGoals(&out, SummarizeServices(cells, all)); !strings.Contains(out.String(), "http    port    >= 2.00      3.00  ok\n") || strings.Contains(out.String(), plan.Redis) {
		t.Errorf("%s", &out)
	}
	out.Reset()
	if PrintServiceGoals(&out, SummarizeServices(matrix())); out.Len() > 0 {
		t.Errorf("%s", &out)
	}
}

func TestServiceIsALine(t *testing.T) {
	s := Service{Bench: "services", ServiceCell: plan.ServiceCell{Service: plan.NATS, Connections: 2, Procs: 1}, Network: OnUnet, Place: workload.Local, Neighbours: true, Wait: "spin", Round: 7,
		Result: load.Result{N: 40, Failed: 1, Lost: 2, PerS: 20, P50US: 3, P99US: 9, CPUUS: 25, Least: 10, Most: 30, Fairness: 0.25}}
	b, err := json.Marshal(s)
	const want = `{"bench":"services","service":"nats","connections":2,"procs":1,"network":"unet","place":"local","neighbours":true,"wait":"spin","round":7,"n":40,"failed":1,"lost":2,` +
		`"requests_per_s":20,"p50_us":3,"p99_us":9,"cpu_us_per_request":25,"least_turns":10,"most_turns":30,"fairness":0.25}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	var line strings.Builder
	const benchmark = "BenchmarkServices/service=nats/network=unet/connections=2/procs=1/neighbours=true/wait=spin/place=local 40 3000 p50-ns/op 9000 p99-ns/op 25000 cpu-ns/op 20 requests/s 0.25 fairness 3 lost\n"
	if err := WriteBenchmark(&line, s); err != nil || line.String() != benchmark {
		t.Errorf("%s, %v", &line, err)
	}
}
