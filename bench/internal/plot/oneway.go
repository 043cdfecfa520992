package plot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
)

// Measures of the part, in pixels.
const (
	barHeight  = 18.0
	barStep    = 27.0
	labelRoom  = 122.0 // left of the bars
	figureRoom = 190.0 // right of the longest bar
)

// drawOneWay draws a bar for each row, the longest first.
func drawOneWay(c *canvas, rows []report.Row, y float64) float64 {
	rows = slices.SortedStableFunc(slices.Values(rows), func(a, b report.Row) int {
		return cmp.Compare(b.MsgsPerS.Median, a.MsgsPerS.Median)
	})
	how := thousands(rows[0].Size) + " bytes each, sent one at a time"
	if window := rows[0].CreditWindow; window > 0 {
		how += fmt.Sprintf(", at most %s on their way", thousands(window))
	}
	heading(c, y, "One way, messages a second", how+"; higher is better")
	top := y + 48
	bottom := top + float64(len(rows))*barStep
	high := 0.0
	for _, r := range rows {
		high = max(high, r.MsgsPerS.Max)
	}
	rate := linearAxis(high, left+labelRoom, right-figureRoom)
	for _, t := range rate.ticks {
		c.line(rate.at(t), top, rate.at(t), bottom, attr{"stroke", grid})
		c.text(rate.at(t), bottom+17, strings.Replace(perSecond(t), ".00", "", 1), attr{"text-anchor", "middle", "fill", muted, "font-size", 12.0})
	}
	kernel := slices.IndexFunc(rows, func(r report.Row) bool { return r.Transport == transport.KernelUDP })
	for i, r := range rows {
		drawBar(c, r, rate, top+float64(i)*barStep+(barStep-barHeight)/2)
		end := max(rate.at(r.MsgsPerS.Median), rate.at(r.MsgsPerS.Max)) + 9
		base := top + float64(i)*barStep + barStep/2 + 4.5
		c.open("text", attr{"x", end, "y", base})
		c.leaf("tspan", attr{"font-weight", strong}, perSecond(r.MsgsPerS.Median))
		switch {
		case i == kernel:
			c.leaf("tspan", attr{"dx", 8.0, "fill", muted}, "1× (reference)")
		case kernel >= 0:
			c.leaf("tspan", attr{"dx", 8.0, "fill", muted}, fmt.Sprintf("%.2f× kernel-udp", r.MsgsPerS.Median/rows[kernel].MsgsPerS.Median))
		}
		c.close("text")
	}
	if kernel > 0 { // through the bars that are longer
		x := rate.at(rows[kernel].MsgsPerS.Median)
		c.line(x, top, x, top+float64(kernel)*barStep, attr{"stroke", ink, "stroke-dasharray", "3 3", "stroke-opacity", 0.6})
	}
	return bottom + 36
}

// drawBar draws the bar of a row, its name and its range. A queue's bar is full,
// a port's lighter.
func drawBar(c *canvas, r report.Row, rate axis, y float64) {
	l := lineOf(r)
	middle := y + barHeight/2
	c.open("text", attr{"x", rate.start - 10, "y", middle + 4.5, "text-anchor", "end"})
	c.leaf("tspan", attr{"fill", l.colour, "font-weight", strong}, r.Transport)
	if r.Attach != transport.None {
		c.leaf("tspan", attr{"dx", 5.0, "fill", muted}, r.Attach)
	}
	c.close("text")
	opacity := 1.0
	if r.Attach == "port" {
		opacity = 0.6
	}
	length := rate.at(r.MsgsPerS.Median) - rate.start
	c.empty("rect", attr{"x", rate.start, "y", y, "width", length, "height", barHeight, "fill", card}) // over the grid
	c.open("g", nil)
	c.leaf("title", nil, fmt.Sprintf("%s, %d bytes: %s messages a second (%s..%s)", nameOf(r), r.Size,
		perSecond(r.MsgsPerS.Median), perSecond(r.MsgsPerS.Min), perSecond(r.MsgsPerS.Max)))
	c.empty("rect", attr{"x", rate.start, "y", y, "width", length, "height", barHeight,
		"fill", l.colour, "fill-opacity", opacity})
	c.close("g")
	if r.MsgsPerS.Min < r.MsgsPerS.Max {
		from, to := rate.at(r.MsgsPerS.Min), rate.at(r.MsgsPerS.Max)
		c.line(from-1, middle, to+1, middle, attr{"stroke", card, "stroke-width", 4.0})
		c.line(from, middle, to, middle, attr{"stroke", ink, "stroke-width", 1.5})
	}
}
