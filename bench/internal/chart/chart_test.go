package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// drawnFrom is the chart of JSON lines.
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

// textsOf parses a picture and lists its texts in the order in which they are drawn.
func textsOf(t *testing.T, picture string) (texts []string) {
	t.Helper()
	if strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") {
		t.Errorf("a coordinate is NaN or Inf:\n%s", picture)
	}
	inText := false
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return texts
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			inText = e.Name.Local == "text"
		case xml.CharData:
			if inText {
				texts = append(texts, strings.TrimSpace(string(e)))
				inText = false
			}
		}
	}
}

// inOrder reports whether all of want are in texts, in this order.
func inOrder(texts []string, want ...string) bool {
	for _, w := range want {
		i := slices.Index(texts, w)
		if i < 0 {
			return false
		}
		texts = texts[i+1:]
	}
	return true
}

func waitOf(name string) string {
	if name == "go-udp" {
		return "block"
	}
	return "spin"
}

// rtt and oneWay are lines of one round each.
func rtt(name, attach string, size, round int, p50 float64) string {
	return fmt.Sprintf(`{"bench":"rtt","transport":%q,"attach":%q,"place":"pair","wait":%q,"size":%d,"batch":1,"round":%d,"n":10,"p50_us":%v,"msgs_per_s":1}`+"\n",
		name, attach, waitOf(name), size, round, p50)
}

func oneWay(name, attach string, size, round int, rate float64) string {
	return fmt.Sprintf(`{"bench":"oneway","transport":%q,"attach":%q,"place":"pair","wait":%q,"size":%d,"batch":1,"round":%d,"n":10,"p50_us":null,"msgs_per_s":%v,"credit_window":128}`+"\n",
		name, attach, waitOf(name), size, round, rate)
}

// TestRoundTripsHaveAPanelForEachAttachment: medians of the rounds, the kernel's in both
// panels, the slowest first, on one axis.
func TestRoundTripsHaveAPanelForEachAttachment(t *testing.T) {
	texts := textsOf(t, drawnFrom(t,
		rtt("msg", "queue", 64, 1, 9)+rtt("msg", "queue", 64, 2, 2)+rtt("msg", "queue", 64, 3, 3)+
			rtt("msg", "queue", 16, 1, 2)+rtt("msg", "port", 64, 1, 12)+rtt("msg", "port", 1400, 1, 13)+
			rtt("kernel-udp", "none", 64, 1, 8)+rtt("go-udp", "none", 64, 1, 16.5)))
	axis := []string{"2", "3", "4", "5", "7", "10", "15", "20"}
	sizes := []string{"message size, bytes", "16", "64", "1400", "µs, log scale"}
	if !inOrder(texts, slices.Concat([]string{"Round trips, port: medians of 1 round"}, sizes, axis, []string{"µs at 64 B", "go-udp 16.5", "msg 12.0", "kernel-udp 8.00",
		"Round trips, queue: medians of 1 to 3 rounds"}, sizes, axis, []string{"µs at 64 B", "go-udp 16.5", "kernel-udp 8.00", "msg 3.00"})...) {
		t.Errorf("texts %q", texts)
	}
}

// TestBarsAreRatios: bars come from below, each with its rate and the ratio to
// kernel-udp, of one size.
func TestBarsAreRatios(t *testing.T) {
	texts := textsOf(t, drawnFrom(t,
		oneWay("go-udp", "none", 64, 1, 300_000)+
			oneWay("msg", "port", 64, 1, 700_000)+oneWay("msg", "port", 64, 2, 500_000)+oneWay("msg", "port", 64, 3, 660_000)+
			oneWay("kernel-udp", "none", 64, 1, 400_000)+
			oneWay("udp", "queue", 64, 1, 1_200_000)+
			oneWay("udp", "queue", 1024, 1, 5_000_000)))
	if !inOrder(texts, "One way, million messages of 64 bytes a second, sent one at a time (in brackets / kernel-udp): medians of 1 to 3 rounds",
		"go-udp", "kernel-udp", "msg, port", "udp, queue", "0.300 (0.75)", "0.400 (1.00)", "0.660 (1.65)", "1.20 (3.00)") {
		t.Errorf("texts %q", texts)
	}
}

func TestChartsOfFewRecords(t *testing.T) {
	for what, lines := range map[string]string{
		"one round trip":   rtt("udp", "port", 64, 1, 3),
		"the kernel alone": rtt("kernel-udp", "none", 64, 1, 5) + oneWay("kernel-udp", "none", 64, 1, 10),
		"no kernel":        oneWay("msg", "port", 16, 1, 1),
		"far apart":        rtt("msg", "port", 16, 1, least) + rtt("msg", "port", 64, 1, most),
		"other benchmarks": `{"bench":"bandwidth","transport":"tcp"}` + "\n" + `{"bench":"memory"}` + "\n" + `{"bench":"goodput","link":"bottleneck"}` + "\n" + rtt("msg", "port", 64, 1, 3),
	} {
		t.Run(what, func(t *testing.T) { textsOf(t, drawnFrom(t, lines)) })
	}
}

func TestLogTicksCover(t *testing.T) {
	for _, c := range [][2]float64{{1, 1}, {2, 2}, {2.6, 21}, {3, 30}, {9.99, 10.01}, {0.3, 0.7}, {1, 1000}, {1, 1e6}, {0.02, 5e4}, {7, 10}, {least, most}} {
		ticks := logTicks(c[0], c[1])
		first, last := ticks[0].Value, ticks[len(ticks)-1].Value
		if first > c[0] || last < c[1] || first >= last || len(ticks) > 16 {
			t.Errorf("%v: %d ticks, %v to %v", c, len(ticks), first, last)
		}
		for i := range ticks[1:] {
			if ticks[i+1].Value <= ticks[i].Value || i > 0 && ticks[i].Value <= c[0] || i+2 < len(ticks) && ticks[i+1].Value >= c[1] {
				t.Errorf("%v: ticks %v", c, ticks)
			}
		}
	}
}

func TestBadInputIsOneLineWithItsNumber(t *testing.T) {
	good := rtt("msg", "port", 64, 1, 3)
	for _, c := range []struct{ lines, want string }{
		{good + "\n" + "Round trips of 64 bytes\n", "line 3: is no record"},
		{good + good[:40], "line 2: is no record"},
		{good[:len(good)-1] + good, "line 1: is no record"},
		{"[]\n", "line 1: is no record"},
		{strings.Replace(good, `"size":64`, `"size":"64"`, 1), "line 1: is no record"},
		{strings.Replace(good, `"size":64`, `"size":0`, 1), "line 1: p50_us 3, size 0: want"},
		{rtt("msg", "port", 64, 1, 0), "line 1: p50_us 0, size"},
		{rtt("msg", "port", 64, 1, -4), "line 1: p50_us -4, size"},
		{strings.Replace(good, `"p50_us":3`, `"p50_us":null`, 1), "line 1: p50_us 0, size"},
		{oneWay("msg", "port", 64, 1, 0), "line 1: msgs_per_s 0, size"},
		{"", "nothing to draw"},
		{strings.Replace(good, `"msg"`, `"kernel-udp-mux"`, 1), "nothing to draw"},
		{strings.Replace(good, `"spin"`, `"block"`, 1), "nothing to draw"},
		{strings.Replace(good, `"n":10`, `"n":0`, 1), "nothing to draw"},
	} {
		_, err := Read(strings.NewReader(c.lines))
		var bad *InputError
		if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80q: got %v, want %s", c.lines, err, c.want)
		}
	}
	broken := errors.New("broken pipe")
	_, err := Read(io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

func TestRoundsWithoutMessagesAreLeftOutAndCounted(t *testing.T) {
	good := rtt("msg", "port", 64, 1, 3)
	silent := strings.Replace(strings.Replace(good, `"n":10`, `"n":0`, 1), `"p50_us":3`, `"p50_us":0`, 1)
	picture := drawnFrom(t, good+silent)
	if !strings.Contains(picture, "medians of 1 round; 1 without messages left out") {
		t.Error("a round without an answer is not mentioned, or is in the median")
	}
}

func FuzzReadAndDraw(f *testing.F) {
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
		textsOf(t, out.String())
	})
}
