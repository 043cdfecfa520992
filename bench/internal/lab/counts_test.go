//go:build linux

package lab

import (
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
)

// TestMain lets the test binary be the lab's children.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "child" {
		if RunChild(os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestCountersAreOfTheMeasuredSection: each process is counted from its mark to its end, with all
// of its threads and without its start: a counter of processor time shows what getrusage does.
func TestCountersAreOfTheMeasuredSection(t *testing.T) {
	netlab.RequireXDP(t)
	cpus, err := netlab.Processors()
	if err != nil || len(cpus) < 2 {
		t.Skip("needs two processors")
	}
	l, err := Open(t.Context(), Config{Plain: true, Events: perf.Clock, ClientCPU: cpus[0], ServerCPU: cpus[1]})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	udp, err := transport.ByName(transport.KernelUDP)
	if err != nil {
		t.Fatal(err)
	}
	j := workload.Job{Bench: workload.RTT, Attach: transport.None, Wait: "spin", Size: 64, Batch: 1, N: 5000, WarmUp: 100, Limit: time.Minute, Timeout: 5 * time.Second}
	out, err := l.Measure(t.Context(), udp, plan.Pair, j, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []workload.Report{out.Client, out.Server} {
		if r.Counts == nil {
			t.Fatalf("no counts: %s", r.Uncounted)
		}
		for i, n := range r.Counts {
			if used := uint64(r.CPU); n < used-used/10 || n > used+used/10 {
				t.Errorf("counter %d: %d ns, getrusage: %d", i, n, used)
			}
		}
	}
}
