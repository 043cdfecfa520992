package control

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/unet-go/unet/endpoint"
)

// follow tells the application what the lease tells, and ends the session when
// the lease has ended. It stops watching then.
func (s *session) follow(lease endpoint.Lease, stop func()) {
	defer stop()
	for {
		select {
		case <-s.notices.ready:
			for _, e := range eventsOf(s.notices.take()) {
				if s.ctx.Err() == nil && !s.tell(e) {
					s.cancel(errWrite)
				}
			}
		case <-lease.Done():
			s.cancel(errLeaseEnded)
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// tell sends an event, if the application reads.
func (s *session) tell(e event) (sent bool) {
	e.Version = Version
	record, err := json.Marshal(e)
	if err != nil || len(record) > MaxRecord {
		panic(fmt.Sprintf("BUG: the provider's notice makes no record (%d bytes, %v)", len(record), err))
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := writeRecord(s.conn, record, s.limits.WriteTimeout); err != nil {
		s.log.Debug("event not sent", "event", e.Event, "error", err)
		return false
	}
	return true
}

// reasonOf is what the application is told of a lease that has ended by itself;
// that it has ended, it knows.
func reasonOf(err error) string {
	if err == nil {
		return errLeaseEnded.Error()
	}
	text := message(err)
	text = strings.TrimPrefix(text, endpoint.ErrLeaseClosed.Error()+": ")
	if text == endpoint.ErrLeaseClosed.Error() {
		return errLeaseEnded.Error()
	}
	return text
}
