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
	// completed.
	Wait() (done int, err error)
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
	if s.job.Depth == 1 {
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
	before := w.done
	begin := clock()
	if err := w.run(s, ops, s.job.N, samples); err != nil {
		return err
	}
	s.report.Elapsed = clock() - begin
	if err := s.meter.stop(&s.report); err != nil {
		return err
	}
	s.report.N, s.report.Sent = w.done-before, w.posted
	if s.job.Depth == 1 {
		s.report.Latency = Summarize(samples[:s.report.N])
	}
	if err := s.drain(ops, &w); err != nil {
		return err
	}
	return s.mark(End)
}

// operating is how far a client has come.
type operating struct{ posted, done int }

// run keeps the queue full until n operations are done, or the time is over. With samples,
// which need one in flight, they get the time of each.
func (w *operating) run(s *session, ops Operations, n int, samples []time.Duration) error {
	depth, list := s.job.Depth, s.job.Batch
	if err := s.extend(); err != nil {
		return err
	}
	begin, first := clock(), w.done
	for before := begin; w.done-first < n; {
		for ; w.posted-w.done+list <= depth; w.posted += list {
			if err := ops.Post(list); err != nil {
				return err
			}
		}
		done, err := ops.Wait()
		if err != nil {
			return err
		}
		now := clock()
		if samples != nil && done > 0 {
			samples[w.done-first] = now - before
		}
		before = now
		w.done += done
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
	if err := s.extend(); err != nil || w.posted == w.done {
		return err
	}
	if err := ops.Drain(); err != nil {
		return err
	}
	for tries := 0; w.posted > w.done; {
		done, err := ops.Wait()
		if err != nil {
			return err
		}
		if w.done += done; done > 0 {
			continue
		}
		if tries++; tries == controlTries {
			return fmt.Errorf("%d operations have not completed in %v", w.posted-w.done, controlTries*s.job.Timeout)
		}
		if err := s.extend(); err != nil {
			return err
		}
	}
	return nil
}
