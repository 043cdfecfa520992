package report

import (
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
	Waiters   int // rtt
	Procs     int // rtt
}

// KeyOf is the key that the records of a combination have.
func KeyOf(c plan.Combination) Key {
	return Key{c.Bench, c.Transport.Name, c.Attach, c.Place, c.Wait, c.Size, c.Batch, c.MTU, c.Verbs, c.Waiters, c.Procs}
}

// Key is what the record has in common with those of other rounds.
func (r Record) Key() Key {
	v := workload.Verbs{Depth: r.Depth, Clients: r.Clients, Options: r.Options}
	return Key{r.Bench, r.Transport, r.Attach, r.Place, r.Wait, r.Size, r.Batch, r.MTU, v, r.Waiters, r.Procs}
}

// Row is one combination over all its rounds.
type Row struct {
	Key
	Rounds                    int
	Mean, P50, P99, P999      Spread // microseconds; rtt and connect
	MsgsPerS                  Spread
	CPU                       Spread  // microseconds a message
	ServerCPU                 Spread  // the same of the server's process
	GbPerS                    Spread  // bandwidth
	CPUPerGB                  Spread  // seconds; bandwidth
	IdleCPU                   *Spread // percent of a processor that the idle client takes; nil if it was not idle
	Allocs                    Spread  // a message
	Syscalls                  *float64
	Counts                    *[perf.Figures]Spread // a message; nil: not counted in every round
	N, Lost, Duplicates       int                   // of all rounds
	Stalls                    int                   // of all rounds; oneway
	CreditWindow, CreditEvery int

	Connections          int    // connect: at a time
	Failed, ServerFailed int    // of all rounds; connect
	Failure              string // the first
}

// Summary is what has been measured, rows in the order of the plan.
type Summary struct {
	Rows     []Row
	Memory   []Memory
	Idle     []Idle
	Openings []Opening
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
	over := func(figure func(Record) float64) Spread { return over(records, figure) }
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
	if records[0].IdlePercent != nil {
		idle := over(func(r Record) float64 { return value(r.IdlePercent) })
		row.IdleCPU = &idle
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
	s := over(took, func(d time.Duration) float64 { return float64(d) / 1e6 })
	return Opening{Bench: workload.Open, Others: others, N: len(took), MedianMS: s.Median, MinMS: s.Min, MaxMS: s.Max}
}
