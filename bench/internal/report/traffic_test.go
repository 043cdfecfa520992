package report

import (
	"strings"
	"testing"
)

// TestTrafficRatios: a ratio is of the two measurements of one round, and the goals are about the
// median of the ratios, which is not the ratio of the medians.
func TestTrafficRatios(t *testing.T) {
	var all []Traffic
	add := func(figure, unit string, round int, mux bool, v float64) {
		all = append(all, Traffic{Bench: "kernel", Figure: figure, Unit: unit, Round: round, Mux: mux, N: 1, Value: v})
	}
	for i, v := range [][2]float64{{10, 10}, {20, 21}, {40, 44}} { // without, with
		add(KernelRTT, Micros, i+1, true, v[1])
		add(KernelRTT, Micros, i+1, false, v[0])
		add(KernelIn, GbPerS, i+1, false, v[0])
		add(KernelIn, GbPerS, i+1, true, v[0]*0.9)
	}
	add(KernelRTT, Micros, 4, true, 1000) // the run ended before the other
	rows := SummarizeTraffic(all)
	if len(rows) != 2 {
		t.Fatalf("%+v", rows)
	}
	r := rows[0]
	if r.Figure != KernelRTT || r.rounds != 3 || r.ratio.Median != 1.05 || r.ratio.Min != 1 || r.ratio.Max != 1.1 || r.base.Median != 20 || r.other.Median != 21 {
		t.Errorf("%+v", r)
	}
	goals := KernelGoals(rows)
	if g := goals[0]; !g.Known || !g.Met() { // the bound itself
		t.Errorf("%+v", g)
	}
	if g := goals[1]; !g.Known || g.Met() {
		t.Errorf("%+v", g)
	}
	if g := goals[2]; g.Known {
		t.Errorf("%+v", g)
	}
	var out strings.Builder
	PrintTraffic(&out, "tcx", rows)
	if !strings.Contains(out.String(), "mode tcx") || !strings.Contains(out.String(), "1.05  (1.00..1.10)") {
		t.Errorf("%s", &out)
	}
}
