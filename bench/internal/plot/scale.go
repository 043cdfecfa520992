package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// axis maps figures to pixels, and has its ticks.
type axis struct {
	low, high   float64 // figures
	start, end  float64 // pixels; of low and of high
	logarithmic bool
	ticks       []float64
}

// at is the pixel of a figure.
func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.logarithmic {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	return a.start + (v-low)/(high-low)*(a.end-a.start)
}

// ladders are the mantissas of ticks, and the widest ratio of high to low up to
// which their labels keep clear of each other.
var ladders = []struct {
	steps  []float64
	widest float64
}{
	{[]float64{1, 1.5, 2, 2.5, 3, 4, 5, 7}, 30},
	{[]float64{1, 2, 5}, 3000},
	{[]float64{1}, math.Inf(1)},
}

// logAxis spans all of low..high, which are positive, from tick to tick.
func logAxis(low, high, start, end float64) axis {
	for _, l := range ladders {
		a := axis{start: start, end: end, logarithmic: true}
		first := int(math.Floor(math.Log10(low)))
		last := int(math.Ceil(math.Log10(high)))
		for exponent := first - 1; exponent <= last+1; exponent++ {
			for _, step := range l.steps {
				a.ticks = append(a.ticks, step*math.Pow10(exponent))
			}
		}
		// The last tick that is not above low, the first that is above that and
		// not below high.
		i := 0
		for i+1 < len(a.ticks) && a.ticks[i+1] <= low {
			i++
		}
		j := i + 1
		for j+1 < len(a.ticks) && a.ticks[j] < high {
			j++
		}
		a.ticks = slices.Clone(a.ticks[i : j+1])
		a.low, a.high = a.ticks[0], a.ticks[len(a.ticks)-1]
		if a.high/a.low <= l.widest {
			return a
		}
	}
	panic("BUG: no ladder of ticks is wide enough")
}

// linearAxis spans 0..high, with high itself at its end. Ticks are at most five
// steps of 1, 2 or 5 times a power of ten.
func linearAxis(high, start, end float64) axis {
	a := axis{high: high, start: start, end: end}
	step := math.Pow10(int(math.Floor(math.Log10(high))) - 1)
	for _, factor := range []float64{1, 2, 5, 10, 20} {
		if high/(step*factor) <= 5 {
			step *= factor
			break
		}
	}
	for i := 0.0; i*step <= high; i++ {
		a.ticks = append(a.ticks, i*step)
	}
	return a
}

// spreadOut moves labels as little as it takes to be gap apart, between low and
// high. wanted ascends. Labels that collide become a cluster about the mean of
// where they want to be.
func spreadOut(wanted []float64, gap, low, high float64) []float64 {
	type cluster struct {
		sum float64 // of the tops that its members want the cluster to have
		n   int
	}
	top := func(c cluster) float64 {
		return max(low, min(c.sum/float64(c.n), high-float64(c.n-1)*gap))
	}
	var clusters []cluster
	for _, w := range wanted {
		clusters = append(clusters, cluster{w, 1})
		for len(clusters) > 1 {
			last, before := clusters[len(clusters)-1], clusters[len(clusters)-2]
			if top(before)+float64(before.n)*gap <= top(last) {
				break
			}
			merged := cluster{before.sum + last.sum - float64(last.n*before.n)*gap, before.n + last.n}
			clusters = append(clusters[:len(clusters)-2], merged)
		}
	}
	var placed []float64
	for _, c := range clusters {
		for i := range c.n {
			placed = append(placed, top(c)+float64(i)*gap)
		}
	}
	return placed
}

// microseconds writes a round trip with the digits that mean something.
func microseconds(v float64) string {
	switch {
	case v < 0.1:
		return fmt.Sprintf("%.3f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// perSecond writes a rate.
func perSecond(v float64) string {
	switch {
	case v < 999.5:
		return fmt.Sprintf("%.3g", v)
	case v < 999.5e3:
		return fmt.Sprintf("%.0f k", v/1e3)
	}
	return fmt.Sprintf("%.2f M", v/1e6)
}

// thousands writes a count with commas.
func thousands(n int) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
