package plot

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
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// InputError is a line that unetbench --json did not write, or input without
// anything to draw (Line is 0).
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
	OneWay     []report.Row // of one size, one credit window
	Silent     int          // rounds in which nothing arrived; they have no figure and are left out
}

// maxLine is far beyond the longest record.
const maxLine = 64 << 10 // bytes

// Read reads JSON lines to their end. An error of the input's contents is an
// *InputError.
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
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 {
			continue
		}
		rec, err := parse(line)
		if err != nil {
			return Figures{}, &InputError{n, err.Error()}
		}
		switch {
		case !drawn(rec):
			continue
		case rec.N == 0:
			f.Silent++
			continue
		}
		key := report.Key{Bench: rec.Bench, Transport: rec.Transport, Attach: rec.Attach, Place: rec.Place, Wait: rec.Wait, Size: rec.Size, Batch: rec.Batch}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
		records = append(records, rec)
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return Figures{}, &InputError{n + 1, "is far too long for a record of unetbench --json"}
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
	f.OneWay = ofOneSize(f.OneWay)
	if len(f.RoundTrips)+len(f.OneWay) == 0 {
		return Figures{}, &InputError{0, "nothing to draw: want rounds of rtt or oneway, spinning, one message at a time"}
	}
	return f, nil
}

// least and most bound what can have been measured, in microseconds or messages
// a second: a clock counts nanoseconds, and no round lasts for hours.
const least, most = 1e-3, 1e10

// parse checks a line as far as drawing it relies on it.
func parse(line []byte) (report.Record, error) {
	var rec report.Record
	if err := json.Unmarshal(line, &rec); err != nil {
		var mistyped *json.UnmarshalTypeError
		if errors.As(err, &mistyped) && mistyped.Field != "" {
			return rec, fmt.Errorf("%s is a JSON %s", mistyped.Field, mistyped.Value)
		}
		return rec, errors.New("is not a JSON object: was unetbench run with --json?")
	}
	switch rec.Bench {
	case workload.RTT, workload.Rate, workload.OneWay:
	case workload.Memory, workload.Open, workload.Idle, workload.Connect: // have fields of their own, and are not drawn
		return rec, nil
	default:
		return rec, fmt.Errorf("unknown bench %q", rec.Bench)
	}
	if rec.Place == "" { // written before there were places
		rec.Place = plan.Pair
	}
	t, err := transport.ByName(rec.Transport)
	if err != nil {
		return rec, err
	}
	attachments := []string{transport.None}
	if t.Granted {
		attachments = []string{"port", "queue"}
	}
	switch {
	case !slices.Contains(attachments, rec.Attach):
		return rec, fmt.Errorf("attach %q does not go with %s", rec.Attach, t.Name)
	case !slices.Contains(t.Waits, rec.Wait):
		return rec, fmt.Errorf("wait %q does not go with %s", rec.Wait, t.Name)
	case rec.Size < 1 || rec.Batch < 1 || rec.N < 0:
		return rec, fmt.Errorf("size %d, batch %d, n %d: want 1, 1 and 0 or more", rec.Size, rec.Batch, rec.N)
	case rec.N == 0:
	case rec.Bench == workload.RTT && rec.P50US == nil:
		return rec, errors.New("a round of rtt without p50_us")
	case rec.Bench == workload.RTT && !(*rec.P50US >= least && *rec.P50US <= most):
		return rec, fmt.Errorf("p50_us %g: want %g to %g", *rec.P50US, least, most)
	case rec.Bench != workload.RTT && !(rec.MsgsPerS >= least && rec.MsgsPerS <= most):
		return rec, fmt.Errorf("msgs_per_s %g: want %g to %g", rec.MsgsPerS, least, most)
	}
	return rec, nil
}

// drawn says whether the picture has a place for the record.
func drawn(rec report.Record) bool {
	return (rec.Bench == workload.RTT || rec.Bench == workload.OneWay) && rec.Batch == 1 && rec.Place == plan.Pair &&
		slices.ContainsFunc(lines, func(l line) bool { return l.transport == rec.Transport && l.wait == rec.Wait })
}

// goalSize is the size that small messages are compared at.
const goalSize = 64 // bytes

// ofOneSize keeps the rows of goalSize, or of the smallest size there is.
func ofOneSize(rows []report.Row) []report.Row {
	size := comparedSize(rows)
	return slices.DeleteFunc(rows, func(r report.Row) bool { return r.Size != size })
}

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
