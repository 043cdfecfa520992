package report

import "github.com/unet-go/unet/bench/internal/workload"

// Row is one case over all its rounds.
type Row struct {
	workload.Case
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
type Summary struct{ Rows []Row }

// Summarize gathers the records of each planned case.
func Summarize(planned []workload.Case, records []Record) (s Summary) {
	groups := map[workload.Case][]Record{}
	for _, r := range records {
		groups[r.Case] = append(groups[r.Case], r)
	}
	for _, k := range planned {
		if g := groups[k]; g != nil {
			s.Rows = append(s.Rows, Row{k, g})
		}
	}
	return s
}

// find is the row of k, if it was measured.
func (s Summary) find(k workload.Case) (Row, bool) {
	for _, r := range s.Rows {
		if r.Case == k {
			return r, true
		}
	}
	return Row{}, false
}
