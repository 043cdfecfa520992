package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// missing is the cell of a figure that was not measured.
const missing = "-"

// column is a column of a table of T.
type column[T any] struct {
	head     string
	cell     func(T) string
	left     bool // aligned to the left
	optional bool // left out if the figure is missing in all rows
}

// printTable writes a title and a line for each row. Columns are as wide as their widest cell.
func printTable[T any](w io.Writer, title string, rows []T, columns ...[]column[T]) {
	if title != "" {
		fmt.Fprintf(w, "\n%s\n", title)
	}
	lines := make([]strings.Builder, len(rows)+1)
	for _, c := range slices.Concat(columns...) {
		cells, width := []string{c.head}, utf8.RuneCountInString(c.head)
		for _, r := range rows {
			cells = append(cells, c.cell(r))
			width = max(width, utf8.RuneCountInString(cells[len(cells)-1]))
		}
		if c.optional && !slices.ContainsFunc(cells[1:], func(s string) bool { return s != missing }) {
			continue
		}
		for i, cell := range cells {
			if lines[i].Len() > 0 {
				lines[i].WriteString("  ")
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
			if c.left {
				lines[i].WriteString(cell + pad)
			} else {
				lines[i].WriteString(pad + cell)
			}
		}
	}
	for i := range lines {
		fmt.Fprintln(w, strings.TrimRight(lines[i].String(), " "))
	}
}

// text is a column aligned to the left, value one aligned to the right.
func text[T any](head string, cell func(T) string) []column[T] {
	return []column[T]{{head: head, cell: cell, left: true}}
}

func value[T any, V any](head string, of func(T) V) []column[T] {
	return []column[T]{{head: head, cell: func(r T) string { return fmt.Sprint(of(r)) }}}
}

// median is a column of a figure's median, times a factor. extremes adds one of the extremes.
func median[T any](head string, of func(T) Spread, factor float64, digits int) []column[T] {
	return []column[T]{{head: head, cell: func(r T) string { return fmt.Sprintf("%.*f", digits, of(r).Median*factor) }}}
}

func extremes[T any](head string, of func(T) Spread, factor float64, digits int) []column[T] {
	return append(median(head, of, factor, digits), column[T]{cell: func(r T) string {
		s := of(r)
		return fmt.Sprintf("(%.*f..%.*f)", digits, s.Min*factor, digits, s.Max*factor)
	}})
}

// quotient is a column of ratios that may be unknown, with a suffix. It is left out if all are.
func quotient[T any](head, suffix string, of func(T) (float64, bool)) []column[T] {
	return []column[T]{{head: head, optional: true, cell: func(r T) string {
		v, ok := of(r)
		if !ok {
			return missing
		}
		return fmt.Sprintf("%.2f", v) + suffix
	}}}
}

// having are columns of figures that only some rows have. They are left out if none has.
func having[T any](has func(T) bool, columns []column[T]) []column[T] {
	for i, c := range columns {
		columns[i].optional = true
		columns[i].cell = func(r T) string {
			if !has(r) {
				return missing
			}
			return c.cell(r)
		}
	}
	return columns
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

// over is the spread of a figure over measurements.
func over[T any](all []T, figure func(T) float64) Spread {
	var v []float64
	for _, x := range all {
		v = append(v, figure(x))
	}
	return spread(v)
}

// ratio is a/b, or false if there is nothing to divide by.
func ratio(a, b float64) (float64, bool) {
	if a <= 0 || b <= 0 {
		return 0, false
	}
	return a / b, true
}

// roundsText names a number of rounds that may differ.
func roundsText[T any](rows []T, of func(T) int) string {
	low, high := of(rows[0]), of(rows[0])
	for _, r := range rows {
		low, high = min(low, of(r)), max(high, of(r))
	}
	switch {
	case high == 1:
		return "1 round"
	case low == high:
		return fmt.Sprintf("%d rounds", high)
	}
	return fmt.Sprintf("%d to %d rounds", low, high)
}
