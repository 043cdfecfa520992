package report

import (
	"fmt"
	"io"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

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
