package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Operating is one round of round trips while an operator does something, and one line of JSON.
type Operating struct {
	Bench     string        `json:"bench"` // operate
	Transport string        `json:"transport"`
	Condition lab.Condition `json:"condition"`
	Round     int           `json:"round"`
	N         int           `json:"n"` // round trips
	Lost      int           `json:"lost"`
	P50US     float64       `json:"p50_us"`
	MeanUS    float64       `json:"mean_us"`
	P99US     float64       `json:"p99_us"`
	CPUUS     float64       `json:"cpu_us_per_msg"` // of both processes, a round trip
	Scrapes   int           `json:"scrapes,omitempty"`
	Captured  uint64        `json:"captured,omitempty"`     // packets
	Missed    uint64        `json:"capture_lost,omitempty"` // packets that the capture's buffer had no room for
}

// NewOperating makes the line of one round.
func NewOperating(transport string, c lab.Condition, round int, out lab.Outcome, seen lab.Observed) Operating {
	l := out.Client.Latency
	return Operating{
		Bench: "operate", Transport: transport, Condition: c, Round: round, N: out.Client.N, Lost: out.Client.Lost,
		P50US: *us(l.P50), MeanUS: *us(l.Mean), P99US: *us(l.P99),
		CPUUS:   PerMessage(float64(out.Client.CPU+out.Server.CPU)/1e3, out, workload.RTT),
		Scrapes: seen.Scrapes, Captured: seen.Captured, Missed: seen.Missed,
	}
}

func (o Operating) benchmark() (string, int, []figure) {
	return fmt.Sprintf("Operate/transport=%s/condition=%s", o.Transport, o.Condition), o.N,
		[]figure{{o.MeanUS * 1e3, "ns/op"}, {o.P50US * 1e3, "p50-ns/op"}, {o.P99US * 1e3, "p99-ns/op"}, {o.CPUUS * 1e3, "cpu-ns/op"}, {float64(o.Lost), "lost"}}
}

// Scrape is one scrape of the metrics of a host with many endpoints, and one line of JSON.
type Scrape struct {
	Bench     string  `json:"bench"` // scrape
	Endpoints int     `json:"endpoints"`
	Round     int     `json:"round"`
	N         int     `json:"n"` // bytes
	MS        float64 `json:"ms"`
}

func (s Scrape) benchmark() (string, int, []figure) {
	return fmt.Sprintf("Scrape/endpoints=%d", s.Endpoints), 1, []figure{{s.MS * 1e6, "ns/op"}, {float64(s.N), "B/op"}}
}

// operatingOf are the rounds of one transport under one condition.
func operatingOf(all []Operating, transport string, c lab.Condition, figure func(Operating) float64) map[int]float64 {
	rounds := map[int]float64{}
	for _, o := range all {
		if o.Transport == transport && o.Condition == c {
			rounds[o.Round] = figure(o)
		}
	}
	return rounds
}

func operatingP50(o Operating) float64 { return o.P50US }

// transportsOf are those that were measured.
func transportsOf(all []Operating) (names []string) {
	for _, o := range all {
		if !slices.Contains(names, o.Transport) {
			names = append(names, o.Transport)
		}
	}
	slices.Sort(names)
	return names
}

// PrintOperating writes the tables.
func PrintOperating(w io.Writer, all []Operating, scrapes []Scrape) {
	fmt.Fprintln(w, "\nRound trips of 64 bytes over ports, spinning, while an operator does something: medians over the rounds (lowest..highest)")
	fmt.Fprintln(w, "The ratio is of the p50 of each round. cpu is of both processes, a round trip; lost, scrapes, and the packets\nthat a capture has captured or missed, are of all rounds.")
	g := grid{left: 2}
	g.add("transport", "condition", "p50 us", "", "/ plain", "", "mean us", "p99 us", "cpu us", "lost", "scrapes", "captured", "missed")
	for _, name := range transportsOf(all) {
		for _, c := range lab.Conditions {
			p50, ok := contrastOf(operatingOf(all, name, lab.PlainOperation, operatingP50), operatingOf(all, name, c, operatingP50))
			if !ok {
				continue
			}
			middle := func(figure func(Operating) float64) string {
				var v []float64
				for _, x := range operatingOf(all, name, c, figure) {
					v = append(v, x)
				}
				return fmt.Sprintf("%.2f", spread(v).Median)
			}
			var lost, scraped int
			var captured, missed uint64
			for _, o := range all {
				if o.Transport == name && o.Condition == c {
					lost, scraped, captured, missed = lost+o.Lost, scraped+o.Scrapes, captured+o.Captured, missed+o.Missed
				}
			}
			cells := slices.Concat([]string{name, string(c)}, p50.other.cells("%.2f"), p50.ratio.cells("%.3f"))
			g.add(append(cells, middle(func(o Operating) float64 { return o.MeanUS }), middle(func(o Operating) float64 { return o.P99US }),
				middle(func(o Operating) float64 { return o.CPUUS }), fmt.Sprint(lost), fmt.Sprint(scraped), fmt.Sprint(captured), fmt.Sprint(missed))...)
		}
	}
	g.print(w)
	if s, ok := scrapeSpread(scrapes); ok {
		fmt.Fprintf(w, "\n%d scrapes of a unetd with %d endpoints, each with a full table of sockets: median %.1f ms (%.1f..%.1f), %d bytes\n",
			len(scrapes), scrapes[0].Endpoints, s.Median, s.Min, s.Max, scrapes[0].N)
	}
}

func scrapeSpread(scrapes []Scrape) (Spread, bool) {
	var v []float64
	for _, s := range scrapes {
		v = append(v, s.MS)
	}
	return spread(v), len(v) > 0
}

// OperatingGoalsTitle is the title of OperatingGoals.
const OperatingGoalsTitle = "Figures to reach (64 bytes, spinning, medians of the ratios of interleaved rounds)"

// Bounds of OperatingGoals. A capture of the endpoint itself has none.
var mostOperating = []struct {
	condition lab.Condition
	figure    string
	bound     float64
}{
	{lab.Scraped, "RTT, status published and metrics scraped / plain", 1.02},
	{lab.CaptureOther, "RTT, capture of another endpoint / plain", 1.02},
	{lab.RateLimited, "RTT, rate limits that are not reached / plain", 1.03},
}

const mostScrapeMS = 50 // with lab.ScrapedSize endpoints

// OperatingGoals are about what an operator does.
func OperatingGoals(all []Operating, scrapes []Scrape) (goals []Goal) {
	for _, name := range transportsOf(all) {
		for _, m := range mostOperating {
			c, ok := contrastOf(operatingOf(all, name, lab.PlainOperation, operatingP50), operatingOf(all, name, m.condition, operatingP50))
			goals = append(goals, c.goal(name+" "+m.figure, m.bound, true, ok))
		}
	}
	s, ok := scrapeSpread(scrapes)
	return append(goals, Goal{Figure: fmt.Sprintf("ms of a scrape with %d endpoints, median", lab.ScrapedSize), Bound: mostScrapeMS, AtMost: true, Known: ok, Measured: s.Median, format: "%.1f"})
}
