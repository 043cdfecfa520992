package stack

import (
	"net"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/wait"
)

// This file has what goroutines do that wait: they take the poll role and run the stack, or they
// park, or they poll as a guest while the caretaker leaves. mu is held in all functions that do not
// say otherwise.

// guestPolls bounds how long a goroutine polls as a guest before it parks.
const guestPolls = 256

// waitFor returns when e has been signalled or the deadline has passed, or without a
// reason: the caller checks again what it waits for. It releases mu meanwhile, so it
// flushes first.
//
// +checklocks:s.mu
func (s *Stack) waitFor(e *event, deadline instant) {
	if s.unflushed {
		s.flush()
	}
	seq := e.seq
	for {
		switch {
		case s.role.is(roleFree):
			if s.role.hasWoken() {
				break // to park: they run first, and the last of them sees to the role
			}
			s.pollUntil(roleApplication, e, seq, deadline, &s.spinner)
			return
		case s.role.is(roleCaretaker):
			s.role.visit()
			if s.pollAsGuest(e, seq) {
				return
			}
			if s.role.is(roleFree) {
				continue
			}
		}
		s.role.park(&s.mu, e, deadline)
		if e.seq != seq || s.now >= deadline || s.closed {
			s.role.pass()
			return
		}
	}
}

// noteLeft wakes Close: a user of the link has ended.
func (s *Stack) noteLeft() {
	select {
	case s.left <- struct{}{}:
	default:
	}
}

// pollUntil takes the role, which is free, runs the engine until e is signalled or the
// deadline has passed, and gives the role up, to a goroutine that is parked if there is one.
//
// Seldom is the clock read between a frame's arrival and its delivery: it is read while
// nothing arrives, and after framesPerClock frames.
//
// +checklocks:s.mu
func (s *Stack) pollUntil(h holder, e *event, seq uint32, deadline instant, spinner *wait.Spinner) {
	s.role.take(h, e, seq)
	spinner.Begin()
	early := 0 // frames that were received before timers ran
	for {
		got := early + s.input()
		if early = 0; got > 0 {
			spinner.Found()
		}
		if e.seq != seq || s.now >= deadline || s.closed || s.broken != nil {
			break
		}
		busy := got > 0
		if !busy && s.tcp.Ready != nil && !s.linkFull { // the next turns
			if busy = true; s.readClock() >= s.timerAt {
				s.runDue()
			} else {
				s.settle()
			}
		}
		if busy {
			// Let others take the lock, and let goroutines that were woken run: they
			// are on this processor's run queue.
			yield := s.role.hasWoken()
			s.role.goAway(spinning)
			s.mu.Unlock()
			if yield {
				wait.Yield()
			}
			s.mu.Lock()
			s.role.comeBack()
			spinner.Begin()
			continue
		}
		if len(s.corks) > 0 {
			s.uncork()
			continue // on a connection to ourselves, e may wait for that data
		}
		limit := min(deadline, s.timerAt, s.role.deadline())
		if !spinner.On() {
			again := s.spinner.SleepsAgain()
			s.role.goAway(sleeping)
			s.mu.Unlock()
			err := s.link.Sleep(s.time(limit), again) // the application's: its next wait follows
			s.mu.Lock()
			s.role.comeBack()
			if err != nil {
				s.fail(err)
				break
			}
			early = s.advance(s.look())
		} else {
			s.role.goAway(spinning)
			s.mu.Unlock()
			now := s.spin(spinner, limit)
			s.mu.Lock()
			s.role.comeBack()
			sent := s.count[framesSent]
			if early = s.advance(now); s.count[framesSent] != sent {
				spinner.Begin() // the time that sending took is not the processor's loss
			}
		}
	}
	s.role.giveUp()
	if len(s.corks) > 0 && !s.role.hasParked() {
		s.uncork() // nobody else will poll soon
	}
	if s.closed {
		s.noteLeft()
	}
	s.role.pass()
	s.role.wakeIdle()
}

// spin looks at the link, without the lock, until a frame waits, the goroutine is wanted, or the
// clock has reached limit or the end of the budget. While a small write waits for more, it looks for one
// round only. It returns the time as last read, or 0.
func (s *Stack) spin(spinner *wait.Spinner, limit instant) (now instant) {
	for spinner.On() && now < limit {
		wait.Yield()
		for range wait.Looks {
			if s.link.Pending() || s.role.wanted() { // +checklocksignore: wanted needs no lock
				return now
			}
		}
		if s.corking.Load() {
			return now
		}
		now = s.look()
		spinner.Round(time.Duration(now))
	}
	return now
}

// pollAsGuest polls for a goroutine that cannot have the role yet, because the
// caretaker has not returned from Link.Sleep yet: waking it takes tens of microseconds, and
// a frame may arrive before. It reports whether the wait is over.
//
// +checklocks:s.mu
func (s *Stack) pollAsGuest(e *event, seq uint32) bool {
	if s.spinner.Mode == endpoint.WaitBlock {
		return false
	}
	for range guestPolls {
		s.input()
		if e.seq != seq || s.closed {
			return true
		}
		if !s.role.is(roleCaretaker) {
			return false
		}
		s.mu.Unlock()
		wait.Yield()
		s.mu.Lock()
		if e.seq != seq || s.closed {
			return true
		}
	}
	return false
}

// Fail makes the stack useless: what is queued can still be read, and every
// other call, also one that blocks already, returns err. So do calls after Close, and those
// that Close ends, if Fail was called before. It is for an owner that detects a failure of
// the link which the link itself does not detect.
func (s *Stack) Fail(err error) {
	s.mu.Lock()
	s.fail(err)
	s.mu.Unlock()
}

// ended is the error of calls of a socket or a stack that is closed: net.ErrClosed, or why the
// link had failed for good before. mu is held.
//
// +checklocks:s.mu
func (s *Stack) ended() error {
	if s.broken != nil {
		return s.broken
	}
	return net.ErrClosed
}

// fail notes that the link has failed for good.
//
// +checklocks:s.mu
func (s *Stack) fail(err error) {
	if s.broken == nil {
		s.broken = err
	}
	s.role.broadcast(&s.answered)
	for c := range s.udpConns {
		c.setSlow() // +checklocksignore: a socket of this stack
		s.role.broadcast(&c.readable)
	}
	for p := range s.udpPorts {
		p.fail(err) // +checklocksignore: a port of this stack
	}
	for c := range s.tcpConns {
		c.setSlow() // +checklocksignore: a connection of this stack
		c.wakeAll() // +checklocksignore: a connection of this stack
	}
	for l := range s.tcpListeners {
		s.role.broadcast(&l.acceptable)
	}
}
