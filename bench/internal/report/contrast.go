package report

import "fmt"

// contrast is a figure that was measured in two ways in the same rounds.
type contrast struct {
	base, other Spread
	ratio       Spread // other / base, of each round
	rounds      int
}

// contrastOf compares the figures of two ways, by round. A round that has only one of them does
// not count.
func contrastOf(base, other map[int]float64) (c contrast, ok bool) {
	var a, b, ratios []float64
	for round, x := range base {
		y, there := other[round]
		if r, known := ratio(y, x); there && known {
			a, b, ratios = append(a, x), append(b, y), append(ratios, r)
		}
	}
	return contrast{spread(a), spread(b), spread(ratios), len(ratios)}, len(ratios) > 0
}

// cells are a spread as two columns.
func (s Spread) cells(format string) []string {
	return []string{fmt.Sprintf(format, s.Median), fmt.Sprintf("("+format+".."+format+")", s.Min, s.Max)}
}

// goal holds the median of the ratios to a bound.
func (c contrast) goal(figure string, bound float64, atMost, known bool) Goal {
	return Goal{Figure: figure, Bound: bound, AtMost: atMost, Known: known, Measured: c.ratio.Median, format: "%.3f"}
}
