package stack

import (
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/wait"
)

// caretaker is how long the goroutine of that name pauses.
type caretaker struct {
	timer *time.Timer   // ends its pause; nil: there is no caretaker
	soon  bool          // lookAround has set timer
	moves uint64        // pollRole.moves then
	delay time.Duration // the least time until the timer that lookAround sets next
}

// The caretaker's pauses between two checks of the poll role.
const (
	firstPause = time.Millisecond     // also the grace after the application's last wait
	lastPause  = 8 * time.Millisecond // while the application is busy
	// shortPause is lastPause while there are connections or ports: less than the time
	// after which a peer like us sends again what has not been acknowledged.
	shortPause = 2 * time.Millisecond

	firstLook = 30 * time.Microsecond // see lookAround
	lastLook  = 500 * time.Microsecond
)

// runCaretaker holds the poll role while no goroutine of the application waits, so that
// ARP, pings, ICMP errors and timers do not depend on the application.
//
// It must cost a process that computes between two waits neither a goroutine switch nor a
// system call. So the application does not start or stop it when it takes or leaves the
// role. The caretaker checks every few milliseconds whether the application has taken or
// left the role since the last check. If not, and the role is free, it takes the role and
// sleeps in the link, with no more pauses; the next wait of the application calls it back
// (recall). If the application itself sleeps in a long wait, the caretaker sleeps until that
// wait ends: the end has cost a wake-up anyway, and wakes the caretaker too.
func (s *Stack) runCaretaker() {
	defer close(s.unattended)
	pause := firstPause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	c, recalled := &s.caretaker, s.role.recalled()
	c.timer = timer
	for seen := s.role.moves(); !s.closed && s.broken == nil; {
		s.mu.Unlock()
		select {
		case <-timer.C:
		case <-s.role.woke(): // +checklocksignore: it needs no lock
		}
		s.mu.Lock()
		pause = min(2*pause, lastPause)
		if s.tcp.Len() > 0 || len(s.udpPorts) > 0 || c.soon {
			pause = min(pause, shortPause)
			s.takeCare()
		}
		switch busy := s.role.moves() != seen; {
		case s.closed:
		case s.role.is(roleFree) && !busy && !s.role.hasParked():
			s.pollUntil(roleCaretaker, recalled, recalled.seq, never, &wait.Spinner{Mode: endpoint.WaitBlock})
			pause = firstPause
		case s.role.is(roleFree):
			pause = firstPause
		case !busy && s.role.sleeps():
			s.role.letIdle(&s.mu)
			pause = firstPause
		}
		seen = s.role.moves()
		timer.Reset(pause)
	}
}

// takeCare does for connections and ports, while the application computes or waits for
// something else, what cannot wait for its next call. mu is held, here and below.
//
// +checklocks:s.mu
func (s *Stack) takeCare() {
	if c := &s.caretaker; c.soon {
		c.soon = false
		if c.delay = min(2*c.delay+firstLook, lastLook); c.moves == s.role.moves() {
			c.delay = 0
		}
	}
	if s.closed || !s.role.is(roleFree) {
		return
	}
	s.readClock()
	if s.role.hasWoken() {
		s.input() // those that were woken wait for a processor, and nobody polls before they have run
	}
	s.runDue()
	s.sendUnserved()
}

// lookAround polls once at the end of a write while no goroutine of the application polls or is about to: it
// processes the acknowledgments that have arrived and sends data whose cork time is over.
// The caretaker gives up the poll role meanwhile. If corked data is due before the
// caretaker's next check, the caretaker checks in time. While the application polls between
// such writes, which sends the data too, the caretaker checks less and less often.
//
// +checklocks:s.mu
func (s *Stack) lookAround() {
	s.role.visit()
	if !s.role.isServed() && s.link.Pending() {
		s.input()
	}
	if s.now >= s.timerAt {
		s.runDue()
	}
	s.sendUnserved()
	if c := &s.caretaker; s.role.is(roleFree) && !c.soon && c.timer != nil && s.timerAt < s.now+instant(shortPause) {
		c.soon, c.moves = true, s.role.moves()
		c.timer.Reset(max(time.Duration(s.timerAt-s.now), c.delay, 1)) // not due already: see memlink.Link.Sleep
	}
}
