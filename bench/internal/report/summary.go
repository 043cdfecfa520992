package report

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/unet-go/unet/bench/internal/perf"
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
	Verbs     workload.Verbs
}

// KeyOf is the key that the records of a combination have.
func KeyOf(c plan.Combination) Key {
	return Key{c.Bench, c.Transport.Name, c.Attach, c.Place, c.Wait, c.Size, c.Batch, c.MTU, c.Verbs}
}

// Key is what the record has in common with those of other rounds.
func (r Record) Key() Key {
	v := workload.Verbs{Depth: r.Depth, Clients: r.Clients, Options: r.Options}
	return Key{r.Bench, r.Transport, r.Attach, r.Place, r.Wait, r.Size, r.Batch, r.MTU, v}
}

// Row is one combination over all its rounds.
type Row struct {
	Key
	Rounds                    int
	Mean, P50, P99, P999      Spread // microseconds; rtt and connect
	MsgsPerS                  Spread
	CPU                       Spread // microseconds a message
	ServerCPU                 Spread // the same of the server's process
	GbPerS                    Spread // bandwidth
	CPUPerGB                  Spread // seconds; bandwidth
	Allocs                    Spread // a message
	Syscalls                  *float64
	Counts                    *[perf.Figures]Spread // a message; nil: not counted in every round
	N, Lost, Duplicates       int                   // of all rounds
	Stalls                    int                   // of all rounds; oneway
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
		ServerCPU:    over(func(r Record) float64 { return r.ServerCPUUSPerMsg }),
		GbPerS:       over(func(r Record) float64 { return r.GbPerS }),
		CPUPerGB:     over(func(r Record) float64 { return r.CPUSPerGB }),
		Allocs:       over(func(r Record) float64 { return r.AllocsPerMsg }),
		Syscalls:     records[0].SyscallsPerMsg,
		CreditWindow: records[0].CreditWindow, CreditEvery: records[0].CreditEvery,
		Connections: records[0].Connections,
	}
	row.Counts = summarizeCounts(records)
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

// summarizeCounts is nil if a round was not counted.
func summarizeCounts(records []Record) *[perf.Figures]Spread {
	var all [perf.Figures]Spread
	for i := range all {
		var v []float64
		for _, r := range records {
			if p := *r.counted()[i]; p != nil {
				v = append(v, *p)
			}
		}
		if len(v) < len(records) {
			return nil
		}
		all[i] = spread(v)
	}
	return &all
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

// Memory is the resident memory of an idle process, in bytes, and one line of JSON.
type Memory struct {
	Bench     workload.Bench `json:"bench"`
	Transport string         `json:"transport"`
	Attach    string         `json:"attach"`
	With      int64          `json:"resident_bytes"`      // with an endpoint
	Without   int64          `json:"bare_resident_bytes"` // the same program without one
}

// Idle is the resident memory of an idle connection, and one line of JSON.
type Idle struct {
	Bench     workload.Bench `json:"bench"`
	Transport string         `json:"transport"`
	Attach    string         `json:"attach"`
	N         int            `json:"n"`            // connections that it was found from
	Client    float64        `json:"client_bytes"` // each
	Server    float64        `json:"server_bytes"`
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
	v := make([]float64, len(took))
	for i, d := range took {
		v[i] = float64(d) / 1e6
	}
	s := spread(v)
	return Opening{Bench: workload.Open, Others: others, N: len(took), MedianMS: s.Median, MinMS: s.Min, MaxMS: s.Max}
}

const (
	mebibyte = 1 << 20
	kibibyte = 1 << 10
)

// PrintMemory writes the table of idle processes, if there are any.
func PrintMemory(w io.Writer, memory []Memory) {
	if len(memory) == 0 {
		return
	}
	fmt.Fprintln(w, "\nResident memory of an idle process (VmRSS; the segment's shared pages are in it), MiB")
	fmt.Fprintln(w, "The bare process is the same program without an endpoint.")
	g := grid{left: 2}
	g.add("endpoint of", "attach", "with", "bare", "over bare")
	mib := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/mebibyte) }
	for _, m := range memory {
		g.add(m.Transport, m.Attach, mib(m.With), mib(m.Without), mib(m.With-m.Without))
	}
	g.print(w)
}

// PrintIdle writes the table of idle connections, if there are any.
func PrintIdle(w io.Writer, idle []Idle) {
	if len(idle) == 0 {
		return
	}
	fmt.Fprintf(w, "\nResident memory of an idle connection (VmRSS over %d of them), KiB\n", idle[0].N)
	g := grid{left: 2}
	g.add("connection of", "attach", "client", "server")
	for _, x := range idle {
		g.add(x.Transport, x.Attach, fmt.Sprintf("%.2f", x.Client/kibibyte), fmt.Sprintf("%.2f", x.Server/kibibyte))
	}
	g.print(w)
}

// PrintOpenings writes the table of openings, if there are any.
func PrintOpenings(w io.Writer, openings []Opening) {
	if len(openings) == 0 {
		return
	}
	fmt.Fprintln(w, "\nOpening an endpoint of 8 MiB through unetd, ms")
	var g grid
	g.add("others open", "times", "median", "lowest", "highest")
	for _, o := range openings {
		g.add(fmt.Sprint(o.Others), fmt.Sprint(o.N), fmt.Sprintf("%.1f", o.MedianMS), fmt.Sprintf("%.1f", o.MinMS), fmt.Sprintf("%.1f", o.MaxMS))
	}
	g.print(w)
}
