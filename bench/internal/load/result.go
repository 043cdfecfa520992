package load

import (
	"slices"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// Result is what Run has measured, and the line of JSON that a client writes.
type Result struct {
	Requests int           `json:"requests"` // answered in the measured time
	Failed   int           `json:"failed"`   // requests that ended with an error, at most one a connection
	Lost     int           `json:"lost"`     // requests without an answer, at most one a connection
	Failure  string        `json:"failure"`  // the first error; empty if there is none
	Elapsed  time.Duration `json:"elapsed"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Least    int           `json:"least"` // answers of the connection that got the fewest
	Most     int           `json:"most"`  // answers of the connection that got the most
	CPU      time.Duration `json:"cpu"`   // user and system time of client and server while measuring
}

// Fairness is the share of turns that the connection with the fewest has of those of the
// connection with the most: 1 if all have as many, 0 if one has none.
func (r Result) Fairness() float64 {
	if r.Most == 0 {
		return 0
	}
	return float64(r.Least) / float64(r.Most)
}

// summarize merges what the connections have measured.
func summarize(all []turns) (r Result) {
	var took []time.Duration
	for i, t := range all {
		n := len(t.took)
		took = append(took, t.took...)
		if i == 0 {
			r.Least = n
		}
		r.Least, r.Most = min(r.Least, n), max(r.Most, n)
		if t.err == nil {
			continue
		}
		if t.late {
			r.Lost++
		} else {
			r.Failed++
		}
	}
	if i := slices.IndexFunc(all, func(t turns) bool { return t.err != nil }); i >= 0 {
		r.Failure = all[i].err.Error()
	}
	r.Requests = len(took)
	l := workload.Summarize(took)
	r.P50, r.P99 = l.P50, l.P99
	return r
}
