package transport

import (
	"context"
	"errors"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// streamBuffer is what a stream reads at once, at most, in bytes.
const streamBuffer = 64 << 10

// stream carries the messages of a job, which all have one size, over TCP.
type stream struct {
	workload.Stream
	close func() error // closes the listener or the host

	size     int // of a message, bytes
	in       []byte
	from, to int // what has been received and not been lent
	out      []byte
	last     []byte
}

// open is Open, or opens a stream if the transport opens connections.
func (t Transport) open(ctx context.Context, j workload.Job, listening func()) (workload.Conn, error) {
	if t.Open != nil {
		return t.Open(ctx, j, listening)
	}
	var next func() (workload.Stream, error)
	s := &stream{size: j.Size, in: make([]byte, max(streamBuffer, 2*j.Size)), out: make([]byte, 0, max(j.Batch, 1)*j.Size)}
	if j.Role == workload.Server {
		l, err := t.Listen(ctx, j)
		if err != nil {
			return nil, err
		}
		listening()
		next, s.close = l.Accept, l.Close
	} else {
		d, err := t.Dial(ctx, j)
		if err != nil {
			return nil, err
		}
		next, s.close = func() (workload.Stream, error) { return d.Dial(ctx) }, d.Close
	}
	var err error
	if s.Stream, err = afterWaiters(j, next); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// afterWaiters opens the connection that is measured: it is the one after those of Job.Waiters, on each
// of which a goroutine waits for data until it is closed.
func afterWaiters(j workload.Job, next func() (workload.Stream, error)) (workload.Stream, error) {
	for range j.Waiters {
		c, err := next()
		if err != nil {
			return nil, err
		}
		go func() { _, _ = c.Read(make([]byte, 1)) }()
	}
	return next()
}

func (s *stream) Send(b []byte) error {
	_, err := s.Write(b)
	return err
}

// SendBatch sends all in one write.
func (s *stream) SendBatch(bs [][]byte) error {
	s.out = s.out[:0]
	for _, b := range bs {
		s.out = append(s.out, b...)
	}
	return s.Send(s.out)
}

func (s *stream) Recv() ([]byte, error) {
	for s.to-s.from < s.size {
		if s.from == s.to {
			s.from, s.to = 0, 0
		} else if len(s.in)-s.from < s.size {
			s.to = copy(s.in, s.in[s.from:s.to])
			s.from = 0
		}
		n, err := s.Read(s.in[s.to:])
		if s.to += n; err != nil {
			return nil, err
		}
	}
	s.last = s.in[s.from : s.from+s.size]
	s.from += s.size
	return s.last, nil
}

func (s *stream) RecvBatch(bs [][]byte) (n int, err error) {
	if bs[0], err = s.Recv(); err != nil {
		return 0, err
	}
	for n = 1; n < len(bs) && s.to-s.from >= s.size; n++ {
		s.last = s.in[s.from : s.from+s.size]
		s.from += s.size
		bs[n] = s.last
	}
	return n, nil
}

func (s *stream) Reply() error                  { return s.Send(s.last) }
func (s *stream) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }
func (s *stream) Close() error                  { return errors.Join(s.Stream.Close(), s.close()) }
