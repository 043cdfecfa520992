// Package chart draws what unetbench measured as one SVG, by gonum.org/v1/plot: round
// trips by message size, over ports and over queues, and messages a second one way.
//
// Both are of messages sent one at a time by processes that spin (go-udp blocks: it
// cannot spin). The time axis is logarithmic, because what matters is the ratio of two
// transports; both attachments have the same axis and the same kernel baselines. Thin bars
// run from the lowest round to the highest.
package chart

import (
	"bufio"
	"bytes"
	"encoding/json"
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

// Read reads JSON lines to their end and keeps what is drawn. An error of the input's
// contents is an *InputError.
func Read(r io.Reader) (f Figures, err error) {
	var (
		records []report.Record
		keys    []report.Key // in order of appearance
	)
	scanner := bufio.NewScanner(r) // a record is far shorter than its buffer
	for n := 1; scanner.Scan(); n++ {
		var rec report.Record
		switch {
		case len(bytes.TrimSpace(scanner.Bytes())) == 0:
			continue
		case json.Unmarshal(scanner.Bytes(), &rec) != nil:
			return Figures{}, &InputError{n, "is no record of unetbench: was it run with --json?"}
		case !drawn(rec):
			continue
		case rec.N == 0:
			f.Silent++
			continue
		}
		v, name := rec.MsgsPerS, "msgs_per_s"
		if rec.Bench == workload.RTT {
			if v, name = 0, "p50_us"; rec.P50US != nil {
				v = *rec.P50US
			}
		}
		if !(v >= least && v <= most) || rec.Size < 1 {
			return Figures{}, &InputError{n, fmt.Sprintf("%s %g, size %d: want %g to %g, at least 1", name, v, rec.Size, least, most)}
		}
		if !slices.Contains(keys, rec.Key()) {
			keys = append(keys, rec.Key())
		}
		records = append(records, rec)
	}
	if err := scanner.Err(); err != nil {
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
	return (rec.Bench == workload.RTT || rec.Bench == workload.OneWay) && rec.Batch == 1 && rec.Place == plan.Pair && rec.Waiters == 0 && rec.Procs == 0 &&
		slices.ContainsFunc(series, func(s style) bool { return s.transport == rec.Transport && s.wait == rec.Wait })
}

// least and most bound what can have been measured, in microseconds or messages a
// second: a clock counts nanoseconds, and no round lasts for hours.
const least, most = 1e-3, 1e10

// comparedSize is the size that small messages are compared at, 64 bytes, if it was measured, else
// the smallest size that was.
func comparedSize(rows []report.Row) int {
	smallest := 0
	for _, r := range rows {
		if r.Size == 64 {
			return 64
		}
		if smallest == 0 || r.Size < smallest {
			smallest = r.Size
		}
	}
	return smallest
}
