package plot

import (
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
)

// Colours of the card and what is written on it.
const (
	card   = "#ffffff"
	edge   = "#d0d7de"
	ink    = "#1f2328"
	muted  = "#57606a"
	grid   = "#e6e9ec"
	strong = 600 // weight of a font
)

// line is a transport as the picture shows it.
type line struct {
	transport, wait string
	meaning         string
	colour          string // after Okabe and Ito, as dark as it takes to be read as text on white
	dashes          string
	shape           shape
}

// lines are the transports that are drawn. kernel-udp-mux is about what the mux
// costs others, and has no place here.
var lines = []line{
	{transport.Floor, "spin", "AF_XDP rings alone", "#6e7781", "2 3", ring},
	{transport.Message, "spin", "unet messages", "#0072b2", "", circle},
	{transport.UDP, "spin", "unet UDP", "#c44f00", "", square},
	{transport.KernelUDP, "spin", "kernel sockets, spinning", ink, "", diamond},
	{"go-udp", "block", "package net, blocking", "#8f4a7d", "", triangle},
}

// lineOf is the line of a row, which Read has kept because there is one.
func lineOf(r report.Row) line {
	return lines[slices.IndexFunc(lines, func(l line) bool { return l.transport == r.Transport })]
}

// The picture's measures, in pixels.
const (
	width  = 960.0
	margin = 28.0
	left   = margin
	right  = width - margin
)

// Draw writes the picture of f.
func Draw(w io.Writer, f Figures) error {
	var body canvas
	y := drawHead(&body, f)
	if len(f.RoundTrips) > 0 {
		y = drawRoundTrips(&body, f.RoundTrips, y)
	}
	if len(f.OneWay) > 0 {
		y = drawOneWay(&body, f.OneWay, y)
	}
	height := drawCaption(&body, f, y)

	var page canvas
	page.open("svg", attr{
		"xmlns", "http://www.w3.org/2000/svg", "viewBox", "0 0 " + pixels(width) + " " + pixels(height),
		"width", width, "height", height, "font-family", "sans-serif", "font-size", 13.0, "fill", ink,
		"role", "img", "aria-labelledby", "unetbench-title unetbench-text",
	})
	page.leaf("title", attr{"id", "unetbench-title"}, title)
	page.leaf("desc", attr{"id", "unetbench-text"}, inWords(f))
	page.empty("rect", attr{"x", 0.5, "y", 0.5, "width", width - 1, "height", height - 1, "rx", 10.0, "fill", card, "stroke", edge})
	page.Write(body.Bytes())
	page.close("svg")
	_, err := w.Write(page.Bytes())
	return err
}

const title = "Small messages between two processes: unet and kernel sockets"

// drawHead writes title and key, and returns where the next part starts.
func drawHead(c *canvas, f Figures) float64 {
	c.text(left, 42, title, attr{"font-size", 21.0, "font-weight", strong})
	c.open("text", attr{"x", left, "y", 66.0, "fill", muted, "font-size", 12.5})
	gap := 0.0
	for _, l := range lines {
		shown := func(r report.Row) bool { return r.Transport == l.transport }
		if !slices.ContainsFunc(f.RoundTrips, shown) && !slices.ContainsFunc(f.OneWay, shown) {
			continue
		}
		c.leaf("tspan", attr{"dx", gap, "fill", l.colour, "font-weight", strong}, l.transport)
		c.leaf("tspan", attr{"dx", 5.0}, l.meaning)
		gap = 13
	}
	c.close("text")
	return 84
}

// heading writes what a part shows and how to read it.
func heading(c *canvas, y float64, what, how string) {
	c.line(left, y, right, y, attr{"stroke", grid})
	c.open("text", attr{"x", left, "y", y + 28})
	c.leaf("tspan", attr{"font-size", 15.0, "font-weight", strong}, what)
	c.leaf("tspan", attr{"dx", 10.0, "fill", muted}, how)
	c.close("text")
}

// drawCaption writes what the figures are worth, and returns the picture's
// height.
func drawCaption(c *canvas, f Figures, y float64) float64 {
	c.line(left, y, right, y, attr{"stroke", grid})
	text := []string{
		"Medians of interleaved rounds" + roundsOf(f) + "; thin bars run from the lowest round to the highest. Two hosts (network namespaces) joined by a veth pair,",
		"client and server on one core each, of two; kernel sockets on an identical pair without XDP. Absolute times are one machine's: compare the ratios.",
	}
	if f.Silent > 0 {
		text = append(text, fmt.Sprintf("Rounds in which nothing arrived, left out: %d.", f.Silent))
	}
	y += 6
	for _, t := range text {
		y += 16
		c.text(left, y, t, attr{"font-size", 11.5, "fill", muted})
	}
	return y + 20
}

// roundsOf says how many rounds a median is about.
func roundsOf(f Figures) string {
	low, high := 0, 0
	for _, rows := range [][]report.Row{f.RoundTrips, f.OneWay} {
		for _, r := range rows {
			if low == 0 || r.Rounds < low {
				low = r.Rounds
			}
			high = max(high, r.Rounds)
		}
	}
	if low == high {
		return fmt.Sprintf(" (%d)", low)
	}
	return fmt.Sprintf(" (%d to %d)", low, high)
}

// inWords tells the figures at the compared size to who does not see them.
func inWords(f Figures) string {
	text := ""
	size := comparedSize(f.RoundTrips)
	for _, r := range f.RoundTrips {
		if r.Size == size {
			text += fmt.Sprintf("Round trip, %s, %d bytes: %s µs. ", nameOf(r), size, microseconds(r.P50.Median))
		}
	}
	for _, r := range f.OneWay {
		text += fmt.Sprintf("One way, %s, %d bytes: %s messages a second. ", nameOf(r), r.Size, perSecond(r.MsgsPerS.Median))
	}
	return text
}

// nameOf is a row's transport and attachment.
func nameOf(r report.Row) string {
	if r.Attach == transport.None {
		return r.Transport
	}
	return r.Transport + ", " + r.Attach
}
