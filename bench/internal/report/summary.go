package report

import (
	"time"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Key is what records of several rounds have in common.
type Key struct {
	Bench     workload.Bench
	Transport string
	Attach    string
	Place     string
	Wait      string
	Size      int
	Batch     int
	MTU       int // bandwidth and rdma
	Depth     int // rdma
	Waiters   int // rtt
	Procs     int // rtt
}

// KeyOf is the key that the records of a combination have.
func KeyOf(c plan.Combination) Key {
	return Key{c.Bench, c.Transport.Name, c.Attach, c.Place, c.Wait, c.Size, c.Batch, c.MTU, c.Depth, c.Waiters, c.Procs}
}

// Key is what the record has in common with those of other rounds.
func (r Record) Key() Key {
	return Key{r.Bench, r.Transport, r.Attach, r.Place, r.Wait, r.Size, r.Batch, r.MTU, r.Depth, r.Waiters, r.Procs}
}

// Row is one combination over all its rounds.
type Row struct {
	Key
	Records []Record // at least one
}

// The figures of rows. Times are in microseconds.
var (
	mean      = figureOf(func(r Record) float64 { return known(r.MeanUS) })
	p50       = figureOf(func(r Record) float64 { return known(r.P50US) })
	p99       = figureOf(func(r Record) float64 { return known(r.P99US) })
	p999      = figureOf(func(r Record) float64 { return known(r.P999US) })
	msgsPerS  = figureOf(func(r Record) float64 { return r.MsgsPerS })
	gbPerS    = figureOf(func(r Record) float64 { return r.GbPerS })
	cpu       = figureOf(func(r Record) float64 { return r.CPUUSPerMsg })
	serverCPU = figureOf(func(r Record) float64 { return r.ServerCPUUSPerMsg })
	cpuPerGB  = figureOf(func(r Record) float64 { return r.CPUSPerGB })
	allocs    = figureOf(func(r Record) float64 { return r.AllocsPerMsg })
)

func figureOf(of func(Record) float64) func(Row) Spread {
	return func(r Row) Spread { return over(r.Records, of) }
}

// known is the value of a figure, or 0 if the record does not have it.
func known[T int | float64](v *T) T {
	if v == nil {
		return 0
	}
	return *v
}

// P50 and MsgsPerS are what charts show.
func (r Row) P50() Spread      { return p50(r) }
func (r Row) MsgsPerS() Spread { return msgsPerS(r) }

// sum adds a count of all rounds.
func (r Row) sum(of func(Record) int) (n int) {
	for _, x := range r.Records {
		n += of(x)
	}
	return n
}

// idle is the percentage of a processor that the idle client takes, if it was idle.
func (r Row) idle() (float64, bool) {
	return over(r.Records, func(r Record) float64 { return known(r.IdlePercent) }).Median, r.Records[0].IdlePercent != nil
}

// calls are the system calls of a message, if they were counted.
func (r Row) calls() (float64, bool) {
	return known(r.Records[0].SyscallsPerMsg), r.Records[0].SyscallsPerMsg != nil
}

// Summary is what has been measured, rows in the order of the plan.
type Summary struct {
	Rows     []Row
	Openings []Opening
}

// Summarize gathers the records of each planned combination.
func Summarize(planned []Key, records []Record) (s Summary) {
	groups := map[Key][]Record{}
	for _, r := range records {
		groups[r.Key()] = append(groups[r.Key()], r)
	}
	for _, k := range planned {
		if g := groups[k]; g != nil {
			s.Rows = append(s.Rows, Row{k, g})
		}
	}
	return s
}

// find is the row of k, if it was measured.
func (s Summary) find(k Key) (Row, bool) {
	for _, r := range s.Rows {
		if r.Key == k {
			return r, true
		}
	}
	return Row{}, false
}

// Opening is how long it takes to open an endpoint through unetd, with the default
// geometry and one tag, and one line of JSON.
type Opening struct {
	Bench    workload.Bench `json:"bench"`
	Others   int            `json:"others"` // endpoints that are open already
	N        int            `json:"n"`
	MedianMS float64        `json:"median_ms"`
	MinMS    float64        `json:"min_ms"`
	MaxMS    float64        `json:"max_ms"`
}

// NewOpening summarizes.
func NewOpening(others int, took []time.Duration) Opening {
	s := over(took, func(d time.Duration) float64 { return float64(d) / 1e6 })
	return Opening{Bench: workload.Open, Others: others, N: len(took), MedianMS: s.Median, MinMS: s.Min, MaxMS: s.Max}
}
