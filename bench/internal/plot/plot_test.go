package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

var update = flag.Bool("update", false, "write testdata/sample.svg anew")

// drawn is the picture of JSON lines.
func drawnFrom(t *testing.T, lines string) string {
	t.Helper()
	f, err := Read(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Draw(&out, f); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// element is a node of the picture as encoding/xml sees it.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

func parseXML(t *testing.T, picture string) element {
	t.Helper()
	var root element
	d := xml.NewDecoder(strings.NewReader(strings.TrimSpace(picture)))
	if err := d.Decode(&root); err != nil {
		t.Fatalf("not well-formed: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("something follows the picture: %v", err)
	}
	return root
}

func (e element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e element) number(t *testing.T, name string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(e.attr(name), 64)
	if err != nil {
		t.Fatalf("%s of <%s>: %v", name, e.XMLName.Local, err)
	}
	return v
}

// walk visits e and all below it.
func (e element) walk(visit func(element)) {
	visit(e)
	for _, c := range e.Children {
		c.walk(visit)
	}
}

// all is every element of a name.
func (e element) all(name string) []element {
	var found []element
	e.walk(func(c element) {
		if c.XMLName.Local == name {
			found = append(found, c)
		}
	})
	return found
}

// words is the text of e and all below it.
func (e element) words() string {
	var parts []string
	e.walk(func(c element) {
		if s := strings.TrimSpace(c.Text); s != "" {
			parts = append(parts, s)
		}
	})
	return strings.Join(parts, " ")
}

// titled is the shapes that carry a title with this beginning.
func (e element) titled(beginning string) []element {
	var found []element
	for _, g := range e.all("g") {
		if len(g.Children) == 2 && strings.HasPrefix(g.Children[0].Text, beginning) {
			found = append(found, g.Children[1])
		}
	}
	return found
}

// rtt and oneWay are lines of one round each.
func rtt(name, attach string, size, round int, p50 float64) string {
	wait := "spin"
	if name == "go-udp" {
		wait = "block"
	}
	return fmt.Sprintf(`{"bench":"rtt","transport":%q,"attach":%q,"wait":%q,"size":%d,"batch":1,"round":%d,"n":10,"p50_us":%v,"msgs_per_s":1}`+"\n",
		name, attach, wait, size, round, p50)
}

func oneWay(name, attach string, size, round int, rate float64) string {
	wait := "spin"
	if name == "go-udp" {
		wait = "block"
	}
	return fmt.Sprintf(`{"bench":"oneway","transport":%q,"attach":%q,"wait":%q,"size":%d,"batch":1,"round":%d,"n":10,"p50_us":null,"msgs_per_s":%v,"credit_window":128}`+"\n",
		name, attach, wait, size, round, rate)
}

func TestSampleIsDrawnAsBefore(t *testing.T) {
	lines, err := os.ReadFile(filepath.Join("testdata", "sample.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	picture := drawnFrom(t, string(lines))
	golden := filepath.Join("testdata", "sample.svg")
	if *update {
		if err := os.WriteFile(golden, []byte(picture), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if picture != string(want) {
		t.Errorf("the picture differs from %s: look at it, and accept it with -update", golden)
	}

	root := parseXML(t, picture)
	if root.XMLName.Local != "svg" || root.XMLName.Space != "http://www.w3.org/2000/svg" {
		t.Errorf("the root is %v", root.XMLName)
	}
	for _, forbidden := range []string{"<image", "<script", "<style", "href", "url(", "NaN", "Inf", "kernel-udp-mux"} {
		if strings.Contains(picture, forbidden) {
			t.Errorf("%s in a picture that stands by itself", forbidden)
		}
	}
	for _, name := range []string{"floor", "msg", "udp"} {
		for _, attach := range []string{"port", "queue"} {
			if n := len(root.titled(name + ", " + attach + ", ")); n != 5+1 {
				t.Errorf("%s, %s: %d marks and bars, want 5 sizes and one rate", name, attach, n)
			}
		}
	}
	for _, name := range []string{"kernel-udp", "go-udp"} {
		if n := len(root.titled(name + ", ")); n != 2*5+1 {
			t.Errorf("%s: %d marks and bars, want 5 sizes in two fields and one rate", name, n)
		}
	}
	for _, want := range []string{"Medians of interleaved rounds (1 to 2)", "veth pair", "of two", "µs at 64 B", "1× (reference)"} {
		if !strings.Contains(root.words(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
}

// tickPlaces reads an axis back from the picture: the grid lines that have a
// label in line with them.
func tickPlaces(t *testing.T, root element, along string, figure func(string) (float64, bool)) map[float64]float64 {
	places := map[float64]float64{}
	for _, l := range root.all("line") {
		if l.attr("stroke") != grid || l.attr(along+"1") != l.attr(along+"2") {
			continue
		}
		at := l.number(t, along+"1")
		for _, label := range root.all("text") {
			anchor := map[string]string{"x": "middle", "y": "end"}[along]
			if v, ok := figure(label.Text); ok && label.attr("text-anchor") == anchor && math.Abs(label.number(t, along)-at) < 5 {
				places[v] = at
			}
		}
	}
	return places
}

func TestRoundTripsStandWhereTheAxisSaysTheyDo(t *testing.T) {
	root := parseXML(t, drawnFrom(t,
		rtt("msg", "queue", 64, 1, 9)+rtt("msg", "queue", 64, 2, 2)+rtt("msg", "queue", 64, 3, 3)+ // median 3
			rtt("msg", "queue", 16, 1, 2)+rtt("msg", "queue", 1024, 1, 6)+
			rtt("kernel-udp", "none", 64, 1, 8)+rtt("go-udp", "none", 64, 1, 16.5)))
	ticks := tickPlaces(t, root, "y", func(s string) (float64, bool) {
		v, err := strconv.ParseFloat(s, 64)
		return v, err == nil
	})
	if len(ticks) < 5 {
		t.Fatalf("ticks %v", ticks)
	}
	// Two ticks say how long a factor of e is; every mark and tick has to agree.
	perE := (ticks[10] - ticks[2]) / math.Log(5)
	place := func(us float64) float64 { return ticks[2] + perE*math.Log(us/2) }
	for us, y := range ticks {
		if math.Abs(place(us)-y) > 0.2 {
			t.Errorf("tick %v at %v, want %v", us, y, place(us))
		}
	}
	var x []float64
	for _, c := range []struct {
		size int
		us   float64
	}{{16, 2}, {64, 3}, {1024, 6}} {
		marks := root.titled(fmt.Sprintf("msg, queue, %d bytes", c.size))
		if len(marks) != 1 {
			t.Fatalf("%d marks of %d bytes", len(marks), c.size)
		}
		if y := marks[0].number(t, "cy"); math.Abs(y-place(c.us)) > 0.2 {
			t.Errorf("%v µs at %v, want %v", c.us, y, place(c.us))
		}
		x = append(x, marks[0].number(t, "cx"))
	}
	if math.Abs((x[1]-x[0])-(x[2]-x[1])) > 0.2 || x[1] <= x[0] {
		t.Errorf("sizes stand at %v, want even distances", x)
	}
	ranges := 0
	for _, l := range root.all("line") {
		if l.attr("stroke") == "#0072b2" {
			ranges++
			high, low := l.number(t, "y2"), l.number(t, "y1")
			if math.Abs(high-place(9)) > 0.2 || math.Abs(low-place(2)) > 0.2 || math.Abs(l.number(t, "x1")-x[1]) > 0.2 {
				t.Errorf("the range of 2..9 µs is drawn from %v to %v", low, high)
			}
		}
	}
	if ranges != 1 {
		t.Errorf("%d ranges, want one: single rounds have none", ranges)
	}
}

func TestBarsAreSortedAndProportional(t *testing.T) {
	root := parseXML(t, drawnFrom(t,
		oneWay("go-udp", "none", 64, 1, 300_000)+
			oneWay("msg", "port", 64, 1, 700_000)+oneWay("msg", "port", 64, 2, 500_000)+oneWay("msg", "port", 64, 3, 660_000)+
			oneWay("kernel-udp", "none", 64, 1, 400_000)+
			oneWay("udp", "queue", 64, 1, 1_200_000)+
			oneWay("udp", "queue", 1024, 1, 5_000_000))) // another size: not compared
	ticks := tickPlaces(t, root, "x", func(s string) (float64, bool) {
		number, unit, _ := strings.Cut(s, " ")
		v, err := strconv.ParseFloat(number, 64)
		return v * map[string]float64{"": 1, "k": 1e3, "M": 1e6}[unit], err == nil
	})
	unit := (ticks[1e6] - ticks[0]) / 1e6
	if ticks[0] == 0 || unit <= 0 {
		t.Fatalf("ticks %v", ticks)
	}
	y := 0.0
	for _, c := range []struct {
		name, ratio string
		rate        float64
	}{
		{"udp, queue", "3.00×", 1.2e6}, {"msg, port", "1.65×", 660e3}, {"kernel-udp", "1×", 400e3}, {"go-udp", "0.75×", 300e3},
	} {
		bars := root.titled(c.name + ", 64 bytes")
		if len(bars) != 1 {
			t.Fatalf("%s: %d bars", c.name, len(bars))
		}
		bar := bars[0]
		if w := bar.number(t, "width"); math.Abs(w-c.rate*unit) > 0.2 || math.Abs(bar.number(t, "x")-ticks[0]) > 0.1 {
			t.Errorf("%s: %v long from %v, want %v from %v", c.name, w, bar.number(t, "x"), c.rate*unit, ticks[0])
		}
		if bar.number(t, "y") <= y {
			t.Errorf("%s is not below a longer bar", c.name)
		}
		y = bar.number(t, "y")
		labelled := slices.ContainsFunc(root.all("text"), func(e element) bool {
			return strings.Contains(e.words(), perSecond(c.rate)+" "+c.ratio) && math.Abs(e.number(t, "y")-y-barHeight/2) < 8 &&
				e.number(t, "x") > bar.number(t, "x")+bar.number(t, "width")
		})
		if !labelled {
			t.Errorf("%s: no %s %s at its bar", c.name, perSecond(c.rate), c.ratio)
		}
	}
	if n := len(root.all("g")); n != 4 {
		t.Errorf("%d bars, want 4", n)
	}
}

// Names that stand on each other could not be read, nor could what leaves the
// card.
func TestEverythingIsOnTheCardAndApart(t *testing.T) {
	many := ""
	for i, name := range []string{"floor", "msg", "udp"} {
		for _, attach := range []string{"port", "queue"} {
			many += rtt(name, attach, 16, 1, 3+0.01*float64(i)) + oneWay(name, attach, 64, 1, 1e6)
		}
	}
	many += rtt("kernel-udp", "none", 16, 1, 3.02) + rtt("go-udp", "none", 16, 1, 3)
	for what, lines := range map[string]string{
		"names that collide": many,
		"one round trip":     rtt("udp", "port", 64, 1, 3),
		"the kernel alone":   rtt("kernel-udp", "none", 64, 1, 5) + oneWay("kernel-udp", "none", 64, 1, 10),
		"no kernel":          oneWay("msg", "port", 16, 1, 1),
		"far apart":          rtt("msg", "port", 16, 1, 0.0123) + rtt("msg", "port", 64, 1, 123456),
	} {
		t.Run(what, func(t *testing.T) {
			root := parseXML(t, drawnFrom(t, lines))
			height := root.number(t, "height")
			var ends []element
			root.walk(func(e element) {
				for _, name := range []string{"x", "x1", "x2", "cx", "y", "y1", "y2", "cy"} {
					limit := height
					if name[0] == 'x' || name == "cx" {
						limit = width
					}
					if e.attr(name) != "" && (e.number(t, name) < 0 || e.number(t, name) > limit) {
						t.Errorf("<%s> has its %s at %s", e.XMLName.Local, name, e.attr(name))
					}
				}
				if e.XMLName.Local == "text" && e.attr("font-weight") != "" && e.attr("font-size") == "" {
					ends = append(ends, e)
				}
			})
			for i, a := range ends {
				for _, b := range ends[:i] {
					if a.attr("x") == b.attr("x") && math.Abs(a.number(t, "y")-b.number(t, "y")) < lineHeight-0.2 {
						t.Errorf("%s and %s are written on each other", a.Text, b.Text)
					}
				}
			}
		})
	}
}

func TestLogAxisCoversAndHasRoomForItsLabels(t *testing.T) {
	for _, c := range [][2]float64{{1, 1}, {2, 2}, {2.6, 21}, {3, 30}, {9.99, 10.01}, {0.3, 0.7}, {1, 1000}, {1, 1e6}, {0.02, 5e4}, {7, 10}} {
		a := logAxis(c[0], c[1], 300, 0)
		if a.low > c[0] || a.high < c[1] || a.low >= a.high || a.at(a.low) != 300 || a.at(a.high) != 0 {
			t.Errorf("%v: axis %v..%v", c, a.low, a.high)
		}
		for i := 1; i < len(a.ticks); i++ {
			if gap := a.at(a.ticks[i-1]) - a.at(a.ticks[i]); gap < 12.5 {
				t.Errorf("%v: ticks %v and %v are %v apart", c, a.ticks[i-1], a.ticks[i], gap)
			}
		}
	}
}

func TestLinearAxisHasAFewRoundTicks(t *testing.T) {
	round := regexp.MustCompile(`^[125]e[+-]\d+$`)
	for _, high := range []float64{1, 7, 9.99, 834e3, 1e6, 1.2e6, 5.1e6, 0.004} {
		a := linearAxis(high, 100, 700)
		if n := len(a.ticks); n < 3 || n > 6 || !round.MatchString(strconv.FormatFloat(a.ticks[1], 'e', -1, 64)) || a.ticks[n-1] > high {
			t.Errorf("%v: ticks %v", high, a.ticks)
		}
		if a.at(0) != 100 || a.at(high) != 700 {
			t.Errorf("%v: from %v to %v", high, a.at(0), a.at(high))
		}
	}
}

func TestSpreadOutMovesLittle(t *testing.T) {
	for _, c := range []struct{ wanted, want []float64 }{
		{[]float64{10, 50}, []float64{10, 50}},
		{[]float64{40, 40}, []float64{35, 45}},
		{[]float64{0, 2}, []float64{0, 10}},
		{[]float64{99, 100}, []float64{90, 100}},
		{[]float64{40, 40, 52}, []float64{34, 44, 54}},
		{nil, nil},
	} {
		if got := spreadOut(c.wanted, 10, 0, 100); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.wanted, got, c.want)
		}
	}
}

func TestBadInputIsOneLineWithItsNumber(t *testing.T) {
	good := rtt("msg", "port", 64, 1, 3)
	for _, c := range []struct{ lines, want string }{
		{good + "\n" + "Round trips of 64 bytes\n", "line 3: is not a JSON object"},
		{good + good[:40], "line 2: is not a JSON object"},
		{good[:len(good)-1] + good, "line 1: is not a JSON object"},
		{"[]\n", "line 1: is not a JSON object"},
		{good + strings.Replace(good, `"size":64`, `"size":"64"`, 1), "line 2: size is a JSON string"},
		{strings.Replace(good, `"rtt"`, `"walk"`, 1), `line 1: unknown bench "walk"`},
		{strings.Replace(good, `"msg"`, `"smoke"`, 1), `line 1: unknown transport "smoke"`},
		{strings.Replace(good, `"port"`, `"none"`, 1), `line 1: attach "none" does not go with msg`},
		{strings.Replace(good, `"spin"`, `"doze"`, 1), `line 1: wait "doze" does not go with msg`},
		{strings.Replace(good, `"size":64`, `"size":0`, 1), "line 1: size 0"},
		{rtt("msg", "port", 64, 1, 0), "line 1: p50_us 0: want"},
		{rtt("msg", "port", 64, 1, -4), "line 1: p50_us -4: want"},
		{strings.Replace(good, `"p50_us":3`, `"p50_us":null`, 1), "line 1: a round of rtt without p50_us"},
		{oneWay("msg", "port", 64, 1, 0), "line 1: msgs_per_s 0: want"},
		{good + strings.Repeat(" ", maxLine+1) + "\n", "line 2: is far too long"},
		{"", "nothing to draw"},
		{"\n{\"bench\":\"memory\",\"transport\":\"msg\"}\n", "nothing to draw"},
		{strings.Replace(good, `"spin"`, `"block"`, 1), "nothing to draw"},
		{strings.Replace(good, `"n":10`, `"n":0`, 1), "nothing to draw"},
	} {
		_, err := Read(strings.NewReader(c.lines))
		var bad *InputError
		if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %s", c.lines, err, c.want)
		}
	}
	broken := errors.New("broken pipe")
	_, err := Read(io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

func TestSilentRoundsAreLeftOutAndSaidToBe(t *testing.T) {
	good := rtt("msg", "port", 64, 1, 3)
	silent := strings.Replace(strings.Replace(good, `"n":10`, `"n":0`, 1), `"p50_us":3`, `"p50_us":0`, 1)
	picture := drawnFrom(t, good+silent)
	if !strings.Contains(picture, "Rounds in which nothing arrived, left out: 1.") || !strings.Contains(picture, "rounds (1)") {
		t.Error("a round without an answer is not mentioned, or is in the median")
	}
}

func FuzzReadAndDraw(f *testing.F) {
	sample, err := os.ReadFile(filepath.Join("testdata", "sample.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sample[:2000])
	f.Add([]byte(rtt("msg", "port", 64, 1, least) + rtt("msg", "port", 16, 1, most)))
	f.Add([]byte(oneWay("udp", "queue", 64, 1, most)))
	f.Fuzz(func(t *testing.T, lines []byte) {
		figures, err := Read(bytes.NewReader(lines))
		if err != nil {
			return
		}
		var out strings.Builder
		if err := Draw(&out, figures); err != nil {
			t.Fatal(err)
		}
		if s := out.String(); strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
			t.Errorf("a figure is nowhere:\n%s", s)
		}
		parseXML(t, out.String())
	})
}
