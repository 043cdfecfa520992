package plot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
)

// field is one set of axes: the transports of one attachment, and the kernel's.
type field struct {
	name, about string
	rows        []report.Row
}

// fieldsOf shares the rows out. Rows without an attachment are in every field.
func fieldsOf(rows []report.Row) []field {
	var fields []field
	for _, f := range []field{
		{name: "port", about: "the default; the mux checks every frame"},
		{name: "queue", about: "the interface's own, for trusted owners"},
	} {
		if slices.ContainsFunc(rows, func(r report.Row) bool { return r.Attach == f.name }) {
			fields = append(fields, f)
		}
	}
	if fields == nil {
		fields = []field{{name: "kernel", about: "its sockets alone"}}
	}
	for i := range fields {
		for _, r := range rows {
			if r.Attach == fields[i].name || r.Attach == transport.None {
				fields[i].rows = append(fields[i].rows, r)
			}
		}
	}
	return fields
}

// Measures of the part, in pixels.
const (
	plotHeight = 320.0
	fieldGap   = 36.0
	tickRoom   = 30.0  // left of a plot, for the labels of ticks
	nameRoom   = 150.0 // right of a plot, for names and figures
	abreast    = 5.5   // between the marks of neighbouring lines at one size
	lineHeight = 17.0
	sizeRoom   = 40.0 // between the labels of two sizes
)

// drawRoundTrips draws a field for each attachment, all on the same axes.
func drawRoundTrips(c *canvas, rows []report.Row, y float64) float64 {
	heading(c, y, "Round trip, microseconds", "median (p50) by message size; log scale; lower is better")
	top := y + 78
	low, high := rows[0].P50.Min, rows[0].P50.Max
	var sizes []int
	for _, r := range rows {
		low, high = min(low, r.P50.Min), max(high, r.P50.Max)
		if !slices.Contains(sizes, r.Size) {
			sizes = append(sizes, r.Size)
		}
	}
	slices.Sort(sizes)
	fields := fieldsOf(rows)
	n := float64(len(fields))
	shared := axes{
		us: logAxis(low, high, top+plotHeight, top), sizes: sizes, compared: comparedSize(rows),
		width: (right-left-(n-1)*fieldGap)/n - tickRoom - nameRoom,
	}
	x := left + tickRoom
	for _, f := range fields {
		shared.draw(c, f, x)
		x += shared.width + nameRoom + fieldGap + tickRoom
	}
	return top + plotHeight + 62
}

// axes are what the fields have in common.
type axes struct {
	us       axis
	sizes    []int
	compared int     // the size whose figures are written out
	width    float64 // pixels
}

// sizeAt is the place of a size. Sizes stand at even distances: most grow by the
// same factor.
func (a axes) sizeAt(x float64, size int) float64 {
	return x + a.width*(float64(slices.Index(a.sizes, size))+0.5)/float64(len(a.sizes))
}

// draw draws a field whose plot starts at x.
func (a axes) draw(c *canvas, f field, x float64) {
	top, bottom := a.us.end, a.us.start
	c.open("text", attr{"x", x, "y", top - 16})
	c.leaf("tspan", attr{"font-weight", strong}, f.name)
	c.leaf("tspan", attr{"dx", 7.0, "fill", muted}, f.about)
	c.close("text")
	for _, t := range a.us.ticks {
		c.line(x, a.us.at(t), x+a.width, a.us.at(t), attr{"stroke", grid})
		c.text(x-7, a.us.at(t)+4.5, strconv.FormatFloat(t, 'f', -1, 32), attr{"text-anchor", "end", "fill", muted, "font-size", 12.0})
	}
	written := x - sizeRoom
	for _, s := range a.sizes {
		if a.sizeAt(x, s) < written+sizeRoom {
			continue // the labels of so many sizes would run together
		}
		written = a.sizeAt(x, s)
		c.text(written, bottom+20, thousands(s), attr{"text-anchor", "middle", "fill", muted, "font-size", 12.0})
	}
	c.text(x+a.width/2, bottom+39, "message size, bytes", attr{"text-anchor", "middle", "fill", muted, "font-size", 12.0})

	var drawn []curve
	for _, l := range lines {
		k := curve{line: l}
		for _, r := range f.rows {
			if r.Transport == l.transport {
				k.rows = append(k.rows, r)
			}
		}
		if len(k.rows) == 0 {
			continue
		}
		slices.SortFunc(k.rows, func(r, s report.Row) int { return cmp.Compare(r.Size, s.Size) })
		drawn = append(drawn, k)
	}
	for i := range drawn {
		k := &drawn[i]
		aside := (float64(i) - float64(len(drawn)-1)/2) * abreast
		for _, r := range k.rows {
			k.points = append(k.points, point{a.sizeAt(x, r.Size) + aside, a.us.at(r.P50.Median)})
		}
	}
	for _, k := range drawn {
		k.drawRanges(c, a.us)
	}
	for _, k := range drawn {
		c.polyline(k.points, attr{"stroke", k.colour, "stroke-width", 2.0, "stroke-dasharray", cmp.Or(k.dashes, "none"), "stroke-linejoin", "round"})
	}
	for _, k := range drawn {
		k.drawMarks(c)
	}
	a.drawNames(c, drawn, x+a.width)
}

// curve is one line in a field.
type curve struct {
	line
	rows   []report.Row // by size
	points []point      // of the rows
}

func (k curve) end() point { return k.points[len(k.points)-1] }

// drawRanges draws the thin bars from the lowest round to the highest.
func (k curve) drawRanges(c *canvas, us axis) {
	for i, r := range k.rows {
		if r.P50.Min < r.P50.Max {
			x := k.points[i].x
			c.line(x, us.at(r.P50.Min), x, us.at(r.P50.Max), attr{"stroke", k.colour, "stroke-width", 1.5, "stroke-opacity", 0.55})
		}
	}
}

func (k curve) drawMarks(c *canvas) {
	for i, r := range k.rows {
		c.open("g", nil)
		c.leaf("title", nil, fmt.Sprintf("%s, %d bytes: %s µs (%s..%s)", nameOf(r), r.Size,
			microseconds(r.P50.Median), microseconds(r.P50.Min), microseconds(r.P50.Max)))
		c.mark(k.shape, k.points[i], k.colour)
		c.close("g")
	}
}

// drawNames writes each line's name at its end, and its figure at the compared
// size.
func (a axes) drawNames(c *canvas, curves []curve, x float64) {
	slices.SortFunc(curves, func(k, l curve) int {
		return cmp.Compare(k.end().y, l.end().y)
	})
	var wanted []float64
	for _, k := range curves {
		wanted = append(wanted, k.end().y)
	}
	figures := x + nameRoom - 2
	c.text(figures, a.us.end-16, "µs at "+thousands(a.compared)+" B", attr{"text-anchor", "end", "fill", muted, "font-size", 12.0})
	for i, y := range spreadOut(wanted, lineHeight, a.us.end, a.us.start) {
		k := curves[i]
		end := k.end()
		c.polyline([]point{{end.x + 7, end.y}, {x + 2, end.y}, {x + 12, y}}, attr{"stroke", k.colour, "stroke-opacity", 0.45})
		c.text(x+16, y+4.5, k.transport, attr{"fill", k.colour, "font-weight", strong})
		for _, r := range k.rows {
			if r.Size == a.compared {
				c.text(figures, y+4.5, microseconds(r.P50.Median), attr{"text-anchor", "end", "fill", k.colour})
			}
		}
	}
}
