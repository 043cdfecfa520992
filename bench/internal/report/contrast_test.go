package report

import (
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/lab"
)

// TestOperatingGoals: ratios are of the measurements of one round and of one transport.
func TestOperatingGoals(t *testing.T) {
	var all []Operating
	add := func(transport string, c lab.Condition, round int, p50 float64) {
		all = append(all, Operating{Transport: transport, Condition: c, Round: round, N: 1, P50US: p50, Lost: 1})
	}
	for i, v := range [][3]float64{{10, 10.1, 11}, {20, 20.4, 22}, {40, 41.2, 44}} {
		add("msg", lab.CaptureOther, i+1, v[2])
		add("msg", lab.PlainOperation, i+1, v[0])
		add("msg", lab.Scraped, i+1, v[1])
		add("tcp", lab.PlainOperation, i+1, 1)
	}
	add("msg", lab.Scraped, 4, 1000) // the run ended before the others
	scrapes := []Scrape{{MS: 10, Endpoints: 256}, {MS: 60, Endpoints: 256}, {MS: 50, Endpoints: 256}}
	goals := OperatingGoals(all, scrapes)
	if len(goals) != 2*3+1 {
		t.Fatalf("%+v", goals)
	}
	for i, want := range []struct {
		measured   float64
		known, met bool
	}{{1.02, true, true}, {1.1, true, false}, {0, false, true}, {0, false, true}, {0, false, true}, {0, false, true}, {50, true, true}} {
		if g := goals[i]; g.Known != want.known || g.Measured != want.measured || g.Met() != want.met {
			t.Errorf("%+v", g)
		}
	}
	var out strings.Builder
	PrintOperating(&out, all, scrapes)
	for _, want := range []string{"1.100  (1.100..1.100)", "capture-other", "256 endpoints, each with a full table of sockets: median 50.0 ms (10.0..60.0)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q:\n%s", want, &out)
		}
	}
}

// TestIPv6Goals are printed if they were measured, and only then.
func TestIPv6Goals(t *testing.T) {
	row := func(name string, p50 float64) Row {
		return Row{Key: message("rtt", name).attached("port"), P50: Spread{Median: p50}}
	}
	var out strings.Builder
	Summary{Rows: []Row{row("udp", 10), row("tcp", 10)}}.PrintIPv6Goals(&out)
	if out.Len() > 0 {
		t.Errorf("%s", &out)
	}
	Summary{Rows: []Row{row("udp", 10), row("udp6", 11)}}.PrintIPv6Goals(&out)
	if !strings.Contains(out.String(), "udp6 RTT / udp RTT") || !strings.Contains(out.String(), "short") || strings.Contains(out.String(), "tcp6") {
		t.Errorf("%s", &out)
	}
}
