package chart

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	xfont "golang.org/x/image/font"

	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
)

// style is how a transport is drawn.
type style struct {
	transport, wait string
	meaning         string
	color           color.RGBA // after Okabe and Ito, dark enough to be read as text on white
	mark            draw.GlyphDrawer
	dashes          []vg.Length
}

// series are the transports that are drawn. kernel-udp-mux is left out: it is about what
// the mux costs others.
var series = []style{
	{transport.Floor, "spin", "AF_XDP rings alone", color.RGBA{0x6e, 0x77, 0x81, 255}, draw.RingGlyph{}, []vg.Length{2, 2}},
	{transport.Message, "spin", "unet messages", color.RGBA{0x00, 0x72, 0xb2, 255}, draw.CircleGlyph{}, nil},
	{transport.UDP, "spin", "unet UDP", color.RGBA{0xc4, 0x4f, 0x00, 255}, draw.BoxGlyph{}, nil},
	{transport.KernelUDP, "spin", "kernel sockets, spinning", ink, draw.CrossGlyph{}, nil},
	{transport.GoUDP, "block", "package net, blocking", color.RGBA{0x8f, 0x4a, 0x7d, 255}, draw.PyramidGlyph{}, nil},
}

var (
	ink   = color.RGBA{0x1f, 0x23, 0x28, 255}
	muted = color.RGBA{0x57, 0x60, 0x6a, 255}
	grid  = color.RGBA{0xe0, 0xe4, 0xe8, 255}
)

// styleOf is the style of a row; Read keeps rows that have one.
func styleOf(r report.Row) style {
	return series[slices.IndexFunc(series, func(s style) bool { return s.transport == r.Transport })]
}

// Lengths in points.
const (
	width        = 720
	margin       = 18
	headHeight   = 58
	panelHeight  = 300 // round trips
	legendWidth  = 108 // right of each panel
	barStep      = 21
	barsHeight   = 64 // and a barStep for each bar
	footerHeight = 40
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
}

// Draw writes the chart of f as SVG.
func Draw(w io.Writer, f Figures) error {
	height := vg.Length(headHeight + footerHeight)
	if len(f.RoundTrips) > 0 {
		height += panelHeight
	}
	if len(f.OneWay) > 0 {
		height += barsHeight + vg.Length(len(f.OneWay))*barStep
	}
	svg := vgsvg.New(width, height)
	c := draw.New(svg)
	c.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	c = draw.Crop(c, margin, -margin, 0, 0)
	top := drawHead(c, f)
	if len(f.RoundTrips) > 0 {
		if err := drawRoundTrips(draw.Crop(c, 0, 0, top-panelHeight-c.Min.Y, top-c.Max.Y), f.RoundTrips); err != nil {
			return err
		}
		top -= panelHeight
	}
	if len(f.OneWay) > 0 {
		if err := drawOneWay(draw.Crop(c, 0, 0, footerHeight, top-c.Max.Y), f.OneWay); err != nil {
			return err
		}
	}
	drawFooter(c, f)
	var page bytes.Buffer
	if _, err := svg.WriteTo(&page); err != nil {
		return err
	}
	// The same letters are as wide in Arial, for readers without Liberation.
	_, err := w.Write(bytes.ReplaceAll(page.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")))
	return err
}

// letters is a style of text.
func letters(size vg.Length, c color.Color, bold bool) text.Style {
	f := font.From(plot.DefaultFont, size)
	if bold {
		f.Weight = xfont.WeightBold
	}
	return text.Style{Color: c, Font: f, Handler: plot.DefaultTextHandler, YAlign: text.YCenter}
}

// drawHead writes the title and what the names mean, and returns where the next part
// begins.
func drawHead(c draw.Canvas, f Figures) vg.Length {
	at := vg.Point{X: c.Min.X, Y: c.Max.Y - 22}
	c.FillText(letters(15, ink, true), at, "Small messages between two processes: unet and kernel sockets")
	at.Y -= 20
	for _, s := range series {
		if !slices.ContainsFunc(slices.Concat(f.RoundTrips, f.OneWay), func(r report.Row) bool { return r.Transport == s.transport }) {
			continue
		}
		for _, t := range []struct {
			text.Style
			words string
		}{{letters(9, s.color, true), s.transport + " "}, {letters(9, muted, false), s.meaning + "    "}} {
			c.FillText(t.Style, at, t.words)
			at.X += t.Width(t.words)
		}
	}
	return c.Max.Y - headHeight
}

// drawFooter writes what the figures are.
func drawFooter(c draw.Canvas, f Figures) {
	lines := []string{
		"Medians of interleaved rounds" + roundsOf(f) + "; thin bars run from the lowest round to the highest. Two hosts (network namespaces) joined by a veth pair, client and",
		"server on one core each, of two; kernel sockets on an identical pair without XDP. Absolute times are one machine's: compare the ratios.",
	}
	if f.Silent > 0 {
		lines[1] += fmt.Sprintf(" Rounds left out because nothing arrived: %d.", f.Silent)
	}
	for i, line := range lines {
		c.FillText(letters(8, muted, false), vg.Point{X: c.Min.X, Y: 26 - 11*vg.Length(i)}, line)
	}
}

// roundsOf says how many rounds a median is about.
func roundsOf(f Figures) string {
	low, high := math.MaxInt, 0
	for _, r := range slices.Concat(f.RoundTrips, f.OneWay) {
		low, high = min(low, r.Rounds), max(high, r.Rounds)
	}
	if low == high {
		return fmt.Sprintf(" (%d)", low)
	}
	return fmt.Sprintf(" (%d to %d)", low, high)
}

// heading writes a title at the top left, in bold up to its colon, and returns the canvas
// below it.
func heading(c draw.Canvas, title string) draw.Canvas {
	at := vg.Point{X: c.Min.X, Y: c.Max.Y - 8}
	name, about, _ := strings.Cut(title, ":")
	c.FillText(letters(10, ink, true), at, name)
	at.X += letters(10, ink, true).Width(name + " ")
	c.FillText(letters(10, muted, false), at, about)
	return draw.Crop(c, 0, 0, 0, -24)
}

// newPlot is an empty plot.
func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Width = 0
		a.Tick.LineStyle.Width, a.Tick.Length = 0, 3
		a.Tick.Label.Color, a.Tick.Label.Font.Size = muted, 9
		a.Label.TextStyle.Color, a.Label.TextStyle.Font.Size = muted, 9
	}
	return p
}

// gridOf is the grid of an axis: vertical lines of X, horizontal ones of Y.
func gridOf(vertical bool) *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical, g.Horizontal = draw.LineStyle{}, draw.LineStyle{}
	if line := (draw.LineStyle{Color: grid, Width: 0.7}); vertical {
		g.Vertical = line
	} else {
		g.Horizontal = line
	}
	return g
}

// drawRoundTrips draws a panel for each attachment, with the same axes. Rows without an
// attachment are in every panel.
func drawRoundTrips(c draw.Canvas, rows []report.Row) error {
	panels := []struct{ attach, title string }{
		{"port", "Port: the default; the mux checks every frame"},
		{"queue", "Queue: the interface's own, for trusted owners"},
	}
	panels = slices.DeleteFunc(panels, func(p struct{ attach, title string }) bool {
		return !slices.ContainsFunc(rows, func(r report.Row) bool { return r.Attach == p.attach })
	})
	if len(panels) == 0 {
		panels = append(panels, struct{ attach, title string }{transport.None, "Kernel sockets"})
	}
	c = heading(c, "Round trips, µs: median by message size; lower is better")
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: 14, PadBottom: 14}
	for i, panel := range panels {
		of := slices.DeleteFunc(slices.Clone(rows), func(r report.Row) bool { return r.Attach != panel.attach && r.Attach != transport.None })
		p, legend, err := roundTrips(rows, of)
		if err != nil {
			return err
		}
		tile := heading(tiles.At(c, i, 0), panel.title)
		p.Draw(draw.Crop(tile, 0, -legendWidth, 0, 0))
		legend.Draw(draw.Crop(tile, tile.Max.X-tile.Min.X-legendWidth+6, 0, 0, 0))
	}
	return nil
}

// roundTrips is a panel of some rows, on axes for all, and its legend.
func roundTrips(all, rows []report.Row) (*plot.Plot, plot.Legend, error) {
	p, legend := newPlot(), plot.NewLegend()
	var sizes []int
	low, high := math.Inf(1), 0.0
	for _, r := range all {
		sizes = append(sizes, r.Size)
		low, high = min(low, r.P50.Min), max(high, r.P50.Max)
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	ticks := logTicks(low, high)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Label.Text, p.X.Label.Text = "µs, log scale", "message size, bytes"
	names := make([]string, len(sizes))
	for i, s := range sizes {
		names[i] = thousands(s)
	}
	p.NominalX(names...)
	p.X.Width, p.X.Padding = 0, 4
	p.Add(gridOf(false))

	// The highest line at the compared size comes first in the legend.
	compared := comparedSize(all)
	at := func(s style) (report.Row, bool) {
		i := slices.IndexFunc(rows, func(r report.Row) bool { return r.Transport == s.transport && r.Size == compared })
		if i < 0 {
			return report.Row{}, false
		}
		return rows[i], true
	}
	order := slices.SortedStableFunc(slices.Values(series), func(a, b style) int {
		ra, _ := at(a)
		rb, _ := at(b)
		return cmp.Compare(rb.P50.Median, ra.P50.Median)
	})
	legend.Top, legend.Left = true, true
	legend.ThumbnailWidth, legend.Padding = 18, 4
	legend.TextStyle.Font.Size, legend.TextStyle.Color = 9, ink
	legend.Add(fmt.Sprintf("µs at %s B", thousands(compared)))
	for i, s := range order {
		line, err := addLine(p, s, rows, sizes, 0.09*(float64(i)-float64(len(order)-1)/2))
		if err != nil {
			return nil, legend, err
		}
		if line == nil {
			continue
		}
		name := s.transport
		if r, ok := at(s); ok {
			name += " " + microseconds(r.P50.Median)
		}
		legend.Add(name, line...)
	}
	p.Y.Min, p.Y.Max = ticks[0].Value, ticks[len(ticks)-1].Value
	p.X.Min, p.X.Max = -0.5, float64(len(sizes))-0.5
	return p, legend, nil
}

// addLine draws the line of a transport and returns what the legend shows, or nil if there
// are no rows of it. Marks are shifted by aside on the axis of sizes, so that those of
// different transports do not overlap.
func addLine(p *plot.Plot, s style, rows []report.Row, sizes []int, aside float64) ([]plot.Thumbnailer, error) {
	var points struct {
		plotter.XYs
		plotter.YErrors
	}
	for i, size := range sizes {
		for _, r := range rows {
			if r.Transport == s.transport && r.Size == size {
				points.XYs = append(points.XYs, plotter.XY{X: float64(i) + aside, Y: r.P50.Median})
				points.YErrors = append(points.YErrors, struct{ Low, High float64 }{r.P50.Median - r.P50.Min, r.P50.Max - r.P50.Median})
			}
		}
	}
	if len(points.XYs) == 0 {
		return nil, nil
	}
	line, marks, err := plotter.NewLinePoints(points.XYs)
	if err != nil {
		return nil, err
	}
	spread, err := plotter.NewYErrorBars(points)
	if err != nil {
		return nil, err
	}
	line.LineStyle = draw.LineStyle{Color: s.color, Width: 1.4, Dashes: s.dashes}
	marks.GlyphStyle = draw.GlyphStyle{Color: s.color, Radius: 3, Shape: s.mark}
	spread.LineStyle, spread.CapWidth = draw.LineStyle{Color: s.color, Width: 0.8}, 0
	p.Add(spread, line, marks)
	return []plot.Thumbnailer{line, marks}, nil
}

// drawOneWay draws a bar for each row, the longest on top.
func drawOneWay(c draw.Canvas, rows []report.Row) error {
	rows = slices.SortedStableFunc(slices.Values(rows), func(a, b report.Row) int { return cmp.Compare(a.MsgsPerS.Median, b.MsgsPerS.Median) })
	title := fmt.Sprintf("One way, messages a second: %s bytes each, sent one at a time", thousands(rows[0].Size))
	if window := rows[0].CreditWindow; window > 0 {
		title += fmt.Sprintf(", at most %s on their way", thousands(window))
	}
	c = heading(c, title+"; higher is better")
	p := newPlot()
	p.Add(gridOf(true))
	var names, figures []string
	var ends plotter.XYs
	kernel := slices.IndexFunc(rows, func(r report.Row) bool { return r.Transport == transport.KernelUDP })
	for i, r := range rows {
		name := r.Transport
		if r.Attach != transport.None {
			name += ", " + r.Attach
		}
		figure := perSecond(r.MsgsPerS.Median)
		switch {
		case i == kernel:
			figure += ", 1× (reference)"
		case kernel >= 0:
			figure += fmt.Sprintf(", %.2f× kernel-udp", r.MsgsPerS.Median/rows[kernel].MsgsPerS.Median)
		}
		names, figures = append(names, name), append(figures, figure)
		ends = append(ends, plotter.XY{X: r.MsgsPerS.Max, Y: float64(i)})
		if err := addBar(p, r, i); err != nil {
			return err
		}
	}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: ends, Labels: figures})
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i] = letters(9, ink, false)
	}
	labels.Offset.X = 7
	p.Add(labels)
	p.NominalY(names...)
	p.Y.Width, p.Y.Padding = 0, 2
	p.Y.Min, p.Y.Max = -0.6, float64(len(rows))-0.4
	high := slices.MaxFunc(rows, func(a, b report.Row) int { return cmp.Compare(a.MsgsPerS.Max, b.MsgsPerS.Max) }).MsgsPerS.Max
	p.X.Min, p.X.Max = 0, high*1.3 // room for the figures
	p.X.Tick.Marker = rateTicks(high)
	p.Draw(draw.Crop(c, 0, -margin, 0, 0))
	return nil
}

// addBar draws the i-th bar and its spread. A port's bar is lighter than a queue's.
func addBar(p *plot.Plot, r report.Row, i int) error {
	bar, err := plotter.NewBarChart(plotter.Values{r.MsgsPerS.Median}, 14)
	if err != nil {
		return err
	}
	bar.Horizontal, bar.XMin, bar.LineStyle.Width = true, float64(i), 0
	c := styleOf(r).color
	if r.Attach == "port" {
		for _, v := range []*uint8{&c.R, &c.G, &c.B} {
			*v = 255 - (255-*v)/5*3
		}
	}
	bar.Color = c
	p.Add(bar)
	spread, err := plotter.NewXErrorBars(struct {
		plotter.XYs
		plotter.XErrors
	}{plotter.XYs{{X: r.MsgsPerS.Median, Y: float64(i)}}, plotter.XErrors{{Low: r.MsgsPerS.Median - r.MsgsPerS.Min, High: r.MsgsPerS.Max - r.MsgsPerS.Median}}})
	if err != nil {
		return err
	}
	edge := *spread // keeps the line visible on a dark bar
	edge.LineStyle, edge.CapWidth = draw.LineStyle{Color: color.White, Width: 3}, 0
	spread.LineStyle, spread.CapWidth = draw.LineStyle{Color: ink, Width: 1}, 0
	p.Add(&edge, spread)
	return nil
}

// logTicks are labelled ticks around low..high, which are positive. The wider the range,
// the fewer ticks a decade, so that labels do not overlap.
func logTicks(low, high float64) (ticks plot.ConstantTicks) {
	steps := []float64{1}
	switch {
	case high/low <= 30:
		steps = []float64{1, 1.5, 2, 3, 4, 5, 7}
	case high/low <= 3000:
		steps = []float64{1, 2, 5}
	}
	for e := int(math.Floor(math.Log10(low))) - 1; ; e++ {
		for _, step := range steps {
			v := step * math.Pow10(e)
			if v <= low {
				ticks = ticks[:0] // the first tick is the last one that is not above low
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
			if v >= high && len(ticks) > 1 {
				return ticks
			}
		}
	}
}

// rateTicks are plot's own ticks up to high, labelled with units.
func rateTicks(high float64) (ticks plot.ConstantTicks) {
	for _, t := range (plot.DefaultTicks{}).Ticks(0, high) {
		if !t.IsMinor() {
			ticks = append(ticks, plot.Tick{Value: t.Value, Label: perSecond(t.Value)})
		}
	}
	return ticks
}

// microseconds writes a round trip with three digits.
func microseconds(v float64) string {
	return strconv.FormatFloat(v, 'f', max(0, min(3, 2-int(math.Floor(math.Log10(v))))), 64)
}

// perSecond writes a rate with three digits.
func perSecond(v float64) string {
	switch {
	case v < 999.5:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case v < 999.5e3:
		return strconv.FormatFloat(v/1e3, 'f', 0, 64) + " k"
	}
	return strconv.FormatFloat(v/1e6, 'f', 2, 64) + " M"
}

// thousands writes a count with commas.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
