//go:build linux

package report

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want Spread
	}{
		{nil, Spread{}},
		{[]float64{7}, Spread{7, 7, 7}},
		{[]float64{9, 1, 4}, Spread{4, 1, 9}},
		{[]float64{9, 1, 4, 5}, Spread{4.5, 1, 9}},
	} {
		in := slices.Clone(c.in)
		if got := spread(in); got != c.want || !slices.Equal(in, c.in) {
			t.Errorf("%v: got %v, left %v", c.in, got, in)
		}
	}
}

func caseOf(t *testing.T, b workload.Bench, name, attach string, batch int) workload.Case {
	t.Helper()
	tr, err := transport.ByName(b, name)
	if err != nil {
		t.Fatal(err)
	}
	return workload.Case{Bench: b, Transport: name, Attach: attach, Place: workload.Pair, Wait: tr.Waits[0], Size: 64, Batch: batch}
}

func TestRecordFigures(t *testing.T) {
	out := lab.Outcome{
		Client: workload.Report{
			N: 1000, Sent: 1010, Lost: 2, Elapsed: 10 * time.Millisecond, CPU: 3 * time.Millisecond, Mallocs: 4,
			Latency: workload.Latency{Mean: 2500, P50: 2000, P99: 3000, P999: 4000},
			Stalls:  1, Failed: 3, Failure: "dial: refused",
		},
		Server: workload.Report{
			N: 1000, Duplicates: 5, Failed: 1, Failure: "request: reset", Elapsed: 5 * time.Millisecond, InWindow: 900, CPU: 2 * time.Millisecond, Mallocs: 6,
		},
	}
	calls := 2.5
	job := workload.Effort{Window: 128, Credit: 32, Connections: 4}
	required := []string{"bench", "transport", "attach", "wait", "size", "round", "n", "lost", "mean_us", "p50_us", "p99_us",
		"p999_us", "msgs_per_s", "cpu_us_per_msg", "syscalls_per_msg", "allocs_per_msg"}
	for _, c := range []struct {
		bench workload.Bench
		want  map[string]any
		also  []string
	}{
		{workload.RTT, map[string]any{"n": 1000.0, "lost": 2.0, "mean_us": 2.5, "p50_us": 2.0, "p99_us": 3.0, "p999_us": 4.0,
			"msgs_per_s": 100_000.0, "cpu_us_per_msg": 5.0, "syscalls_per_msg": 2.5, "allocs_per_msg": 0.01}, nil},
		{workload.Rate, map[string]any{"n": 1000.0, "lost": 10.0, "duplicates": 5.0,
			"msgs_per_s": 180_000.0, "cpu_us_per_msg": 5.0}, []string{"duplicates"}},
		{workload.Connect, map[string]any{"n": 1000.0, "lost": 2.0, "p50_us": 2.0, "p99_us": 3.0, "msgs_per_s": 100_000.0, "cpu_us_per_msg": 5.0,
			"syscalls_per_msg": 2.5, "allocs_per_msg": 0.01, "connections": 4.0, "failed": 3.0, "server_failed": 1.0, "failure": "dial: refused"}, nil},
		{workload.OneWay, map[string]any{"n": 1000.0, "lost": 10.0, "credit_window": 128.0, "credit_every": 32.0, "stalls": 1.0,
			"msgs_per_s": 100_000.0}, []string{"duplicates", "credit_window"}},
	} {
		b, err := json.Marshal(NewRecord(caseOf(t, c.bench, transport.Message, "port", 1), job, 3, out, &calls))
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		for _, key := range append(required, c.also...) {
			if _, ok := got[key]; !ok {
				t.Errorf("%s: no key %s in %s", c.bench, key, b)
			}
		}
		for key, want := range c.want {
			if got[key] != want {
				t.Errorf("%s: %s is %v, want %v", c.bench, key, got[key], want)
			}
		}
	}
	r := NewRecord(caseOf(t, workload.RTT, transport.KernelUDP, workload.None, 1), job, 1, out, nil)
	if b, _ := json.Marshal(r); !strings.Contains(string(b), `"syscalls_per_msg":null`) {
		t.Errorf("calls that were not counted: %s", b)
	}
}

func TestRecordWithoutMessagesIsValidJSON(t *testing.T) {
	for _, b := range []workload.Bench{workload.RTT, workload.Rate, workload.OneWay, workload.Connect} {
		r := NewRecord(caseOf(t, b, transport.Message, "port", 1), workload.Effort{}, 1,
			lab.Outcome{Client: workload.Report{Sent: 5, Mallocs: 1, CPU: 1}}, nil)
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	}
}

// records are three rounds of a figure: p50 in rtt, else messages a second.
func records(t *testing.T, b workload.Bench, name, attach string, batch int, figures ...float64) []Record {
	t.Helper()
	c := caseOf(t, b, name, attach, batch)
	var rs []Record
	for i, f := range figures {
		r := Record{Case: c, Round: i + 1, N: 100}
		if b == workload.RTT {
			r.MeanUS, r.P50US, r.P99US, r.P999US = &f, &f, &f, &f
		} else {
			r.MsgsPerS = f
		}
		rs = append(rs, r)
	}
	return rs
}

func testSummary(t *testing.T) Summary {
	var rs []Record
	for _, attach := range []string{"queue", "port"} {
		rs = append(rs, records(t, workload.RTT, transport.Floor, attach, 1, 2.5, 2, 3)...)
		rs = append(rs, records(t, workload.RTT, transport.Message, attach, 1, 2.6, 2.8, 2.75)...)
		rs = append(rs, records(t, workload.RTT, transport.UDP, attach, 1, 5, 5, 5)...)
		rs = append(rs, records(t, workload.RTT, transport.TCP, attach, 1, 3.5, 3, 3)...)
		rs = append(rs, records(t, workload.OneWay, transport.TCP, attach, 1, 2e6, 2e6)...)
		rs = append(rs, records(t, workload.Connect, transport.TCP, attach, 1, 30e3, 27e3, 20e3)...)
		sleeping := records(t, workload.RTT, transport.TCP, attach, 1, 3, 4, 5)
		for i := range sleeping {
			sleeping[i].Wait = "adaptive"
		}
		rs = append(rs, sleeping...)
		rs = append(rs, records(t, workload.Rate, transport.Message, attach, 32, 1.2e6, 1.2e6)...)
		rs = append(rs, records(t, workload.OneWay, transport.Message, attach, 1, 1e6, 1e6)...)
	}
	rs = append(rs, records(t, workload.RTT, transport.KernelUDP, workload.None, 1, 4, 5, 6)...)
	rs = append(rs, records(t, workload.RTT, transport.KernelTCP, workload.None, 1, 6, 6, 7)...)
	rs = append(rs, records(t, workload.OneWay, transport.KernelTCP, workload.None, 1, 1e6, 1e6)...)
	rs = append(rs, records(t, workload.RTT, transport.GoTCP, workload.None, 1, 30, 36, 60)...)
	connects := records(t, workload.Connect, transport.KernelTCP, workload.None, 1, 30e3, 18e3, 12e3)
	for i := range connects {
		p50, p99 := 40.0, 50.0
		failed, serverFailed := i, 0
		connects[i].MeanUS, connects[i].P50US, connects[i].P99US, connects[i].P999US, connects[i].AllocsPerMsg, connects[i].Connections = &p50, &p50, &p99, &p99, 2, 1
		connects[i].Failed, connects[i].ServerFailed, connects[i].Lost = &failed, &serverFailed, 1
		if failed > 0 {
			connects[i].Failure = "dial: refused"
		}
	}
	rs = append(rs, connects...)
	rs = append(rs, records(t, workload.RTT, transport.KernelUDPMux, workload.None, 1, 6, 6, 6)...)
	rs = append(rs, records(t, workload.Rate, transport.KernelUDP, workload.None, 32, 6e5, 6e5)...)
	rs = append(rs, records(t, workload.OneWay, transport.KernelUDP, workload.None, 1, 7e5, 7e5)...)
	var planned []workload.Case
	for _, r := range rs {
		if !slices.Contains(planned, r.Case) {
			planned = append(planned, r.Case)
		}
	}
	slices.Reverse(rs) // rounds are measured in any order
	return Summarize(planned, rs)
}

// columns splits a table's line at runs of at least two spaces.
func columns(line string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(line, "  ", "\t"), func(r rune) bool { return r == '\t' })
}

func TestTablesShowMediansAndRatios(t *testing.T) {
	var out strings.Builder
	s := testSummary(t)
	s.Print(&out)
	text := out.String()
	for _, want := range [][]string{
		{"floor", "queue", "spin", "2.50", "(2.00..3.00)", "2.50", "2.50", "2.50", "0.00", "unknown", "0.000", "0", "2.00x", "1.00"},
		{"kernel-udp", "none", "spin", "5.00", "(4.00..6.00)", "5.00", "5.00", "5.00", "0.00", "unknown", "0.000", "0", "1.00x", "-"},
		{"msg", "port", "spin", "32", "1200.00", "(1200.00..1200.00)", "0.00", "unknown", "0.000", "0", "2.00x"},
		{"kernel-tcp", "none", "spin", "18.00", "(12.00..30.00)", "40.00", "(40.00..40.00)", "40.00", "50.00", "50.00", "0.00", "unknown", "2.000", "3", "3", "0", "1.00x"},
		{"kernel-tcp none: dial: refused"},
	} {
		found := false
		for line := range strings.Lines(text) {
			cells := columns(strings.TrimSpace(line))
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			found = found || slices.Equal(cells, want)
		}
		if !found {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	out.Reset()
	s.PrintGoals(&out)
	if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), "UDP round trip with the mux / without none <= 1.05 1.20 short") {
		t.Errorf("no line about the cost of the mux in\n%s", &out)
	}
}

func TestTablesAlign(t *testing.T) {
	cell := func(i int) func([]string) string { return func(r []string) string { return r[i] } }
	var out strings.Builder
	printTable(&out, "", [][]string{{"wide µ", "22", "", "-"}}, text("a", cell(0)), value("b", cell(1)), value("c", cell(2)), having(func([]string) bool { return false }, value("left out", cell(3))))
	if want := "a        b  c\nwide µ  22\n"; out.String() != want {
		t.Errorf("got\n%q, want\n%q", out.String(), want)
	}
}

func bulkRecords(name, attach string, mtu, size int, gb ...float64) (rs []Record) {
	batch := 1
	if name == transport.Floor {
		batch = plan.FloodBatch
	}
	for i, f := range gb {
		rs = append(rs, Record{Case: workload.Case{Bench: workload.Bandwidth, Transport: name, Attach: attach, Place: workload.Pair, Wait: "spin",
			Size: size, Batch: batch, MTU: mtu}, Round: i + 1, N: 1 << 20, GbPerS: f})
	}
	return rs
}

func summary(groups ...[]Record) Summary {
	var planned []workload.Case
	var all []Record
	for _, g := range groups {
		planned = append(planned, g[0].Case)
		all = append(all, g...)
	}
	return Summarize(planned, all)
}

func TestBandwidthRecord(t *testing.T) {
	c := workload.Case{Bench: workload.Bandwidth, Transport: transport.TCP, Attach: "port", Place: workload.Pair, Wait: "spin", Size: 1000, Batch: 1, MTU: 9000}
	r := NewRecord(c, workload.Effort{}, 1, lab.Outcome{
		Client: workload.Report{InWindow: 5_000_000, Sent: 6_000_000, CPU: 10 * time.Millisecond, Mallocs: 100},
		Server: workload.Report{N: 5_999_000, InWindow: 5_000_000, Elapsed: 10 * time.Millisecond, CPU: 5 * time.Millisecond},
	}, nil)
	if r.GbPerS != 4 || r.MsgsPerS != 500_000 || r.Lost != 1000 || r.N != 5_999_000 || r.MTU != 9000 || r.CPUSPerGB != 3 || r.CPUUSPerMsg != 3 || r.AllocsPerMsg != 0.02 {
		t.Errorf("got %+v", r)
	}
}

func TestBandwidthTable(t *testing.T) {
	var out strings.Builder
	summary(bulkRecords(transport.TCP, "port", 9000, 64, 1, 1, 3), bulkRecords(transport.TCP, "port", 9000, 256, 4)).Print(&out)
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"MTU 9000", "tcp port spin 64 1.00 (1.00..3.00)", "tcp port spin 256 4.00 (4.00..4.00)"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestBenchmarkLines(t *testing.T) {
	us, calls := 2.5, 2.0
	r := Record{Case: workload.Case{Bench: workload.RTT, Transport: "msg", Attach: "port", Place: workload.Pair, Wait: "spin", Size: 64, Batch: 1}, Round: 3, N: 1000,
		MeanUS: &us, P50US: &us, P99US: &us, P999US: &us, MsgsPerS: 4e5, CPUUSPerMsg: 5, SyscallsPerMsg: &calls, AllocsPerMsg: 0.5, Lost: 1}
	oneWay := r
	oneWay.Bench, oneWay.Place, oneWay.MeanUS, oneWay.P50US, oneWay.P99US, oneWay.SyscallsPerMsg = workload.OneWay, workload.Local, nil, nil, nil, nil
	connect := r
	connect.Bench, connect.Connections = workload.Connect, 4
	silent := r
	silent.N = 0
	for _, c := range []struct {
		line Line
		want string
	}{
		{r, "BenchmarkRTT/transport=msg/attach=port/wait=spin/size=64 1000 2500 ns/op 2500 p50-ns/op 2500 p99-ns/op 5000 cpu-ns/op 0.5 allocs/op 2 syscalls/op 1 lost\n"},
		{oneWay, "BenchmarkOneWay/transport=msg/attach=port/wait=spin/size=64/batch=1/place=local 1000 400000 msgs/s 5000 cpu-ns/op 0.5 allocs/op 1 lost\n"},
		{connect, "BenchmarkConnect/transport=msg/attach=port/wait=spin/size=64/connections=4 1000 2500 ns/op 2500 p50-ns/op 2500 p99-ns/op 400000 conns/s 5000 cpu-ns/op 0.5 allocs/op 2 syscalls/op 1 lost\n"},
		{silent, ""},
		{Record{Case: workload.Case{Bench: workload.Bandwidth, Transport: "tcp", Attach: "queue", Place: workload.Pair, Wait: "spin", Size: 100, MTU: 9000}, N: 1000, GbPerS: 8, CPUSPerGB: 2},
			"BenchmarkBandwidth/transport=tcp/attach=queue/wait=spin/size=100/mtu=9000 10 1e+09 B/s 2 cpu-ns/B 0 lost-B\n"},
		{NewOpening(workload.Crowd, []time.Duration{2e6, 3e6, 4e6}), "BenchmarkOpen/transport=msg/attach=port/place=crowd 3 3e+06 ns/op 3e+06 p50-ns/op 4e+06 p99-ns/op\n"},
	} {
		var b strings.Builder
		if err := WriteBenchmark(&b, c.line); err != nil || b.String() != c.want {
			t.Errorf("%v\ngot  %swant %s", err, b.String(), c.want)
		}
	}
}
