package report

import (
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

func bulkRecords(name, attach string, mtu, size int, gb ...float64) (rs []Record) {
	batch := 1
	if name == transport.Floor {
		batch = plan.FloodBatch
	}
	for i, f := range gb {
		rs = append(rs, Record{Bench: workload.Bandwidth, Transport: name, Attach: attach, Place: plan.Pair, Wait: "spin",
			Size: size, Batch: batch, MTU: mtu, Round: i + 1, N: 1 << 20, GbPerS: f})
	}
	return rs
}

func summary(groups ...[]Record) Summary {
	var planned []Key
	var all []Record
	for _, g := range groups {
		planned = append(planned, g[0].Key())
		all = append(all, g...)
	}
	return Summarize(planned, all)
}

func TestBandwidthRecord(t *testing.T) {
	tr, err := transport.BulkByName(transport.TCP)
	if err != nil {
		t.Fatal(err)
	}
	c := plan.Combination{Bench: workload.Bandwidth, Transport: tr, Attach: "port", Place: plan.Pair, Wait: "spin", Size: 1000, Batch: 1, MTU: 9000}
	r := NewRecord(c, workload.Job{}, 1, lab.Outcome{
		Client: workload.Report{Sent: 6_000_000, CPU: 10 * time.Millisecond, Mallocs: 100},
		Server: workload.Report{N: 5_999_000, InWindow: 5_000_000, Elapsed: 10 * time.Millisecond, CPU: 5 * time.Millisecond},
	}, nil)
	if r.GbPerS != 4 || r.MsgsPerS != 500_000 || r.Lost != 1000 || r.N != 5_999_000 || r.MTU != 9000 || r.CPUSPerGB != 3 || r.CPUUSPerMsg != 3 || r.AllocsPerMsg != 0.02 {
		t.Errorf("got %+v", r)
	}
}

func TestHalfPowerIsBetweenTwoSizes(t *testing.T) {
	for _, c := range []struct {
		gb   []float64
		want string
	}{
		{[]float64{1, 4, 8, 8}, "256"}, // sizes are 64, 256, 1024, 4096
		{[]float64{1, 2, 8, 8}, "512"},
		{[]float64{5, 6, 8, 8}, "<=64"},
		{[]float64{5}, ""},
	} {
		var rows []Row
		for i, f := range c.gb {
			rows = append(rows, Row{Key: Key{Size: 64 << (2 * i)}, GbPerS: Spread{Median: f}})
		}
		if got := halfPower(rows); got != c.want {
			t.Errorf("%v: %s, want %s", c.gb, got, c.want)
		}
	}
}

func TestBandwidthTable(t *testing.T) {
	var out strings.Builder
	summary(bulkRecords(transport.TCP, "port", 9000, 64, 1, 1, 3), bulkRecords(transport.TCP, "port", 9000, 256, 4)).PrintBandwidth(&out)
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"MTU 9000", "tcp port spin 64 1.00 (1.00..3.00)", "tcp port spin 256 4.00 (4.00..4.00)", " 128 "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
