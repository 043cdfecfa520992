package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// progress tells how far a run is: on a terminal by one line that it writes
// over, elsewhere by a line for every tenth of the run.
type progress struct {
	w        io.Writer
	terminal bool
	width    int // of the line that stands
	tenth    int // told last
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, tenth: -1}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// step tells what is measured now, after done of total measurements.
func (p *progress) step(done, total int, what string) {
	line := fmt.Sprintf("%*d/%d  %s", len(fmt.Sprint(total)), done+1, total, what)
	if p.terminal {
		pad := strings.Repeat(" ", max(0, p.width-len(line)))
		fmt.Fprintf(p.w, "\r%s%s", line, pad)
		p.width = len(line)
		return
	}
	if tenth := done * 10 / total; tenth != p.tenth {
		p.tenth = tenth
		fmt.Fprintln(p.w, line)
	}
}

// note writes a line that stays.
func (p *progress) note(line string) {
	p.clear()
	fmt.Fprintln(p.w, line)
}

// clear removes the line that is written over.
func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}
