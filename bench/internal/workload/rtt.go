package workload

import "time"

// ping is the client of rtt.
func (s *session) ping() error {
	for seq := range s.job.WarmUp {
		if err := s.keep(clock()); err != nil {
			return err
		}
		if _, err := s.exchange(Warm, uint64(seq)); err != nil {
			return err
		}
	}
	samples := make([]time.Duration, s.job.N)
	clear(samples) // touched now: no page faults while measuring
	if err := s.settle(Mark); err != nil {
		return err
	}
	if err := s.extend(); err != nil {
		return err
	}
	if err := s.meter.start(); err != nil {
		return err
	}

	n, lost := 0, 0
	begin := clock()
	before := begin
	for n+lost < s.job.N {
		ok, err := s.exchange(Data, uint64(n+lost))
		if err != nil {
			return err
		}
		now := clock() // the end of this round trip and the begin of the next
		if ok {
			samples[n] = now - before
			n++
		} else {
			lost++
		}
		if err := s.keep(now); err != nil {
			return err
		}
		if !ok {
			now = clock()
		}
		before = now
		if now-begin > s.job.Limit {
			break
		}
	}

	s.report.Elapsed = before - begin
	if err := s.meter.stop(&s.report); err != nil {
		return err
	}
	s.report.N, s.report.Lost = n, lost
	s.report.Latency = Summarize(samples[:n])
	return s.settle(End)
}

// exchange is one round trip. It is false when the deadline passed first.
func (s *session) exchange(k Kind, seq uint64) (bool, error) {
	if err := s.send(k, seq); err != nil {
		return false, err
	}
	return s.await(k, seq)
}

// echo is the server of rtt.
func (s *session) echo() error {
	for {
		b, err := s.conn.Recv()
		if err != nil {
			return err
		}
		k, _ := Header(b)
		if k == Data {
			s.report.N++
			if err := s.conn.Reply(); err != nil {
				return err
			}
			continue
		}
		ended, err := s.serve(k)
		if err != nil {
			return err
		}
		if err := s.conn.Reply(); err != nil || ended {
			return err
		}
	}
}
