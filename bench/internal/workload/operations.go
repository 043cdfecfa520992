package workload

import (
	"fmt"
	"time"
)

// Operations is the client's side of rdma. As a [Conn] it carries the marks and ends.
type Operations interface {
	Conn
	// Post posts n operations in one list.
	Post(n int) error
	// Wait waits for completions, until the deadline. It returns how many operations have
	// completed, and how many will not: those that a datagram was lost of.
	Wait() (done, lost int, err error)
	// Drain makes the operations complete that have no completion of their own. No operation
	// is posted after it.
	Drain() error
}

// operationsClient is the client of rdma.
func (s *session) operationsClient() error {
	ops, ok := s.conn.(Operations)
	if !ok {
		return fmt.Errorf("BUG: %T has no operations", s.conn)
	}
	if err := s.mark(Warm); err != nil { // resolves neighbours
		return err
	}
	var samples []time.Duration
	single := s.job.Verbs.Depth*s.job.Verbs.Clients == 1
	if single {
		samples = make([]time.Duration, max(s.job.N, s.job.WarmUp))
		clear(samples) // no page faults while measuring
	}
	var w operating
	if err := w.run(s, ops, s.job.WarmUp, samples); err != nil {
		return err
	}
	if err := s.mark(Mark); err != nil {
		return err
	}
	if err := s.meter.start(); err != nil {
		return err
	}
	doneBefore, lostBefore := w.done, w.lost
	begin := clock()
	if err := w.run(s, ops, s.job.N, samples); err != nil {
		return err
	}
	s.report.Elapsed = clock() - begin
	if err := s.meter.stop(&s.report); err != nil {
		return err
	}
	s.report.N, s.report.Lost = w.done-doneBefore, w.lost-lostBefore
	s.report.Sent = w.posted
	if single {
		s.report.Latency = Summarize(samples[:s.report.N])
	}
	if err := s.drain(ops, &w); err != nil {
		return err
	}
	return s.mark(End)
}

// operating is how far a client has come.
type operating struct{ posted, done, lost int }

// run keeps the queue full until n operations are done, or the time is over. With samples,
// which need one in flight, they get the time of each.
func (w *operating) run(s *session, ops Operations, n int, samples []time.Duration) error {
	depth, list := s.job.Verbs.Depth*s.job.Verbs.Clients, s.job.Batch
	if err := s.extend(); err != nil {
		return err
	}
	begin, first := clock(), w.done
	for before := begin; w.done-first < n; {
		for ; w.posted-w.done-w.lost+list <= depth; w.posted += list {
			if err := ops.Post(list); err != nil {
				return err
			}
		}
		done, lost, err := ops.Wait()
		if err != nil {
			return err
		}
		now := clock()
		if samples != nil && done > 0 {
			samples[w.done-first] = now - before
		}
		before = now
		w.done += done
		w.lost += lost
		if now-begin > s.job.Limit {
			break
		}
		if err := s.keep(now); err != nil {
			return err
		}
	}
	return nil
}

// drain waits for what is in flight.
func (s *session) drain(ops Operations, w *operating) error {
	if err := s.extend(); err != nil {
		return err
	}
	if w.posted == w.done+w.lost {
		return nil
	}
	if err := ops.Drain(); err != nil {
		return err
	}
	for tries := 0; w.posted > w.done+w.lost; {
		done, lost, err := ops.Wait()
		if err != nil {
			return err
		}
		w.done += done
		w.lost += lost
		if done+lost == 0 {
			if tries++; tries == controlTries {
				return fmt.Errorf("%d operations have not completed in %v", w.posted-w.done-w.lost, controlTries*s.job.Timeout)
			}
			if err := s.extend(); err != nil {
				return err
			}
		}
	}
	return nil
}
