package load

import (
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// Result is what Run has measured, and the line of JSON that a client writes.
type Result struct {
	N        int     `json:"n"`      // requests that were answered in the measured time
	Failed   int     `json:"failed"` // requests that ended with an error, at most one a connection
	Lost     int     `json:"lost"`   // requests without an answer, at most one a connection
	PerS     float64 `json:"requests_per_s"`
	P50US    float64 `json:"p50_us"` // of a request
	P99US    float64 `json:"p99_us"`
	CPUUS    float64 `json:"cpu_us_per_request"` // user and system time of client and server
	Least    int     `json:"least_turns"`        // answers of the connection that got the fewest
	Most     int     `json:"most_turns"`         // answers of the connection that got the most
	Fairness float64 `json:"fairness"`           // Least / Most: 1 if all have as many, 0 if one has none
	Failure  string  `json:"failure,omitempty"`  // the first error
}

// summarize merges what the connections have measured in some time, with the processor time of both processes.
func summarize(all []turns, elapsed, cpu time.Duration) (r Result) {
	var took []time.Duration
	for i, t := range all {
		n := len(t.took)
		took = append(took, t.took...)
		if i == 0 {
			r.Least = n
		}
		r.Least, r.Most = min(r.Least, n), max(r.Most, n)
		switch {
		case t.err == nil:
			continue
		case t.late:
			r.Lost++
		default:
			r.Failed++
		}
		if r.Failure == "" {
			r.Failure = t.err.Error()
		}
	}
	if r.N = len(took); r.N == 0 {
		return r
	}
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	l := workload.Summarize(took)
	r.PerS, r.P50US, r.P99US = float64(r.N)/elapsed.Seconds(), us(l.P50), us(l.P99)
	r.CPUUS, r.Fairness = us(cpu)/float64(r.N), float64(r.Least)/float64(r.Most)
	return r
}
