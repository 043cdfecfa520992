// Command unetbench measures unet against the kernel's own sockets, on a network that it
// makes (package lab). See unetbench --help.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/report"
)

func main() { cli.Main(newCommand()) }

// output is where a run writes to: lines, tables, and how far it is.
type output struct {
	tables io.Writer
	write  func(report.Line) error // nil: no lines are asked for
	err    error                   // of writing lines

	progress    io.Writer
	terminal    bool // progress is one line that is written over; else a line for every tenth of the run
	done, total int  // measurements
	width       int  // of the progress line on the terminal
	tenth       int  // printed last
}

func newOutput(out, errs io.Writer, c *common) *output {
	o := &output{tables: out, progress: errs, tenth: -1}
	if f, ok := errs.(*os.File); ok {
		info, err := f.Stat()
		o.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
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

// step prints what is measured now.
func (o *output) step(format string, args ...any) {
	line := fmt.Sprintf("%*d/%d  ", len(fmt.Sprint(o.total)), o.done+1, o.total) + fmt.Sprintf(format, args...)
	tenth := o.done * 10 / o.total
	o.done++
	if o.terminal {
		pad := strings.Repeat(" ", max(0, o.width-len(line)))
		fmt.Fprintf(o.progress, "\r%s%s", line, pad)
		o.width = len(line)
	} else if tenth != o.tenth {
		o.tenth = tenth
		fmt.Fprintln(o.progress, line)
	}
}

// note writes a line that the progress line does not overwrite.
func (o *output) note(line string) {
	o.clear()
	fmt.Fprintln(o.progress, line)
}

// clear removes the progress line from the terminal.
func (o *output) clear() {
	if o.width > 0 {
		fmt.Fprintf(o.progress, "\r%s\r", strings.Repeat(" ", o.width))
		o.width = 0
	}
}
