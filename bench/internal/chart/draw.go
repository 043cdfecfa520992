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

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
)

// style is how a transport is drawn.
type style struct {
	transport, wait string
	color           color.RGBA // after Okabe and Ito, dark enough to be read as text on white
	mark            draw.GlyphDrawer
	dashes          []vg.Length
}

// series are the transports that are drawn. kernel-udp-mux is left out: it is about what
// the mux costs others.
var series = []style{
	{transport.Floor, "spin", color.RGBA{0x6e, 0x77, 0x81, 255}, draw.RingGlyph{}, []vg.Length{2, 2}},
	{transport.Message, "spin", color.RGBA{0x00, 0x72, 0xb2, 255}, draw.CircleGlyph{}, nil},
	{transport.UDP, "spin", color.RGBA{0xc4, 0x4f, 0x00, 255}, draw.BoxGlyph{}, nil},
	{transport.KernelUDP, "spin", color.RGBA{0x1f, 0x23, 0x28, 255}, draw.CrossGlyph{}, nil},
	{transport.GoUDP, "block", color.RGBA{0x8f, 0x4a, 0x7d, 255}, draw.PyramidGlyph{}, nil},
}

var grid = color.RGBA{0xe0, 0xe4, 0xe8, 255}

// Lengths in points.
const (
	width       = 720
	margin      = 14
	panelHeight = 290 // round trips
	legendWidth = 108 // right of each panel
	barStep     = 21
	barsHeight  = 64 // and a barStep for each bar
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
}

// Draw writes the chart of f as SVG.
func Draw(w io.Writer, f Figures) error {
	bars := vg.Length(0)
	if len(f.OneWay) > 0 {
		bars = barsHeight + vg.Length(len(f.OneWay))*barStep
	}
	height := 2*margin + bars
	if len(f.RoundTrips) > 0 {
		height += panelHeight
	}
	svg := vgsvg.New(width, height)
	c := draw.New(svg)
	c.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	c = draw.Crop(c, margin, -margin, margin, -margin)
	if len(f.RoundTrips) > 0 {
		if err := drawRoundTrips(draw.Crop(c, 0, 0, bars, 0), f); err != nil {
			return err
		}
	}
	if len(f.OneWay) > 0 {
		if err := drawOneWay(draw.Crop(c, 0, 0, 0, bars-(c.Max.Y-c.Min.Y)), f.OneWay); err != nil {
			return err
		}
	}
	var page bytes.Buffer
	if _, err := svg.WriteTo(&page); err != nil {
		return err
	}
	// The same letters are as wide in Arial, for readers without Liberation.
	_, err := w.Write(bytes.ReplaceAll(page.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")))
	return err
}

// roundsOf says how many rounds a median is about.
func roundsOf(rows []report.Row) string {
	low, high := math.MaxInt, 0
	for _, r := range rows {
		low, high = min(low, len(r.Records)), max(high, len(r.Records))
	}
	switch {
	case high == 1:
		return "1 round"
	case low == high:
		return fmt.Sprintf("%d rounds", low)
	}
	return fmt.Sprintf("%d to %d rounds", low, high)
}

// newPlot is an empty plot with a grid of lines for its values.
func newPlot(title string, vertical bool) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text, p.Title.TextStyle.Font.Size, p.Title.Padding = title, 10, 6
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Width = 0
		a.Tick.LineStyle.Width, a.Tick.Length = 0, 3
		a.Tick.Label.Font.Size, a.Label.TextStyle.Font.Size = 9, 9
	}
	g := plotter.NewGrid()
	g.Vertical, g.Horizontal = draw.LineStyle{}, draw.LineStyle{}
	if line := (draw.LineStyle{Color: grid, Width: 0.7}); vertical {
		g.Vertical = line
	} else {
		g.Horizontal = line
	}
	p.Add(g)
	return p
}

// drawRoundTrips draws a panel for each attachment, with the same axes. Rows without an
// attachment are in every panel.
func drawRoundTrips(c draw.Canvas, f Figures) error {
	panels := []string{"port", "queue"}
	has := func(attach string) func(report.Row) bool {
		return func(r report.Row) bool { return r.Attach == attach }
	}
	if panels = slices.DeleteFunc(panels, func(p string) bool { return !slices.ContainsFunc(f.RoundTrips, has(p)) }); len(panels) == 0 {
		panels = []string{transport.None}
	}
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: 14, PadBottom: 14}
	for i, panel := range panels {
		of := slices.DeleteFunc(slices.Clone(f.RoundTrips), func(r report.Row) bool { return r.Attach != panel && r.Attach != transport.None })
		title := "Round trips, " + panel + ": medians of " + roundsOf(of)
		if f.Silent > 0 {
			title += fmt.Sprintf("; %d without messages left out", f.Silent)
		}
		p, legend, err := roundTrips(title, f.RoundTrips, of)
		if err != nil {
			return err
		}
		tile := tiles.At(c, i, 0)
		p.Draw(draw.Crop(tile, 0, -legendWidth, 0, 0))
		legend.Draw(draw.Crop(tile, tile.Max.X-tile.Min.X-legendWidth+6, 0, 0, -20))
	}
	return nil
}

// roundTrips is a panel of some rows, on axes for all, and its legend.
func roundTrips(title string, all, rows []report.Row) (*plot.Plot, plot.Legend, error) {
	p, legend := newPlot(title, false), plot.NewLegend()
	var sizes []int
	low, high := math.Inf(1), 0.0
	for _, r := range all {
		sizes = append(sizes, r.Size)
		low, high = min(low, r.P50().Min), max(high, r.P50().Max)
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	ticks := logTicks(low, high)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Label.Text, p.X.Label.Text = "µs, log scale", "message size, bytes"
	names := make([]string, len(sizes))
	for i, s := range sizes {
		names[i] = strconv.Itoa(s)
	}
	p.NominalX(names...)
	p.X.Width, p.X.Padding = 0, 4

	// The highest line at the compared size comes first in the legend.
	compared := comparedSize(all)
	at := func(s style) (v float64) {
		if i := slices.IndexFunc(rows, func(r report.Row) bool { return r.Transport == s.transport && r.Size == compared }); i >= 0 {
			v = rows[i].P50().Median
		}
		return v
	}
	order := slices.SortedStableFunc(slices.Values(series), func(a, b style) int { return cmp.Compare(at(b), at(a)) })
	legend.Top, legend.Left = true, true
	legend.ThumbnailWidth, legend.Padding, legend.TextStyle.Font.Size = 18, 4, 9
	legend.Add(fmt.Sprintf("µs at %d B", compared))
	for i, s := range order {
		line, err := addLine(p, s, rows, sizes, 0.09*(float64(i)-float64(len(order)-1)/2))
		if err != nil {
			return nil, legend, err
		}
		if line == nil {
			continue
		}
		name := s.transport
		if v := at(s); v > 0 {
			name += " " + threeDigits(v)
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
				v := r.P50()
				points.XYs = append(points.XYs, plotter.XY{X: float64(i) + aside, Y: v.Median})
				points.YErrors = append(points.YErrors, struct{ Low, High float64 }{v.Median - v.Min, v.Max - v.Median})
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

// drawOneWay draws a bar for each row, the longest on top. Bars of kernel-udp have the figure 1.00.
func drawOneWay(c draw.Canvas, rows []report.Row) error {
	rows = slices.SortedStableFunc(slices.Values(rows), func(a, b report.Row) int { return cmp.Compare(a.MsgsPerS().Median, b.MsgsPerS().Median) })
	p := newPlot(fmt.Sprintf("One way, million messages of %d bytes a second, sent one at a time (in brackets / kernel-udp): medians of %s", rows[0].Size, roundsOf(rows)), true)
	kernel := slices.IndexFunc(rows, func(r report.Row) bool { return r.Transport == transport.KernelUDP })
	var names, figures []string
	var ends plotter.XYs
	high := 0.0
	for i, r := range rows {
		v := r.MsgsPerS().Median / 1e6
		name, figure := r.Transport, threeDigits(v)
		if r.Attach != transport.None {
			name += ", " + r.Attach
		}
		if kernel >= 0 {
			figure += fmt.Sprintf(" (%.2f)", v/(rows[kernel].MsgsPerS().Median/1e6))
		}
		names, figures, ends = append(names, name), append(figures, figure), append(ends, plotter.XY{X: v, Y: float64(i)})
		high = max(high, v)
		bar, err := plotter.NewBarChart(plotter.Values{v}, 14)
		if err != nil {
			return err
		}
		s := series[slices.IndexFunc(series, func(s style) bool { return s.transport == r.Transport })]
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, float64(i), 0, s.color
		p.Add(bar)
	}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: ends, Labels: figures})
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Size, labels.TextStyle[i].YAlign = 9, draw.YCenter
	}
	labels.Offset.X = 7
	p.Add(labels)
	p.NominalY(names...)
	p.Y.Width, p.Y.Padding = 0, 2
	p.Y.Min, p.Y.Max = -0.6, float64(len(rows))-0.4
	p.X.Min, p.X.Max = 0, high*1.3 // room for the figures
	p.Draw(c)
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

// threeDigits writes a positive figure.
func threeDigits(v float64) string {
	return strconv.FormatFloat(v, 'f', max(0, min(3, 2-int(math.Floor(math.Log10(v))))), 64)
}
