package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
)

// streamBuffer is what a stream reads at once, at most, in bytes.
const streamBuffer = 64 << 10

// byteConn is a connection of any TCP.
type byteConn interface {
	Read(b []byte) (int, error)
	Write(b []byte) (int, error)
	SetReadDeadline(t time.Time) error
	Close() error
}

// stream carries the messages of a job, which all have one size, over TCP. The server
// accepts when it first needs the connection, because both sides open before either gets
// "go".
type stream struct {
	conn     byteConn
	accept   func() (byteConn, error) // until there is a connection
	close    func() error             // closes the listener or the host
	deadline time.Time

	size     int // of a message, bytes
	in       []byte
	from, to int // what has been received and not been lent
	out      []byte
	last     []byte
}

func newStream(j workload.Job, conn byteConn, accept func() (byteConn, error), close func() error) *stream {
	return &stream{
		conn: conn, accept: accept, close: close,
		size: j.Size, in: make([]byte, max(streamBuffer, 2*j.Size)), out: make([]byte, 0, max(j.Batch, 1)*j.Size),
	}
}

// connected accepts the connection, if that has not been done.
func (s *stream) connected() (err error) {
	if s.accept == nil {
		return nil
	}
	if s.conn, err = s.accept(); err != nil {
		return err
	}
	s.accept = nil
	return s.conn.SetReadDeadline(s.deadline)
}

func (s *stream) Send(b []byte) error {
	if err := s.connected(); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
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
	if err := s.connected(); err != nil {
		return nil, err
	}
	for s.to-s.from < s.size {
		if s.from == s.to {
			s.from, s.to = 0, 0
		} else if len(s.in)-s.from < s.size {
			s.to = copy(s.in, s.in[s.from:s.to])
			s.from = 0
		}
		n, err := s.conn.Read(s.in[s.to:])
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

func (s *stream) Reply() error { return s.Send(s.last) }

func (s *stream) SetDeadline(t time.Time) error {
	if s.deadline = t; s.conn == nil {
		return nil
	}
	return s.conn.SetReadDeadline(t)
}

func (s *stream) Close() (err error) {
	if s.conn != nil {
		err = s.conn.Close()
	}
	return errors.Join(err, s.close())
}

// dialRetry dials until the server listens.
func dialRetry(ctx context.Context, dial func() error) error {
	for {
		err := dial()
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, os.ErrDeadlineExceeded)
		case <-time.After(time.Millisecond):
		}
	}
}

// ReadTCPInfo writes a connection's statistics into a report: retransmitted bytes,
// timeouts (0 before Linux 6.7), and the smoothed round-trip time.
func ReadTCPInfo(s workload.Stream, r *workload.Report) error {
	switch c := s.(type) {
	case *unet.TCPConn:
		i := c.Info()
		r.Retransmitted, r.Timeouts, r.RTT = int64(i.BytesRetransmitted), int64(i.Timeouts), i.RTT
		return nil
	case *net.TCPConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var info *unix.TCPInfo
		var failed error
		err = raw.Control(func(fd uintptr) {
			info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
		if err != nil || failed != nil {
			return errors.Join(err, os.NewSyscallError("getsockopt", failed))
		}
		r.Retransmitted, r.Timeouts, r.RTT = int64(info.Bytes_retrans), int64(info.Total_rto), time.Duration(info.Rtt)*time.Microsecond
		return nil
	}
	return fmt.Errorf("BUG: %T has no statistics", s)
}
