package report

import (
	"strings"
	"testing"
)

// TestWaitingGoals: ratios are of the measurements of one round, whatever their order; a round
// that has only one of them does not count.
func TestWaitingGoals(t *testing.T) {
	var all []Waiting
	add := func(wait string, waiters, round int, p50, idle float64) {
		all = append(all, Waiting{Bench: "wait", Transport: "tcp", Wait: wait, Waiters: waiters, Round: round, N: 1, P50US: p50, IdleCPU: idle})
	}
	for i, v := range [][3]float64{{10, 11, 12}, {20, 21, 28}, {40, 48, 72}} { // spin; adaptive alone, with waiters
		add("adaptive", 63, i+1, v[2], 0.4)
		add("spin", 0, i+1, v[0], 0)
		add("adaptive", 0, i+1, v[1], 0.1)
	}
	add("adaptive", 0, 4, 1000, 0.1) // the run ended before the others
	goals := WaitingGoals(all)
	if len(goals) != 3 {
		t.Fatalf("%+v", goals)
	}
	for i, want := range []struct {
		measured float64
		met      bool
	}{{1.1, true}, {28.0 / 21, false}, {0.4, true}} {
		if g := goals[i]; !g.Known || g.Measured != want.measured || g.Met() != want.met {
			t.Errorf("%+v", g)
		}
	}
	var out strings.Builder
	PrintWaiting(&out, all)
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 7 || !strings.Contains(lines[4], "spin") || !strings.Contains(lines[6], "(12.00..72.00)") {
		t.Errorf("%s", &out)
	}
}
