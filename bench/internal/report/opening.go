package report

import (
	"fmt"
	"io"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// Opening is how long it takes to open an endpoint through unetd, with the
// default geometry and one tag, and one line of JSON.
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

// PrintOpenings writes the table.
func PrintOpenings(w io.Writer, openings []Opening) {
	fmt.Fprintln(w, "\nOpening an endpoint of 8 MiB through unetd, ms")
	var g grid
	g.add("others open", "times", "median", "lowest", "highest")
	for _, o := range openings {
		g.add(fmt.Sprint(o.Others), fmt.Sprint(o.N), fmt.Sprintf("%.1f", o.MedianMS), fmt.Sprintf("%.1f", o.MinMS), fmt.Sprintf("%.1f", o.MaxMS))
	}
	g.print(w)
}
