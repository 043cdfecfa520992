//go:build linux

package mux

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux/internal/tables"
)

// After the end of its lease an endpoint has no tag and no port. But its process may keep the
// socket open, and with it the port's namespace and the registered memory, or keep the segment
// open or mapped. So the mux polls both, and counts the endpoint for its user until both are
// closed (ADR 17). Until then the endpoint of a port stays in the kernel's table, so that a
// process that takes over can poll its socket. That process cannot poll the segment, since it
// does not have the descriptor of memfd_create, nor the socket of a queue, since another
// endpoint may have the queue by then.

// The shortest and the longest pause between two polls of one endpoint.
const (
	lingerFirst = time.Millisecond
	lingerMost  = 250 * time.Millisecond
)

// lingering is an endpoint whose lease has ended.
type lingering struct {
	info    endpoint.Info
	counted int64 // bytes, of Lease
	at      *attachment
	granted bool     // it counts for its user
	socket  bool     // the socket may exist
	memory  *os.File // the segment; nil: no longer in use, or made by another process
	doubted bool     // a failed poll was logged

	pause time.Duration
	next  time.Time // of the next poll
}

// lingers are the endpoints that are polled.
type lingers struct {
	m     *Mux
	grown chan struct{} // of capacity 1; an element: list has grown
	list  []*lingering  // +checklocks:m.mu
}

// add begins to poll the socket and the segment of an endpoint.
func (s *lingers) add(e *lingering) {
	e.socket, e.pause, e.next = true, lingerFirst, time.Now()
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.list = append(s.list, e)
	select {
	case s.grown <- struct{}{}:
	default:
	}
}

// follow polls until the mux is closed.
func (s *lingers) follow() {
	for {
		var due <-chan time.Time
		if next := s.poll(); !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
		case <-s.grown:
		case <-s.m.ctx.Done():
			return
		}
	}
}

// take takes all off the list.
func (s *lingers) take() []*lingering {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	list := s.list
	s.list = nil
	return list
}

// poll polls all that are due. next is the time of the next poll; zero: none is left.
func (s *lingers) poll() (next time.Time) {
	var left []*lingering
	now := time.Now()
	for _, e := range s.take() {
		if now.Before(e.next) {
			left = append(left, e)
			continue
		}
		if s.gone(e) {
			s.freed(e)
			continue
		}
		e.next = now.Add(e.pause)
		e.pause = min(2*e.pause, lingerMost)
		left = append(left, e)
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.list = append(s.list, left...)
	for _, e := range s.list {
		if next.IsZero() || e.next.Before(next) {
			next = e.next
		}
	}
	return next
}

// gone reports whether nothing is left of an endpoint: no port, socket or segment in use. It
// tries again to delete a port that could not be deleted, and frees a segment not in use.
func (s *lingers) gone(e *lingering) bool {
	if e.at.port && s.m.closeAttachment(e.at) != nil {
		return false
	}
	if e.socket {
		there, err := s.socketThere(e)
		e.socket = there || s.doubt(e, err)
	}
	if e.memory != nil {
		used, err := xsk.SegmentInUse(e.memory)
		if !used && !s.doubt(e, err) {
			if err := errors.Join(xsk.FreeSegment(e.memory), e.memory.Close()); err != nil {
				s.m.log.Warn("segment of an endpoint", "endpoint", e.info.ID, "error", err)
			}
			e.memory = nil
		}
	}
	return !e.socket && e.memory == nil
}

// doubt reports whether to repeat a poll that has failed for a temporary reason: no descriptor
// or memory was left, or a signal came. After any other error the polled object counts as
// gone, since no later poll would succeed.
func (s *lingers) doubt(e *lingering, err error) (again bool) {
	if err == nil {
		return false
	}
	again = errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) ||
		errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
	if !again || !e.doubted {
		e.doubted = true
		s.m.log.Warn("cannot find out whether an endpoint's socket and segment are closed", "endpoint", e.info.ID, "ask_again", again, "error", err)
	}
	return again
}

// socketThere reports whether the socket of an endpoint exists. The slot of a port's socket
// has no other socket before that one is closed. A queue of the uplink may have another
// endpoint: if that endpoint's socket is bound the earlier socket is closed, since a queue has
// one socket; until then the earlier socket counts as open.
func (s *lingers) socketThere(e *lingering) (bool, error) {
	m := s.m
	if e.info.Attach == endpoint.AttachPort {
		return tables.SocketThere(m.progs.Maps.PortSockets, e.at.slot, m.unbound)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if bound, taken := m.queues[e.info.Queue]; taken {
		return !bound, nil
	}
	return tables.SocketThere(m.progs.Maps.Sockets, e.info.Queue, m.unbound)
}

// freed removes an endpoint from the ledger and the kernel's table. Nothing is left of it.
func (s *lingers) freed(e *lingering) {
	m := s.m
	if err := m.deleteEndpoint(e.at); err != nil {
		m.log.Warn("endpoint freed", "endpoint", e.info.ID, "error", err)
	}
	m.log.Debug("endpoint freed", "endpoint", e.info.ID)
	if e.granted {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.users.uncount(e.info.UID, Usage{Endpoints: 1, Memory: e.counted})
	}
}

// end ends the polling. again: it tries once more to delete ports that could not be
// deleted.
func (s *lingers) end(again bool) error {
	var err error
	for _, e := range s.take() {
		if again && e.at.port {
			err = errors.Join(err, s.m.closeAttachment(e.at))
		}
		if e.memory != nil {
			if cerr := e.memory.Close(); cerr != nil {
				err = errors.Join(err, fmt.Errorf("segment of endpoint %d: %w", e.info.ID, cerr))
			}
		}
	}
	return err
}
