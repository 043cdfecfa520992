package rdma

import (
	"fmt"
	"syscall"
)

// SRQ is a shared receive queue (ibv_srq).
type SRQ struct {
	pd     *PD
	queue  recvQueue
	limit  int // 0: not armed
	uses   int
	closed bool
	events
}

// CreateSRQ makes a queue for maxWR receives of up to maxSGE pieces. Error: EINVAL if either is
// beyond Config.MaxQPWR or [MaxSGE].
func (p *PD) CreateSRQ(maxWR, maxSGE int) (*SRQ, error) {
	p.d.driver.Lock()
	defer p.d.driver.Unlock()
	if err := p.d.driver.Use("create SRQ", p.closed); err != nil {
		return nil, err
	}
	if maxWR < 1 || maxWR > p.d.cfg.MaxQPWR || maxSGE < 0 || maxSGE > MaxSGE {
		return nil, fmt.Errorf("rdma: create SRQ: %d receives of %d pieces, at most %d of %d are allowed: %w", maxWR, maxSGE, p.d.cfg.MaxQPWR, MaxSGE, syscall.EINVAL)
	}
	s := &SRQ{pd: p}
	s.queue.init(maxWR, maxSGE)
	s.events.of.SRQ = s
	p.uses++
	return s, nil
}

// PostRecv adds receives, in order, and returns how many it added (ibv_post_srq_recv). Errors:
// ENOMEM if the queue is full, EINVAL for too many pieces.
func (s *SRQ) PostRecv(wrs ...RecvWR) (int, error) {
	s.pd.d.driver.Lock()
	defer s.pd.d.driver.Unlock()
	if err := s.pd.d.driver.Use("post receive", s.closed); err != nil {
		return 0, err
	}
	return s.queue.post("SRQ", wrs)
}

// SetLimit arms EventSRQLimitReached: it comes when fewer than limit receives are left. 0
// disarms. Error: EINVAL if limit is beyond the queue's size.
func (s *SRQ) SetLimit(limit int) error {
	s.pd.d.driver.Lock()
	defer s.pd.d.driver.Unlock()
	if err := s.pd.d.driver.Use("set limit", s.closed); err != nil {
		return err
	}
	if limit < 0 || limit > s.queue.size {
		return fmt.Errorf("rdma: SRQ limit %d: the queue has %d entries: %w", limit, s.queue.size, syscall.EINVAL)
	}
	s.limit = limit
	return nil
}

// Query is the queue's size, the receives that are posted, and the limit.
func (s *SRQ) Query() (maxWR, posted, limit int) {
	s.pd.d.driver.Lock()
	defer s.pd.d.driver.Unlock()
	return s.queue.size, s.queue.len(), s.limit
}

// Close ends the queue; its receives have no completion. Error: EBUSY if a queue pair uses it.
func (s *SRQ) Close() error {
	s.pd.d.driver.Lock()
	defer s.pd.d.driver.Unlock()
	if err := s.pd.d.driver.Use("close SRQ", s.closed); err != nil {
		return err
	}
	if s.uses > 0 {
		return fmt.Errorf("rdma: close SRQ: queue pairs use it: %w", syscall.EBUSY)
	}
	s.closed, s.pending = true, 0
	s.pd.uses--
	return nil
}

func (s *SRQ) taken() {
	if s.limit > 0 && s.queue.len() < s.limit {
		s.limit = 0
		s.pd.d.raise(&s.events, EventSRQLimitReached)
	}
}
