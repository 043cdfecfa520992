package report

import (
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

func TestBenchmarkLines(t *testing.T) {
	us, calls := 2.5, 2.0
	r := Record{Bench: workload.RTT, Transport: "msg", Attach: "port", Place: plan.Pair, Wait: "spin", Size: 64, Batch: 1, Round: 3, N: 1000,
		MeanUS: &us, P50US: &us, P99US: &us, P999US: &us, MsgsPerS: 4e5, CPUUSPerMsg: 5, SyscallsPerMsg: &calls, AllocsPerMsg: 0.5, Lost: 1}
	oneWay := r
	oneWay.Bench, oneWay.Place, oneWay.MeanUS, oneWay.P50US, oneWay.P99US, oneWay.SyscallsPerMsg = workload.OneWay, plan.Local, nil, nil, nil, nil
	connect := r
	connect.Bench, connect.Connections = workload.Connect, 4
	silent := r
	silent.N = 0
	flow := Flow{Bench: workload.Goodput, Link: "loss 1 %, delay 1ms", From: "tcp", To: "go-tcp", Attach: "port", Wait: "spin", Bytes: 5, MbitPerS: 8, RTTMS: 2, Retransmitted: 7, CPUMSPerMB: 3}
	share := flow
	share.Bench, share.Beside, share.Share = workload.Share, "tcp", 0.5
	for _, c := range []struct {
		line Line
		want string
	}{
		{r, "BenchmarkRTT/transport=msg/attach=port/wait=spin/size=64 1000 2500 ns/op 2500 p50-ns/op 2500 p99-ns/op 5000 cpu-ns/op 0.5 allocs/op 2 syscalls/op 1 lost\n"},
		{oneWay, "BenchmarkOneWay/transport=msg/attach=port/wait=spin/size=64/batch=1/place=local 1000 400000 msgs/s 5000 cpu-ns/op 0.5 allocs/op 1 lost\n"},
		{connect, "BenchmarkConnect/transport=msg/attach=port/wait=spin/size=64/connections=4 1000 2500 ns/op 2500 p50-ns/op 2500 p99-ns/op 400000 conns/s 5000 cpu-ns/op 0.5 allocs/op 2 syscalls/op 1 lost\n"},
		{silent, ""},
		{Record{Bench: workload.Bandwidth, Transport: "tcp", Attach: "queue", Place: plan.Pair, Wait: "spin", Size: 100, MTU: 9000, N: 1000, GbPerS: 8, CPUSPerGB: 2},
			"BenchmarkBandwidth/transport=tcp/attach=queue/wait=spin/size=100/mtu=9000 10 1e+09 B/s 2 cpu-ns/B 0 lost-B\n"},
		{Memory{Transport: "msg", Attach: "port", With: 3, Without: 2}, "BenchmarkMemory/transport=msg/attach=port 1 3 resident-B 2 bare-resident-B\n"},
		{Idle{Transport: "tcp", Attach: "port", N: 9, Client: 3, Server: 2}, "BenchmarkIdleConnection/transport=tcp/attach=port 9 3 client-B/conn 2 server-B/conn\n"},
		{Opening{Others: 255, N: 51, MedianMS: 3, MaxMS: 4}, "BenchmarkOpen/others=255 51 3e+06 p50-ns/op 4e+06 max-ns/op\n"},
		{flow, "BenchmarkGoodput/link=loss1%,delay1ms/from=tcp/to=go-tcp/attach=port/wait=spin 1 1e+06 B/s 7 retransmitted-B 2e+06 rtt-ns 3 cpu-ns/B\n"},
		{share, "BenchmarkShare/link=loss1%,delay1ms/from=tcp/to=go-tcp/attach=port/wait=spin/beside=tcp 1 1e+06 B/s 7 retransmitted-B 2e+06 rtt-ns 3 cpu-ns/B 0.5 share\n"},
		{Flow{}, ""},
	} {
		var b strings.Builder
		if err := WriteBenchmark(&b, c.line); err != nil || b.String() != c.want {
			t.Errorf("%v\ngot  %swant %s", err, b.String(), c.want)
		}
	}
}
