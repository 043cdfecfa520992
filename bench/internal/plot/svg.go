package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
)

// canvas writes SVG elements. Lengths are in pixels of the view box, y points
// down.
type canvas struct{ bytes.Buffer }

// attr are an element's attributes: names and values in turn.
type attr []any

// open starts an element, empty ends it at once.
func (c *canvas) open(name string, a attr)  { c.tag(name, a, ">\n") }
func (c *canvas) empty(name string, a attr) { c.tag(name, a, "/>\n") }
func (c *canvas) close(name string)         { c.WriteString("</" + name + ">\n") }

// leaf is an element that holds nothing but text.
func (c *canvas) leaf(name string, a attr, text string) {
	c.tag(name, a, ">")
	c.escape(text)
	c.close(name)
}

func (c *canvas) tag(name string, a attr, end string) {
	if len(a)%2 != 0 {
		panic("BUG: an attribute without a value")
	}
	c.WriteString("<" + name)
	for i := 0; i < len(a); i += 2 {
		fmt.Fprintf(c, ` %s="`, a[i])
		switch v := a[i+1].(type) {
		case float64:
			c.WriteString(pixels(v))
		default:
			c.escape(fmt.Sprint(v))
		}
		c.WriteByte('"')
	}
	c.WriteString(end)
}

func (c *canvas) escape(s string) {
	_ = xml.EscapeText(&c.Buffer, []byte(s)) // a bytes.Buffer does not fail
}

// line draws from point to point.
func (c *canvas) line(x1, y1, x2, y2 float64, a attr) {
	c.empty("line", append(attr{"x1", x1, "y1", y1, "x2", x2, "y2", y2}, a...))
}

func (c *canvas) text(x, y float64, s string, a attr) {
	c.leaf("text", append(attr{"x", x, "y", y}, a...), s)
}

// point is a place on the canvas.
type point struct{ x, y float64 }

// polyline joins points.
func (c *canvas) polyline(points []point, a attr) {
	var path bytes.Buffer
	for i, p := range points {
		if i > 0 {
			path.WriteByte(' ')
		}
		path.WriteString(pixels(p.x) + "," + pixels(p.y))
	}
	c.empty("polyline", append(attr{"points", path.String(), "fill", "none"}, a...))
}

// shape is the form of a mark.
type shape uint8

const (
	circle shape = iota
	square
	diamond
	triangle
	ring
)

// mark draws a shape about a point, all of about the same weight to the eye.
func (c *canvas) mark(s shape, p point, colour string) {
	outline := attr{"stroke", card, "stroke-width", 1.0, "fill", colour}
	polygon := func(corners ...point) {
		d := "M"
		for _, k := range corners {
			d += pixels(p.x+k.x) + "," + pixels(p.y+k.y) + " "
		}
		c.empty("path", append(attr{"d", d + "Z"}, outline...))
	}
	switch s {
	case circle:
		c.empty("circle", append(attr{"cx", p.x, "cy", p.y, "r", 4.5}, outline...))
	case ring:
		c.empty("circle", attr{"cx", p.x, "cy", p.y, "r", 3.5, "fill", card, "stroke", colour, "stroke-width", 1.8})
	case square:
		c.empty("rect", append(attr{"x", p.x - 4, "y", p.y - 4, "width", 8.0, "height", 8.0}, outline...))
	case diamond:
		polygon(point{0, -5.6}, point{5.6, 0}, point{0, 5.6}, point{-5.6, 0})
	case triangle:
		polygon(point{0, -5.2}, point{5.2, 4}, point{-5.2, 4})
	}
}

// pixels writes a length to a tenth of a pixel.
func pixels(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}
