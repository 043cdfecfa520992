//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	maxUnwritten = 256 << 10   // bytes of log that wait to be written
	flushWithin  = time.Second // at the end of the process
)

// logWriter writes lines to out in a goroutine of its own, so that Write does not wait for a
// pipe that is not read, and returns no error for a full disk or a closed pipe. Lines beyond
// maxUnwritten, and those for which out returns an error, are dropped and counted. After the
// next write that succeeds a line reports the number. maxUnwritten does not apply to it.
type logWriter struct {
	out io.Writer

	mu      sync.Mutex
	changed sync.Cond
	// +checklocks:mu
	waiting []byte // whole lines
	writing bool   // +checklocks:mu
	// +checklocks:mu
	dropped uint64 // not yet reported
	// +checklocks:mu
	lost uint64 // all that were dropped
	// +checklocks:mu
	report func(dropped uint64) []byte // makes the line with the number; must not call Write; nil: no line
}

func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{out: out}
	w.changed.L = &w.mu
	go w.run()
	return w
}

// Write takes whole lines. It does not block and never fails.
func (w *logWriter) Write(lines []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting)+len(lines) > maxUnwritten {
		w.drop(lines)
	} else {
		w.waiting = append(w.waiting, lines...)
		w.changed.Broadcast()
	}
	return len(lines), nil
}

func (w *logWriter) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var reported uint64 // by a line in waiting
	for {
		for len(w.waiting) == 0 {
			w.changed.Wait()
		}
		lines := w.waiting
		w.waiting, w.writing = nil, true
		w.mu.Unlock()
		n, err := w.out.Write(lines)
		w.mu.Lock()
		if err != nil {
			w.drop(lines[n:])
		} else {
			w.dropped -= reported
		}
		reported = 0
		if err == nil && w.dropped > 0 && w.report != nil {
			reported = w.dropped
			w.waiting = append(w.waiting, w.report(reported)...)
		}
		w.writing = false
		w.changed.Broadcast()
	}
}

// flush waits until everything is written, but not for longer than flushWithin.
func (w *logWriter) flush() {
	late := false
	timer := time.AfterFunc(flushWithin, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		late = true
		w.changed.Broadcast()
	})
	defer timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !late && (w.writing || len(w.waiting) > 0) {
		w.changed.Wait()
	}
}

// drop counts lines. w.mu is held.
//
// +checklocks:w.mu
func (w *logWriter) drop(lines []byte) {
	n := countLines(lines)
	w.dropped += n
	w.lost += n
}

// allDropped is the number of lines that were dropped so far.
func (w *logWriter) allDropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func countLines(b []byte) uint64 { return uint64(bytes.Count(b, []byte{'\n'})) }

// newLogger makes a log that writes to w. It sets w.report.
func newLogger(w *logWriter, level, format string) (*slog.Logger, error) {
	var least slog.Level
	if least.UnmarshalText([]byte(level)) != nil {
		return nil, fmt.Errorf("--log-level %s: want debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: least}
	to := func(out io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(out, options)) }
	switch format {
	case "text":
	case "json":
		to = func(out io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(out, options)) }
	default:
		return nil, fmt.Errorf("--log-format %s: want text or json", format)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = func(dropped uint64) []byte {
		var line bytes.Buffer
		to(&line).Error("lines of this log were dropped: they could not be written", "lines", dropped)
		return line.Bytes()
	}
	return to(w), nil
}
