package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Waiting is one round of round trips beside goroutines that wait, and one line of JSON.
type Waiting struct {
	Bench     string  `json:"bench"` // wait
	Transport string  `json:"transport"`
	Wait      string  `json:"wait"`
	Waiters   int     `json:"waiters"`            // at each end, beside the one that is measured
	Procs     int     `json:"procs"`              // GOMAXPROCS; 0: one pinned processor for each process
	PauseUS   float64 `json:"pause_us,omitempty"` // of the client between two round trips
	Round     int     `json:"round"`
	N         int     `json:"n"` // round trips
	Lost      int     `json:"lost"`
	P50US     float64 `json:"p50_us"`
	P99US     float64 `json:"p99_us"`
	CPUUS     float64 `json:"cpu_us_per_msg"`         // of both processes, a round trip
	IdleCPU   float64 `json:"idle_percent,omitempty"` // of a processor, of the idle client
}

// Measured fills in the figures.
func (l *Waiting) Measured(j workload.Job, out lab.Outcome) {
	l.N, l.Lost, l.PauseUS = out.Client.N, out.Client.Lost, float64(j.Pause)/1e3
	l.P50US, l.P99US = float64(out.Client.Latency.P50)/1e3, float64(out.Client.Latency.P99)/1e3
	l.CPUUS = PerMessage(float64(out.Client.CPU+out.Server.CPU)/1e3, out, workload.RTT)
	if j.Rest > 0 {
		l.IdleCPU = 100 * float64(out.Client.RestCPU) / float64(j.Rest)
	}
}

// Key says what was measured.
func (l Waiting) Key() string {
	return fmt.Sprintf("%s %s, %d waiting, GOMAXPROCS %d", l.Transport, l.Wait, l.Waiters, l.Procs)
}

func (l Waiting) benchmark() (string, int, []figure) {
	return fmt.Sprintf("Wait/transport=%s/wait=%s/waiters=%d/procs=%d", l.Transport, l.Wait, l.Waiters, l.Procs), l.N,
		[]figure{{l.P50US * 1e3, "p50-ns/op"}, {l.P99US * 1e3, "p99-ns/op"}, {l.CPUUS * 1e3, "cpu-ns/op"}, {l.IdleCPU, "idle-%"}}
}

// pick is a figure of what was measured like l, of each round in turn.
func pick(all []Waiting, l Waiting, figure func(Waiting) float64) (values []float64) {
	for _, a := range all {
		if a.Key() == l.Key() {
			values = append(values, figure(a))
		}
	}
	return values
}

// lostOf is how many round trips of what was measured like l were lost, in all rounds.
func lostOf(all []Waiting, l Waiting) (n int) {
	for _, a := range all {
		if a.Key() == l.Key() {
			n += a.Lost
		}
	}
	return n
}

func waitP50(l Waiting) float64  { return l.P50US }
func waitIdle(l Waiting) float64 { return l.IdleCPU }

// PrintWaiting writes the table.
func PrintWaiting(w io.Writer, all []Waiting) {
	var rows []Waiting
	for _, l := range all {
		if !slices.ContainsFunc(rows, func(r Waiting) bool { return r.Key() == l.Key() }) {
			rows = append(rows, l)
		}
	}
	slices.SortFunc(rows, func(a, b Waiting) int {
		order := func(l Waiting) int {
			n := l.Procs<<20 + slices.Index([]string{"spin", "adaptive", "block"}, l.Wait)<<18 + l.Waiters
			if l.Transport == transport.GoTCP {
				n += 1 << 19
			}
			return n
		}
		return order(a) - order(b)
	})
	fmt.Fprintf(w, "\nRound trips of 64 bytes over TCP while goroutines wait on other connections: medians over %d rounds (lowest..highest)\n", len(pick(all, rows[0], waitP50)))
	fmt.Fprintln(w, "GOMAXPROCS 0: each process is pinned to a processor. cpu is of both processes, a round trip; lost is of all rounds;\nidle of the client, in percent of a processor.")
	g := grid{left: 2}
	g.add("transport", "wait", "GOMAXPROCS", "waiting", "p50 us", "", "p99 us", "cpu us", "lost", "idle %")
	for _, r := range rows {
		middle := func(figure func(Waiting) float64) Spread { return spread(pick(all, r, figure)) }
		p, rest := middle(waitP50), "-"
		if s := middle(waitIdle); s.Median > 0 {
			rest = fmt.Sprintf("%.2f", s.Median)
		}
		g.add(r.Transport, r.Wait, fmt.Sprint(r.Procs), fmt.Sprint(r.Waiters), fmt.Sprintf("%.2f", p.Median), fmt.Sprintf("(%.2f..%.2f)", p.Min, p.Max),
			fmt.Sprintf("%.2f", middle(func(l Waiting) float64 { return l.P99US }).Median),
			fmt.Sprintf("%.2f", middle(func(l Waiting) float64 { return l.CPUUS }).Median), fmt.Sprint(lostOf(all, r)), rest)
	}
	g.print(w)
}

// WaitingGoalsTitle is the title of WaitingGoals.
const WaitingGoalsTitle = "Figures to reach (medians of the ratios of interleaved rounds)"

// Bounds of WaitingGoals.
const (
	mostAdaptive = 1.10 // adaptive / spin
	mostWaiters  = 1.20 // with waiters / alone
	mostIdle     = 0.5  // % of a processor
)

// WaitingGoals are about adaptive waiting, for each GOMAXPROCS that was measured.
func WaitingGoals(all []Waiting) (goals []Goal) {
	var seen []Waiting
	for _, l := range all {
		if l.Transport != transport.TCP || l.Wait != "adaptive" || slices.ContainsFunc(seen, func(s Waiting) bool { return s.Key() == l.Key() }) {
			continue
		}
		seen = append(seen, l)
	}
	slices.SortFunc(seen, func(a, b Waiting) int { return a.Procs<<20 + a.Waiters - b.Procs<<20 - b.Waiters })
	compare := func(l Waiting, other Waiting, figure string, bound float64) {
		g := Goal{Figure: fmt.Sprintf("%s, GOMAXPROCS %d", figure, l.Procs), Bound: bound, AtMost: true, format: "%.2f"}
		var ratios []float64
		for _, a := range all {
			for _, b := range all {
				if a.Key() != l.Key() || b.Key() != other.Key() || a.Round != b.Round {
					continue
				}
				if r, ok := ratio(a.P50US, b.P50US); ok {
					ratios = append(ratios, r)
				}
			}
		}
		if len(ratios) > 0 {
			g.Known, g.Measured = true, spread(ratios).Median
		}
		goals = append(goals, g)
	}
	for _, l := range seen {
		if l.Waiters == 0 {
			other := l
			other.Wait = "spin"
			compare(l, other, "p50 adaptive / spin", mostAdaptive)
			continue
		}
		other := l
		other.Waiters = 0
		compare(l, other, fmt.Sprintf("p50 adaptive with %d waiting / alone", l.Waiters), mostWaiters)
		goals = append(goals, Goal{Figure: fmt.Sprintf("%% of a processor, idle, %d waiting, GOMAXPROCS %d", l.Waiters, l.Procs), Bound: mostIdle, AtMost: true,
			Known: true, Measured: spread(pick(all, l, waitIdle)).Median, format: "%.2f"})
	}
	return goals
}
