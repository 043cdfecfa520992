package mux

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
)

// After the end of its lease an endpoint has no tag and no port, and yet there
// may be much left of it: a process that keeps the socket keeps the namespace of
// the port and the memory that is registered with the socket, and one that keeps
// the segment open or mapped keeps its memory. Nothing can take that away from
// it. So the mux goes on asking, and counts the endpoint for its user until all is gone. The endpoint of a port stays in the kernel's table
// until then too: a process that takes over from this one goes on with asking for its
// socket. It cannot ask for a segment, which only the process that made it can, nor for
// the socket of a queue, where another endpoint may be.

// How long after one question the next is asked. Most processes let go at once.
const (
	lingerFirst = time.Millisecond
	lingerMost  = 250 * time.Millisecond
)

// lingering is what may be left of an endpoint.
type lingering struct {
	info    endpoint.Info
	at      *attachment
	granted bool     // it counts until it is gone
	socket  bool     // may be there
	memory  *os.File // what its segment is asked by; nil: it is gone, or was made by another process
	doubted bool     // it could not be asked, and the log says so

	pause time.Duration
	next  time.Time // when it is asked
}

// linger begins to ask what is left of an endpoint whose lease has ended.
func (m *Mux) linger(e *lingering) {
	e.socket, e.pause, e.next = true, lingerFirst, time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lingering = append(m.lingering, e)
	select {
	case m.lingers <- struct{}{}:
	default: // not seen yet
	}
}

// followLingering asks, in a goroutine of its own, until the mux is closed.
func (m *Mux) followLingering() {
	for {
		var due <-chan time.Time
		if next := m.askLingering(); !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
		case <-m.lingers:
		case <-m.ctx.Done():
			return
		}
	}
}

// askLingering asks about all whose time has come and returns when the next is due; zero:
// there are none.
func (m *Mux) askLingering() (next time.Time) {
	m.mu.Lock()
	list := m.lingering
	m.lingering = nil
	m.mu.Unlock()
	var left []*lingering
	now := time.Now()
	for _, e := range list {
		if now.Before(e.next) {
			left = append(left, e)
			continue
		}
		if m.gone(e) {
			m.freed(e)
			continue
		}
		e.next = now.Add(e.pause)
		e.pause = min(2*e.pause, lingerMost)
		left = append(left, e)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lingering = append(m.lingering, left...)
	for _, e := range m.lingering {
		if next.IsZero() || e.next.Before(next) {
			next = e.next
		}
	}
	return next
}

// gone asks about one.
func (m *Mux) gone(e *lingering) bool {
	if e.at.port && m.takeAway(e.at) != nil {
		return false
	}
	if e.socket {
		there, err := m.socketLingers(e)
		e.socket = there || m.doubt(e, err)
	}
	if e.memory != nil {
		used, err := xsk.SegmentInUse(e.memory)
		if !used && !m.doubt(e, err) {
			if err := errors.Join(xsk.FreeSegment(e.memory), e.memory.Close()); err != nil {
				m.log.Warn("segment of an endpoint", "endpoint", e.info.ID, "error", err)
			}
			e.memory = nil
		}
	}
	return !e.socket && e.memory == nil
}

// doubt reports whether the answer that err stands for is to be asked for again:
// this process or the kernel has run out of something for now. What can never be asked
// is taken for gone, for it would never be.
func (m *Mux) doubt(e *lingering, err error) (again bool) {
	if err == nil {
		return false
	}
	again = errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) ||
		errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
	if !again || !e.doubted {
		e.doubted = true
		m.log.Warn("cannot tell whether an endpoint's socket and segment are closed", "endpoint", e.info.ID, "ask_again", again, "error", err)
	}
	return again
}

// socketLingers reports whether somebody still has the socket of an endpoint.
// That of a port has its slot to itself. The queue of an uplink may have been
// taken by another endpoint, which shows that it was free.
func (m *Mux) socketLingers(e *lingering) (bool, error) {
	if e.info.Attach == endpoint.AttachPort {
		return socketThere(m.progs.objs.PortSockets, e.at.slot, m.unbound)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if bound, taken := m.queues[e.info.Queue]; taken {
		return !bound, nil
	}
	return socketThere(m.progs.objs.Sockets, e.info.Queue, m.unbound)
}

// freed is the end of an endpoint.
func (m *Mux) freed(e *lingering) {
	if err := m.forgetPort(e.at); err != nil {
		m.log.Warn("endpoint freed", "endpoint", e.info.ID, "error", err)
	}
	m.log.Debug("endpoint freed", "endpoint", e.info.ID)
	if e.granted {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.users.uncount(e.info.UID, use{endpoints: 1, bytes: e.info.SegmentBytes})
	}
}

// letLinger ends the asking for good. What could not be deleted is tried once
// more, if so wanted.
func (m *Mux) letLinger(again bool) error {
	m.mu.Lock()
	list := m.lingering
	m.lingering = nil
	m.mu.Unlock()
	var err error
	for _, e := range list {
		if again && e.at.port {
			err = errors.Join(err, m.takeAway(e.at))
		}
		if e.memory != nil {
			if cerr := e.memory.Close(); cerr != nil {
				err = errors.Join(err, fmt.Errorf("segment of endpoint %d: %w", e.info.ID, cerr))
			}
		}
	}
	return err
}
