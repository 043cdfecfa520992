// Package chart draws what unetbench measured as one SVG, by gonum.org/v1/plot: round
// trips by message size, over ports and over queues, and messages a second one way.
//
// Both are of messages sent one at a time by processes that spin (go-udp blocks: it
// cannot spin). The time axis is logarithmic, because what matters is the ratio of two
// transports; both attachments have the same axis and the same kernel baselines. Each
// transport has a mark of its own beside its colour.
package chart

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/workload"
)

// InputError is a line that unetbench --json did not write, or input without anything to
// draw (Line is 0).
type InputError struct {
	Line   int // from 1
	Reason string
}

func (e *InputError) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Reason)
}

// Figures are the rows that are drawn, each the summary of its rounds.
type Figures struct {
	RoundTrips []report.Row // of every size
	OneWay     []report.Row // of one size
	Silent     int          // rounds in which nothing arrived; they are left out
}

// maxLine is far beyond the longest record.
const maxLine = 64 << 10 // bytes

// Read reads JSON lines to their end and keeps what is drawn. An error of the input's
// contents is an *InputError.
func Read(r io.Reader) (Figures, error) {
	var (
		f       Figures
		records []report.Record
		keys    []report.Key // in order of appearance
	)
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	n := 0
	for scanner.Scan() {
		n++
		if len(bytes.TrimSpace(scanner.Bytes())) == 0 {
			continue
		}
		var rec report.Record
		if json.Unmarshal(scanner.Bytes(), &rec) != nil {
			return Figures{}, &InputError{n, "is no record of unetbench: was it run with --json?"}
		}
		switch {
		case !drawn(rec):
			continue
		case rec.N == 0:
			f.Silent++
			continue
		}
		if err := check(rec); err != nil {
			return Figures{}, &InputError{n, err.Error()}
		}
		if !slices.Contains(keys, rec.Key()) {
			keys = append(keys, rec.Key())
		}
		records = append(records, rec)
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return Figures{}, &InputError{n + 1, fmt.Sprintf("is longer than %d bytes", maxLine)}
	case err != nil:
		return Figures{}, err
	}
	for _, row := range report.Summarize(keys, records).Rows {
		if row.Bench == workload.RTT {
			f.RoundTrips = append(f.RoundTrips, row)
		} else {
			f.OneWay = append(f.OneWay, row)
		}
	}
	size := comparedSize(f.OneWay)
	f.OneWay = slices.DeleteFunc(f.OneWay, func(r report.Row) bool { return r.Size != size })
	if len(f.RoundTrips)+len(f.OneWay) == 0 {
		return Figures{}, &InputError{0, "nothing to draw: want rounds of rtt or oneway, spinning, one message at a time"}
	}
	return f, nil
}

// drawn reports whether the chart shows the record.
func drawn(rec report.Record) bool {
	return (rec.Bench == workload.RTT || rec.Bench == workload.OneWay) && rec.Batch == 1 && rec.Place == plan.Pair && rec.Waiters == 0 && rec.Procs == 0 && rec.PauseUS == 0 &&
		slices.ContainsFunc(series, func(s style) bool { return s.transport == rec.Transport && s.wait == rec.Wait })
}

// least and most bound what can have been measured, in microseconds or messages a
// second: a clock counts nanoseconds, and no round lasts for hours.
const least, most = 1e-3, 1e10

// check reports a record that cannot be drawn.
func check(rec report.Record) error {
	v, name := rec.MsgsPerS, "msgs_per_s"
	if rec.Bench == workload.RTT {
		if rec.P50US == nil {
			return errors.New("a round of rtt without p50_us")
		}
		v, name = *rec.P50US, "p50_us"
	}
	switch {
	case !(v >= least && v <= most):
		return fmt.Errorf("%s %g: want %g to %g", name, v, least, most)
	case rec.Size < 1:
		return fmt.Errorf("size %d: want at least 1", rec.Size)
	}
	return nil
}

// goalSize is the size that small messages are compared at.
const goalSize = 64 // bytes

// comparedSize is goalSize if it was measured, else the smallest size that was.
func comparedSize(rows []report.Row) int {
	smallest := 0
	for _, r := range rows {
		if r.Size == goalSize {
			return goalSize
		}
		if smallest == 0 || r.Size < smallest {
			smallest = r.Size
		}
	}
	return smallest
}
