package main

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

	"github.com/unet-go/unet/bench/internal/cli"
)

func TestPlot(t *testing.T) {
	const (
		good = `{"bench":"rtt","transport":"msg","attach":"port","place":"pair","wait":"spin","size":64,"batch":1,"round":1,"n":9,"p50_us":3.5}` + "\n"
		bad  = good + "Round trips of 64 bytes\n"
	)
	execute := func(stdin string, args ...string) (stdout string, err error) {
		var out bytes.Buffer
		cmd := newCommand()
		cmd.SetArgs(args)
		cmd.SetIn(strings.NewReader(stdin))
		cmd.SetOut(&out)
		err = cmd.Execute()
		return out.String(), err
	}
	if out, err := execute(good); err != nil || !strings.Contains(out, "<svg ") {
		t.Errorf("got %v and %q", err, out)
	}
	for want, stdin := range map[string]string{"line 2: ": bad, "has 1 arguments": good} {
		args := []string{"old.svg"}
		if stdin == bad {
			args = []string{}
		}
		out, err := execute(stdin, args...)
		if err == nil || !cli.IsUsage(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%v: %v, want one line about %q and code 2, and no output: %q", args, err, want, out)
		}
	}
}

// textsOf parses a picture and lists its texts.
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

// line is a record of one round.
func line(bench, name, attach string, size, round int, p50, rate float64) string {
	wait := "spin"
	if name == "go-udp" {
		wait = "block"
	}
	return fmt.Sprintf(`{"bench":%q,"transport":%q,"attach":%q,"place":"pair","wait":%q,"size":%d,"batch":1,"round":%d,"n":10,"p50_us":%v,"msgs_per_s":%v}`+"\n",
		bench, name, attach, wait, size, round, p50, rate)
}

func picture(t *testing.T, lines string) []string {
	t.Helper()
	rows, err := read(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := draw(&out, rows); err != nil {
		t.Fatal(err)
	}
	return textsOf(t, out.String())
}

// TestPicture: a panel for each attachment with medians, the kernel's in both, and one for the rates of each size.
func TestPicture(t *testing.T) {
	texts := picture(t, line("rtt", "msg", "queue", 64, 1, 9, 1)+line("rtt", "msg", "queue", 64, 2, 2, 1)+line("rtt", "msg", "queue", 64, 3, 3, 1)+
		line("rtt", "msg", "port", 64, 1, 12, 1)+line("rtt", "msg", "port", 1400, 1, 13, 1)+line("rtt", "kernel-udp", "none", 64, 1, 8, 1)+
		line("oneway", "udp", "queue", 64, 1, 1, 1_200_000)+line("oneway", "go-udp", "none", 1024, 1, 1, 300_000)+line("rate", "udp", "queue", 64, 1, 1, 1))
	want := map[string]int{"Round trips, port": 1, "Round trips, queue": 1, "msg 3": 1, "msg 12": 1, "kernel-udp 8": 2, "1400": 1, "10": 2,
		"One way, messages of 64 bytes, sent one at a time": 1, "udp, queue": 1, "1.2": 1, "go-udp": 1}
	for text, n := range want {
		if got := len(slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return s != text })); got != n {
			t.Errorf("%q %d times, want %d in %q", text, got, n, texts)
		}
	}
}

func TestPicturesOfFewRecords(t *testing.T) {
	for what, lines := range map[string]string{
		"one round trip":   line("rtt", "udp", "port", 64, 1, 3, 1),
		"the kernel alone": line("rtt", "kernel-udp", "none", 64, 1, 5, 1) + line("oneway", "kernel-udp", "none", 64, 1, 1, 10),
		"far apart":        line("rtt", "msg", "port", 16, 1, least, 1) + line("rtt", "msg", "port", 64, 1, most, 1),
		"other benchmarks": `{"bench":"bandwidth","transport":"tcp"}` + "\n" + `{"bench":"services"}` + "\n" + line("rtt", "msg", "port", 64, 1, 3, 1),
	} {
		t.Run(what, func(t *testing.T) { picture(t, lines) })
	}
}

func TestBadInputIsOneLineWithItsNumber(t *testing.T) {
	good := line("rtt", "msg", "port", 64, 1, 3, 1)
	for _, c := range []struct{ lines, want string }{
		{good + "\n" + "Round trips of 64 bytes\n", "line 3: is no record"},
		{good + good[:40], "line 2: is no record"},
		{strings.Replace(good, `"size":64`, `"size":0`, 1), "line 1: a figure of 3, size 0: want"},
		{line("rtt", "msg", "port", 64, 1, -4, 1), "line 1: a figure of -4, size"},
		{strings.Replace(good, `"p50_us":3`, `"p50_us":null`, 1), "line 1: a figure of 0, size"},
		{line("oneway", "msg", "port", 64, 1, 1, 0), "line 1: a figure of 0, size"},
		{"", "nothing to draw"},
		{strings.Replace(good, `"spin"`, `"block"`, 1), "nothing to draw"},
		{strings.Replace(good, `"n":10`, `"n":0`, 1), "nothing to draw"},
	} {
		_, err := read(strings.NewReader(c.lines))
		if !cli.IsUsage(err) || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80q: got %v, want %s", c.lines, err, c.want)
		}
	}
	broken := errors.New("broken pipe")
	if _, err := read(io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

func FuzzReadAndDraw(f *testing.F) {
	f.Add([]byte(line("rtt", "msg", "port", 64, 1, least, 1) + line("rtt", "msg", "port", 16, 1, most, 1)))
	f.Add([]byte(line("oneway", "udp", "queue", 64, 1, 1, most)))
	f.Fuzz(func(t *testing.T, lines []byte) {
		rows, err := read(bytes.NewReader(lines))
		if err != nil {
			return
		}
		var out strings.Builder
		if err := draw(&out, rows); err != nil {
			t.Fatal(err)
		}
		textsOf(t, out.String())
	})
}
