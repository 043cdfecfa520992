package rdma

import (
	"fmt"
	"syscall"
)

// SRQ is a shared receive queue.
type SRQ struct {
	Data any // the driver's

	pd    *PD
	queue recvQueue
	limit int // 0: not armed
	uses  int
	events
}

// CreateSRQ makes a queue for maxWR receives of up to maxSGE pieces. Error: EINVAL if either is
// beyond Config.MaxQPWR or [MaxSGE].
func (p *PD) CreateSRQ(maxWR, maxSGE int) (*SRQ, error) {
	if maxWR < 1 || maxWR > p.d.cfg.MaxQPWR || maxSGE < 0 || maxSGE > MaxSGE {
		return nil, fmt.Errorf("rdma: create SRQ: %d receives of %d pieces, at most %d of %d are allowed: %w", maxWR, maxSGE, p.d.cfg.MaxQPWR, MaxSGE, syscall.EINVAL)
	}
	s := &SRQ{pd: p}
	s.queue.init(maxWR, maxSGE)
	s.events.of.SRQ = s
	p.uses++
	return s, nil
}

// PostRecv adds receives and returns how many it added. Errors: ENOMEM if the queue is full,
// EINVAL for too many pieces.
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) { return s.queue.post("SRQ", wrs) }

// SetLimit arms EventSRQLimitReached: it comes when fewer than limit receives are left. 0
// disarms. Error: EINVAL if limit is beyond the queue's size.
func (s *SRQ) SetLimit(limit int) error {
	if limit < 0 || limit > s.queue.size {
		return fmt.Errorf("rdma: SRQ limit %d: the queue has %d entries: %w", limit, s.queue.size, syscall.EINVAL)
	}
	s.limit = limit
	return nil
}

// Query is the queue's size, the receives that are posted, and the limit.
func (s *SRQ) Query() (maxWR, posted, limit int) {
	return s.queue.size, s.queue.len(), s.limit
}

// Destroy ends the queue; its receives have no completion. Error: EBUSY if a queue pair uses it.
func (s *SRQ) Destroy() error {
	if s.uses > 0 {
		return fmt.Errorf("rdma: destroy SRQ: queue pairs use it: %w", syscall.EBUSY)
	}
	s.pending = 0
	s.pd.uses--
	return nil
}

func (s *SRQ) taken() {
	if s.limit > 0 && s.queue.len() < s.limit {
		s.limit = 0
		s.pd.d.raise(&s.events, EventSRQLimitReached)
	}
}
