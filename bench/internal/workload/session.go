package workload

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// controlTries is how often a mark or an end is sent before the other side is
// given up.
const controlTries = 40

// Run does the job over c and returns what it measured. A server comes back
// when the client has ended the measured section, and then still has to [Linger].
func Run(c Conn, j Job) (Report, error) {
	if err := j.Check(); err != nil {
		return Report{}, err
	}
	s := &session{conn: c, job: j, out: make([]byte, j.Size)}
	if j.Role == Client {
		if err := s.extend(); err != nil {
			return Report{}, err
		}
	} else if err := c.SetDeadline(time.Time{}); err != nil { // its client decides
		return Report{}, err
	}
	var run func() error
	switch {
	case j.Role == Client && j.Bench == RTT:
		run = s.ping
	case j.Role == Client && (j.Bench == Rate || j.Bench == Bandwidth):
		run = s.flood
	case j.Role == Client && j.Bench == OneWay:
		run = s.push
	case j.Role == Server && j.Bench == RTT:
		run = s.echo
	case j.Role == Server && (j.Bench == Rate || j.Bench == OneWay || j.Bench == Bandwidth):
		run = s.collect
	default:
		return Report{}, fmt.Errorf("no benchmark %q for a %q", j.Bench, j.Role)
	}
	err := run()
	return s.report, err
}

// Linger answers ends that are sent again, because the first answer was lost,
// until stop.
func Linger(c Conn, stop *atomic.Bool) error {
	for !stop.Load() {
		if err := c.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			return err
		}
		b, err := c.Recv()
		if err != nil {
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				continue
			case err == io.EOF: // the client of a stream has closed it, and so has all it wants
				return nil
			}
			return err
		}
		if k, _ := Header(b); k == End {
			if err := c.Reply(); err != nil {
				return err
			}
		}
	}
	return nil
}

// session is one job under way.
type session struct {
	conn   Conn
	job    Job
	out    []byte // of Size bytes: the message to send
	meter  meter
	report Report

	extended time.Duration // when the deadline was last moved
}

// extend moves the deadline to one patience from now.
func (s *session) extend() error {
	s.extended = clock()
	return s.conn.SetDeadline(time.Now().Add(s.job.Patience))
}

// keep moves the deadline if a good part of it has gone. A deadline is not
// moved for every message, because to some transports that costs more than a
// message; so a message is given between half and all of the patience.
func (s *session) keep(now time.Duration) error {
	if now-s.extended < s.job.Patience/2 {
		return nil
	}
	return s.extend()
}

// send sends one message of the job's size.
func (s *session) send(k Kind, seq uint64) error {
	Put(s.out, k, seq)
	return s.conn.Send(s.out)
}

// await receives until the message (k, seq) comes. Others are answers to
// messages that were given up. It is false when the deadline passes.
func (s *session) await(k Kind, seq uint64) (bool, error) {
	for {
		b, err := s.conn.Recv()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return false, nil
			}
			return false, err
		}
		gotKind, gotSeq := Header(b)
		if gotKind == k && gotSeq == seq {
			return true, nil
		}
		if gotKind == Data {
			s.report.Duplicates++
		}
	}
}

// settle sends a mark or an end until the server returns it.
func (s *session) settle(k Kind) error {
	for range controlTries {
		if err := s.extend(); err != nil {
			return err
		}
		if err := s.send(k, 0); err != nil {
			return err
		}
		ok, err := s.await(k, 0)
		if ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("the server did not answer %d times in %v", controlTries, s.job.Patience*controlTries)
}

// serve is the servers' view of a message that is not data: it takes the
// readings and says whether the measured section is over. Marks that come
// again restart it, as they do on the client's side.
func (s *session) serve(k Kind) (ended bool, err error) {
	switch k {
	case Mark:
		return false, s.meter.start()
	case End:
		return true, s.meter.stop(&s.report)
	}
	return false, nil
}
