package report

import (
	"slices"

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
	MTU       int // bandwidth
}

// KeyOf is the key that the records of a combination have.
func KeyOf(c plan.Combination) Key {
	return Key{c.Bench, c.Transport.Name, c.Attach, c.Place, c.Wait, c.Size, c.Batch, c.MTU}
}

// Key is what the record has in common with those of other rounds.
func (r Record) Key() Key {
	return Key{r.Bench, r.Transport, r.Attach, r.Place, r.Wait, r.Size, r.Batch, r.MTU}
}

// Row is one combination over all its rounds.
type Row struct {
	Key
	Rounds                    int
	Mean, P50, P99, P999      Spread // microseconds; rtt and connect
	MsgsPerS                  Spread
	CPU                       Spread // microseconds a message
	GbPerS                    Spread // bandwidth
	CPUPerGB                  Spread // seconds; bandwidth
	Allocs                    Spread // a message
	Syscalls                  *float64
	N, Lost, Duplicates       int // of all rounds
	Stalls                    int // of all rounds; oneway
	CreditWindow, CreditEvery int

	Connections          int    // connect: at a time
	Failed, ServerFailed int    // of all rounds; connect
	Failure              string // the first
}

// Summary is all rows that have been measured, in the order of the plan.
type Summary struct {
	Rows []Row
}

// Summarize gathers the records of each planned combination.
func Summarize(planned []Key, records []Record) Summary {
	groups := map[Key][]Record{}
	for _, r := range records {
		groups[r.Key()] = append(groups[r.Key()], r)
	}
	var s Summary
	for _, k := range planned {
		if g := groups[k]; g != nil {
			s.Rows = append(s.Rows, summarize(k, g))
		}
	}
	return s
}

func summarize(k Key, records []Record) Row {
	over := func(figure func(Record) float64) Spread {
		v := make([]float64, len(records))
		for i, r := range records {
			v[i] = figure(r)
		}
		return spread(v)
	}
	value := func(p *float64) float64 {
		if p == nil {
			return 0
		}
		return *p
	}
	row := Row{
		Key: k, Rounds: len(records),
		Mean:         over(func(r Record) float64 { return value(r.MeanUS) }),
		P50:          over(func(r Record) float64 { return value(r.P50US) }),
		P99:          over(func(r Record) float64 { return value(r.P99US) }),
		P999:         over(func(r Record) float64 { return value(r.P999US) }),
		MsgsPerS:     over(func(r Record) float64 { return r.MsgsPerS }),
		CPU:          over(func(r Record) float64 { return r.CPUUSPerMsg }),
		GbPerS:       over(func(r Record) float64 { return r.GbPerS }),
		CPUPerGB:     over(func(r Record) float64 { return r.CPUSPerGB }),
		Allocs:       over(func(r Record) float64 { return r.AllocsPerMsg }),
		Syscalls:     records[0].SyscallsPerMsg,
		CreditWindow: records[0].CreditWindow, CreditEvery: records[0].CreditEvery,
		Connections: records[0].Connections,
	}
	for _, r := range records {
		row.N += r.N
		row.Lost += r.Lost
		if r.Stalls != nil {
			row.Stalls += *r.Stalls
		}
		if r.Duplicates != nil {
			row.Duplicates += *r.Duplicates
		}
		if r.Failed != nil {
			row.Failed += *r.Failed
		}
		if r.ServerFailed != nil {
			row.ServerFailed += *r.ServerFailed
		}
		if row.Failure == "" {
			row.Failure = r.Failure
		}
	}
	return row
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

// ratio is a/b, or false if there is nothing to divide by.
func ratio(a, b float64) (float64, bool) {
	if a <= 0 || b <= 0 {
		return 0, false
	}
	return a / b, true
}

// Spread is the median of a figure over the rounds, and its extremes.
type Spread struct {
	Median, Min, Max float64
}

// spread summarizes; an even number of values has the mean of the middle two
// as its median.
func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	v = slices.Sorted(slices.Values(v))
	mid := len(v) / 2
	s := Spread{Median: v[mid], Min: v[0], Max: v[len(v)-1]}
	if len(v)%2 == 0 {
		s.Median = (v[mid-1] + v[mid]) / 2
	}
	return s
}
