package workload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// patternLength is the period of a stream's bytes. It is prime, so bytes that are lost,
// doubled or out of order are noticed wherever the receiver compares. In a measured round
// it compares the first and the last bytes of each read, in a checking one all of them; it
// counts all bytes in both.
const patternLength = 65521

// bulkRead is how much a receiver asks for at once, in bytes.
const bulkRead = 128 << 10

// lookEvery is the least number of bytes between two readings of the clock.
const lookEvery = 64 << 10

// pattern is the pattern and n bytes more: n bytes of the stream begin at each of its offsets.
func pattern(n int) []byte {
	p := make([]byte, patternLength+n)
	x := uint64(0x9e3779b97f4a7c15)
	for i := 0; i < patternLength; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], x)
		copy(p[i:patternLength], word[:])
	}
	for done := patternLength; done < len(p); {
		done += copy(p[done:], p[:patternLength])
	}
	return p
}

// section is the measured part of a stream: it begins one limit after the first
// byte, when buffers and windows have grown.
type section struct {
	report     *Report
	limit      time.Duration
	meter      meter
	first      time.Duration // when the stream began
	began      time.Duration // when the section did
	seen       int           // bytes, when the clock was read last
	before     int           // bytes, when the section began
	open, over bool
}

// look begins and ends the section; n bytes have passed so far.
func (s *section) look(n int) error {
	if n-s.seen < lookEvery || s.over {
		return nil
	}
	s.seen = n
	now := clock()
	switch {
	case s.first == 0:
		s.first = now
	case !s.open && now-s.first >= s.limit:
		s.open, s.before = true, n
		if err := s.meter.start(); err != nil {
			return err
		}
		s.began = clock()
	case s.open && now-s.began >= s.limit:
		return s.close(now, n)
	}
	return nil
}

func (s *section) close(now time.Duration, n int) error {
	s.over = true
	s.report.Elapsed, s.report.InWindow = now-s.began, n-s.before
	return s.meter.stop(s.report)
}

// BandwidthClient is the client of bandwidth: it writes until the section is over, and reads
// from the server how many bytes have arrived.
func BandwidthClient(d Dialer, j Job) (r Report, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), j.Timeout)
	defer cancel()
	conn, err := d.Dial(ctx)
	if err != nil {
		return r, fmt.Errorf("dial: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	text := pattern(j.Size)
	s := section{report: &r, limit: j.Limit}
	for at := 0; !s.over; {
		if _, err := conn.Write(text[at : at+j.Size]); err != nil {
			return r, fmt.Errorf("write: %w", err)
		}
		r.Sent += j.Size
		if at += j.Size % patternLength; at >= patternLength {
			at -= patternLength
		}
		if err := s.look(r.Sent); err != nil {
			return r, err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return r, fmt.Errorf("half-close: %w", err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(j.Timeout)); err != nil {
		return r, err
	}
	var answer [8]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return r, fmt.Errorf("the server's count: %w", err)
	}
	r.Lost = r.Sent - int(binary.LittleEndian.Uint64(answer[:]))
	return r, nil
}

// BandwidthServer is the server of bandwidth: it reads to the end and answers with the number of bytes.
func BandwidthServer(l Listener, j Job) (r Report, err error) {
	conn, err := l.Accept()
	if err != nil {
		return r, fmt.Errorf("accept: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	b, text := make([]byte, bulkRead), pattern(bulkRead)
	s := section{report: &r, limit: j.Limit}
	for {
		n, err := conn.Read(b)
		if n > 0 && !isPattern(b[:n], text[r.N%patternLength:], j.Checked) {
			return r, fmt.Errorf("wrong data after %d bytes", r.N)
		}
		r.N += n
		if err == io.EOF {
			break
		} else if err != nil {
			return r, fmt.Errorf("read: %w", err)
		}
		if err := s.look(r.N); err != nil {
			return r, err
		}
	}
	if s.open && !s.over && r.N > s.before { // the client's section ended first, this one is short
		if err := s.close(clock(), r.N); err != nil {
			return r, err
		}
	}
	var answer [8]byte
	binary.LittleEndian.PutUint64(answer[:], uint64(r.N))
	if _, err := conn.Write(answer[:]); err != nil {
		return r, fmt.Errorf("count: %w", err)
	}
	return r, nil
}

// isPattern reports whether b begins and ends as want does, or, if all, whether all of b is equal.
func isPattern(b, want []byte, all bool) bool {
	if all || len(b) <= 16 {
		return bytes.Equal(b, want[:len(b)])
	}
	last := len(b) - 8
	return bytes.Equal(b[:8], want[:8]) && bytes.Equal(b[last:], want[last:len(b)])
}
