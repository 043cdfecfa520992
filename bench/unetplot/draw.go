package main

import (
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
	plotdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// style is how a transport is drawn.
type style struct {
	transport, wait string
	color           color.RGBA // after Okabe and Ito, dark enough to be read as text on white
	mark            plotdraw.GlyphDrawer
}

// series are the transports that are drawn. go-udp blocks: it cannot spin.
var series = []style{
	{transport.Floor, "spin", color.RGBA{0x6e, 0x77, 0x81, 255}, plotdraw.RingGlyph{}},
	{transport.Message, "spin", color.RGBA{0x00, 0x72, 0xb2, 255}, plotdraw.CircleGlyph{}},
	{transport.UDP, "spin", color.RGBA{0xc4, 0x4f, 0x00, 255}, plotdraw.BoxGlyph{}},
	{transport.KernelUDP, "spin", color.RGBA{0x1f, 0x23, 0x28, 255}, plotdraw.CrossGlyph{}},
	{transport.GoUDP, "block", color.RGBA{0x8f, 0x4a, 0x7d, 255}, plotdraw.PyramidGlyph{}},
}

const width, panel = 720, 290 // points

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
}

// draw writes a picture with a panel for the round trips of each attachment, beside each other, and below one for
// each size of messages one way.
func draw(w io.Writer, rows []report.Row) error {
	var top, below []*plot.Plot
	for _, attach := range attachments(rows) {
		p, err := roundTrips(attach, rows)
		if err != nil {
			return err
		}
		top = append(top, p)
	}
	var sizes []int
	for _, r := range rows {
		if r.Bench == workload.OneWay && !slices.Contains(sizes, r.Size) {
			sizes = append(sizes, r.Size)
		}
	}
	for _, size := range sizes {
		p, err := oneWay(size, rows)
		if err != nil {
			return err
		}
		below = append(below, p)
	}
	var lines [][]*plot.Plot
	if len(top) > 0 {
		lines = append(lines, top)
	}
	for _, p := range below {
		lines = append(lines, []*plot.Plot{p})
	}
	svg := vgsvg.New(width, vg.Length(panel*len(lines)))
	all := plotdraw.New(svg)
	all.FillPolygon(color.White, []vg.Point{all.Min, {X: all.Max.X, Y: all.Min.Y}, all.Max, {X: all.Min.X, Y: all.Max.Y}})
	for y, line := range lines {
		for x, p := range line {
			tiles := plotdraw.Tiles{Rows: len(lines), Cols: len(line), PadX: 14, PadY: 14, PadTop: 14, PadBottom: 14, PadLeft: 14, PadRight: 14}
			p.Draw(tiles.At(all, x, y))
		}
	}
	_, err := svg.WriteTo(w)
	return err
}

// attachments are those of the endpoints with round trips, or none if there are only kernel sockets.
func attachments(rows []report.Row) (all []string) {
	some := false
	for _, r := range rows {
		if r.Bench != workload.RTT {
			continue
		}
		some = true
		if r.Attach != workload.None && !slices.Contains(all, r.Attach) {
			all = append(all, r.Attach)
		}
	}
	if some && len(all) == 0 {
		return []string{workload.None}
	}
	slices.Sort(all)
	return all
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, 10
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Tick.Label.Font.Size, a.Label.TextStyle.Font.Size = 9, 9
	}
	p.Legend.Top, p.Legend.Left, p.Legend.TextStyle.Font.Size = true, true, 9
	p.Add(plotter.NewGrid())
	return p
}

// points are medians with their extremes.
type points struct {
	plotter.XYs
	plotter.YErrors
}

// roundTrips draws a line for each transport over an attachment, and for those without one. The axis of times is
// logarithmic, because what matters is the ratio of two transports. Thin bars run from the lowest round to the
// highest.
func roundTrips(attach string, all []report.Row) (*plot.Plot, error) {
	p := newPlot("Round trips, " + attach)
	p.X.Label.Text, p.Y.Label.Text = "message size, bytes", "µs"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	rows := slices.DeleteFunc(slices.Clone(all), func(r report.Row) bool {
		return r.Bench != workload.RTT || r.Attach != attach && r.Attach != workload.None
	})
	var sizes []int
	for _, r := range rows {
		sizes = append(sizes, r.Size)
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	var names []string
	for _, s := range sizes {
		names = append(names, strconv.Itoa(s))
	}
	for i, s := range series {
		var at points
		for x, size := range sizes {
			for _, r := range rows {
				if r.Transport == s.transport && r.Size == size {
					v := r.P50()
					aside := 0.06 * float64(i-len(series)/2) // so that marks do not overlap
					at.XYs = append(at.XYs, plotter.XY{X: float64(x) + aside, Y: v.Median})
					at.YErrors = append(at.YErrors, struct{ Low, High float64 }{v.Median - v.Min, v.Max - v.Median})
				}
			}
		}
		if len(at.XYs) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(at.XYs)
		if err != nil {
			return nil, err
		}
		spread, err := plotter.NewYErrorBars(at)
		if err != nil {
			return nil, err
		}
		line.Color, spread.Color = s.color, s.color
		marks.GlyphStyle = plotdraw.GlyphStyle{Color: s.color, Radius: 3, Shape: s.mark}
		p.Add(spread, line, marks)
		p.Legend.Add(fmt.Sprintf("%s %.3g", s.transport, at.XYs[0].Y), line, marks)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(sizes))-0.5
	p.Y.Min, p.Y.Max = p.Y.Min/2, p.Y.Max*2 // a single value has an axis too
	return p, nil
}

// oneWay draws a bar for each transport and attachment.
func oneWay(size int, all []report.Row) (*plot.Plot, error) {
	p := newPlot(fmt.Sprintf("One way, messages of %d bytes, sent one at a time", size))
	p.Y.Label.Text = "million a second"
	var names []string
	for _, r := range all {
		if r.Bench != workload.OneWay || r.Size != size {
			continue
		}
		v := r.MsgsPerS().Median / 1e6
		bar, err := plotter.NewBarChart(plotter.Values{v}, 20)
		if err != nil {
			return nil, err
		}
		s := series[slices.IndexFunc(series, func(s style) bool { return s.transport == r.Transport })]
		bar.XMin, bar.LineStyle.Width, bar.Color = float64(len(names)), 0, s.color
		p.Add(bar)
		name := r.Transport
		if r.Attach != workload.None {
			name += ", " + r.Attach
		}
		names = append(names, fmt.Sprintf("%s\n%.3g", name, v))
	}
	p.NominalX(names...)
	return p, nil
}

// logTicks are ticks from low to high, which are positive, at 1, 2 and 5 of each power of ten.
func logTicks(low, high float64) (ticks []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for _, step := range []float64{1, 2, 5} {
			if v := step * math.Pow(10, e); v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
			}
		}
	}
	return ticks
}
