package workload

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Goodput: the client writes to one connection for a time, and the server counts what
// it reads in that time, from the first byte on. What is under way at the end is of no
// interest, so the client ends the connection with a reset.

// Pipe is a connection that carries as much as it can.
type Pipe interface {
	Stream
	SetWriteDeadline(t time.Time) error
	SetLinger(seconds int) error
}

// pourSize is what is written at once, in bytes, and at most read at once.
const (
	pourSize  = 64 << 10
	drainSize = 256 << 10
)

// Pour is the client of goodput.
func Pour(p Pipe, j Job) (r Report, err error) {
	b := make([]byte, pourSize)
	var m meter
	begin := clock() // before the deadline is set, so that Elapsed is not less than Limit
	if err := errors.Join(m.start(), p.SetLinger(0), p.SetWriteDeadline(time.Now().Add(j.Limit))); err != nil {
		return r, err
	}
	for r.Elapsed < j.Limit {
		n, err := p.Write(b)
		r.Bytes += int64(n)
		r.Elapsed = clock() - begin
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return r, fmt.Errorf("write after %d bytes: %w", r.Bytes, err)
		}
	}
	return r, m.stop(&r)
}

// Drain is the server of goodput.
func Drain(s Stream, j Job) (r Report, err error) {
	b := make([]byte, drainSize)
	if err := s.SetReadDeadline(time.Now().Add(j.Patience)); err != nil {
		return r, err
	}
	n, err := s.Read(b)
	if err != nil {
		return r, fmt.Errorf("read of the first byte: %w", err)
	}
	var m meter
	begin := clock()
	if err := errors.Join(m.start(), s.SetReadDeadline(time.Now().Add(j.Limit))); err != nil {
		return r, err
	}
	for {
		r.Bytes += int64(n)
		if r.Elapsed = clock() - begin; r.Elapsed >= j.Limit {
			break
		}
		if n, err = s.Read(b); errors.Is(err, os.ErrDeadlineExceeded) {
			r.Bytes += int64(n)
			r.Elapsed = clock() - begin
			break
		}
		if err != nil {
			return r, fmt.Errorf("read after %d bytes: %w", r.Bytes, err)
		}
	}
	return r, m.stop(&r)
}

// Discard reads to the end, whatever that is.
func Discard(s Stream) {
	if s.SetReadDeadline(time.Time{}) == nil {
		_, _ = io.Copy(io.Discard, s)
	}
}
