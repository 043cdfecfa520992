package report

import "slices"

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
