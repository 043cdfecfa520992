// Command unetbench measures unet against the kernel's own sockets, on a network that it
// makes (package lab). See unetbench --help.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/report"
)

func main() { cli.Main(newCommand()) }

// output is where a run writes to: lines, tables, and how far it is.
type output struct {
	tables io.Writer
	write  func(report.Line) error // nil: no lines are asked for
	err    error                   // of writing lines

	progress    io.Writer // a line for every tenth of the run, and notes
	done, total int       // measurements
	tenth       int       // printed last
}

func newOutput(out, errs io.Writer, c *common) *output {
	o := &output{tables: out, progress: errs, tenth: -1}
	switch {
	case c.json:
		lines := json.NewEncoder(out)
		o.tables, o.write = errs, func(l report.Line) error { return lines.Encode(l) }
	case c.benchfmt:
		o.err = report.WriteUnits(out)
		o.tables, o.write = errs, func(l report.Line) error { return report.WriteBenchmark(out, l) }
	}
	return o
}

// line writes a line, if lines are asked for.
func (o *output) line(l report.Line) {
	if o.write != nil {
		o.err = errors.Join(o.err, o.write(l))
	}
}

// step says what is measured now.
func (o *output) step(format string, args ...any) {
	if tenth := o.done * 10 / o.total; tenth != o.tenth {
		o.tenth = tenth
		o.note("%*d/%d  %s", len(fmt.Sprint(o.total)), o.done+1, o.total, fmt.Sprintf(format, args...))
	}
	o.done++
}

// note writes a line.
func (o *output) note(format string, args ...any) { fmt.Fprintf(o.progress, format+"\n", args...) }
