package stack

import (
	"net"
	"time"

	"github.com/unet-go/unet/internal/wait"
)

// This file has the poll role, which doc.go explains: how goroutines take it and pass it
// on, and how they wait without it: parked on an event, or as a guest while the caretaker
// leaves.
//
// The invariant by which every goroutine is served: whenever mu is released while the role is
// free and goroutines are parked, another goroutine has been woken and has not taken mu yet
// (woken > 0). The last of these takes the role, or wakes a goroutine that is parked to take it.
//
// Connections take turns: a goroutine that waits does not take the role while goroutines that were
// woken have not run, so what has been received is handled before more is.

type pollRole uint8

const (
	roleFree        pollRole = iota
	roleApplication          // a goroutine in waitFor
	roleCaretaker
)

// awayKind is what the holder of the role does without the lock.
type awayKind uint8

const (
	notAway  awayKind = iota
	spinning          // on Link.Pending: attention calls it back
	sleeping          // in Link.Sleep: Link.Wake calls it back
)

// guestPolls bounds how long a goroutine polls as a guest before it parks.
const guestPolls = 256

// event is something that goroutines wait for. Its zero value is ready.
type event struct {
	seq     uint32 // counts the signals
	waiters waiterList
}

// waiter is one parked goroutine. It is on two lists: its event's and the
// stack's.
type waiter struct {
	wake     chan struct{} // one slot
	event    *event
	deadline instant
	parked   bool

	links [2]struct{ next, prev *waiter }
}

// The two lists of a waiter.
const (
	onEvent = iota
	onStack
)

// waiterList is a queue; the index k selects the links that it is made of.
type waiterList struct{ head, tail *waiter }

func (l *waiterList) add(w *waiter, k int) {
	w.links[k].prev = l.tail
	if l.tail != nil {
		l.tail.links[k].next = w
	} else {
		l.head = w
	}
	l.tail = w
}

func (l *waiterList) remove(w *waiter, k int) {
	next, prev := w.links[k].next, w.links[k].prev
	if prev != nil {
		prev.links[k].next = next
	} else {
		l.head = next
	}
	if next != nil {
		next.links[k].prev = prev
	} else {
		l.tail = prev
	}
	w.links[k].next, w.links[k].prev = nil, nil
}

// signal says that e has happened, and wakes one goroutine that waits for it:
// the holder of the role, if it has not been signalled yet, before any that is
// parked. mu is held, here and in all of this file.
func (s *Stack) signal(e *event) {
	e.seq++
	if s.pollerEvent == e && e.seq == s.pollerSeq+1 {
		if s.away != notAway {
			s.poke()
		}
	} else if w := e.waiters.head; w != nil {
		s.unpark(w)
	}
}

// broadcast is signal for all that wait for e.
func (s *Stack) broadcast(e *event) {
	e.seq++
	for e.waiters.head != nil {
		s.unpark(e.waiters.head)
	}
	if s.pollerEvent == e && s.away != notAway {
		s.poke()
	}
}

// poke calls the holder of the role back from where it is without the lock.
func (s *Stack) poke() {
	switch s.away {
	case spinning:
		s.attention.Store(true)
	case sleeping:
		s.link.Wake()
	}
}

// waitFor returns when e has been signalled or the deadline has passed, or without a
// reason: the caller checks again what it waits for. It releases mu meanwhile, so it
// flushes first.
func (s *Stack) waitFor(e *event, deadline instant) {
	if s.unflushed {
		s.flush()
	}
	seq := e.seq
	for {
		switch s.role {
		case roleFree:
			if s.woken > 0 {
				break // they run first, and the last of them sees to the role
			}
			s.roleMoves++
			s.pollUntil(roleApplication, e, seq, deadline, &s.spinner)
			s.roleMoves++
			return
		case roleCaretaker:
			s.signal(&s.recall)
			if s.pollAsGuest(e, seq) {
				return
			}
			if s.role == roleFree {
				continue
			}
		}
		s.park(e, deadline)
		if e.seq != seq || s.now >= deadline || s.closed {
			s.passRole()
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

// isServed reports whether a goroutine of the application polls or is about to. Then a call that does
// not wait receives nothing: it would take the next data of its own connection before others had
// their turn.
func (s *Stack) isServed() bool {
	return s.role == roleApplication || s.woken > 0 || s.parked.head != nil
}

// passRole wakes the goroutine that has been parked longest to take the role, unless somebody has
// the role or will see to it.
func (s *Stack) passRole() {
	if s.role == roleFree && s.woken == 0 && s.parked.head != nil {
		s.unpark(s.parked.head)
	}
}

// park sleeps until a signal of e, the deadline (the holder of the role sees to
// it), or until passRole wakes it.
func (s *Stack) park(e *event, deadline instant) {
	w := s.freeWaiters
	if w != nil {
		s.freeWaiters = w.links[onStack].next
		w.links[onStack].next = nil
	} else {
		w = &waiter{wake: make(chan struct{}, 1)}
	}
	w.event, w.deadline, w.parked = e, deadline, true
	e.waiters.add(w, onEvent)
	s.parked.add(w, onStack)
	if deadline < s.earliestWaiter {
		s.earliestWaiter = deadline
		s.poke()
	}
	s.mu.Unlock()
	<-w.wake
	s.mu.Lock()
	s.woken--
	w.event = nil
	w.links[onStack].next = s.freeWaiters
	s.freeWaiters = w
}

func (s *Stack) unpark(w *waiter) {
	if !w.parked {
		panic("BUG: stack: goroutine woken twice")
	}
	w.parked = false
	w.event.waiters.remove(w, onEvent)
	s.parked.remove(w, onStack)
	s.woken++
	w.wake <- struct{}{}
}

// wakeExpired wakes the parked goroutines whose deadline has come.
func (s *Stack) wakeExpired() {
	s.earliestWaiter = never
	for w := s.parked.head; w != nil; {
		next := w.links[onStack].next
		if w.deadline <= s.now {
			s.unpark(w)
		} else {
			s.earliestWaiter = min(s.earliestWaiter, w.deadline)
		}
		w = next
	}
}

// pollUntil takes the role, which is free, runs the engine until e is signalled or the
// deadline has passed, and gives the role up, to a goroutine that is parked if there is one.
//
// Seldom is the clock read between a frame's arrival and its delivery: it is read while
// nothing arrives, and after framesPerClock frames.
func (s *Stack) pollUntil(role pollRole, e *event, seq uint32, deadline instant, spinner *wait.Spinner) {
	s.role, s.pollerEvent, s.pollerSeq = role, e, seq
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
			yield := s.woken > 0
			s.away = spinning
			s.mu.Unlock()
			if yield {
				wait.Yield()
			}
			s.mu.Lock()
			s.returned()
			spinner.Begin()
			continue
		}
		if len(s.corks) > 0 {
			s.uncork()
			continue // on a connection to ourselves, e may wait for that data
		}
		limit := min(deadline, s.timerAt, s.earliestWaiter)
		if !spinner.On() {
			s.away = sleeping
			s.mu.Unlock()
			err := s.link.Sleep(s.time(limit), s.spinner.SleepsAgain())
			s.mu.Lock()
			s.returned()
			if err != nil {
				s.fail(err)
				break
			}
			early = s.advance(s.look())
		} else {
			s.away = spinning
			s.mu.Unlock()
			now := s.spin(spinner, limit)
			s.mu.Lock()
			s.returned()
			sent := s.count[framesSent]
			if early = s.advance(now); s.count[framesSent] != sent {
				spinner.Begin() // the time that sending took is not the processor's loss
			}
		}
	}
	s.role, s.pollerEvent = roleFree, nil
	if len(s.corks) > 0 && s.parked.head == nil {
		s.uncork() // nobody else will poll soon
	}
	if s.closed {
		s.noteLeft()
	}
	if s.parked.head != nil {
		s.passRole()
	}
	if s.caretakerIdle {
		s.wakeCaretaker()
	}
}

// returned is called when the holder of the role has taken mu again.
func (s *Stack) returned() {
	s.away = notAway
	if s.attention.Load() {
		s.attention.Store(false)
	}
}

// spin looks at the link, without the lock, until a frame waits, attention is set, or the
// clock has reached limit or the end of the budget, or for a round if a small write waits for more. It returns
// the time as last read, or 0.
func (s *Stack) spin(spinner *wait.Spinner, limit instant) (now instant) {
	for spinner.On() && now < limit {
		wait.Yield()
		for range wait.Looks {
			if s.link.Pending() || s.attention.Load() {
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
func (s *Stack) pollAsGuest(e *event, seq uint32) bool {
	if s.spinner.Mode == WaitBlock {
		return false
	}
	for range guestPolls {
		s.input()
		if e.seq != seq || s.closed {
			return true
		}
		if s.role != roleCaretaker {
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
func (s *Stack) ended() error {
	if s.broken != nil {
		return s.broken
	}
	return net.ErrClosed
}

// fail notes that the link has failed for good.
func (s *Stack) fail(err error) {
	if s.broken == nil {
		s.broken = err
	}
	for c := range s.udpConns {
		c.setSlow()
		s.broadcast(&c.readable)
	}
	for p := range s.udpPorts {
		p.fail(err)
	}
	for c := range s.tcpConns {
		c.setSlow()
		c.wakeAll()
	}
	for l := range s.tcpListeners {
		s.broadcast(&l.acceptable)
	}
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

// caretaker holds the poll role while no goroutine of the application waits, so that
// ARP, pings, ICMP errors and timers do not depend on the application.
//
// It must cost a process that computes between two waits neither a goroutine switch nor a
// system call. So the application does not start or stop it when it takes or leaves the
// role. The caretaker checks every few milliseconds whether the application has taken or
// left the role since the last check. If not, and the role is free, it takes the role and
// sleeps in the link, with no more pauses; the next wait of the application calls it back
// (recall). If the application itself sleeps in a long wait, the caretaker sleeps until that
// wait ends: the end has cost a wake-up anyway, and wakes the caretaker too.
func (s *Stack) caretaker() {
	defer close(s.caretakerDone)
	pause := firstPause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookTimer = timer
	for seen := s.roleMoves; !s.closed && s.broken == nil; {
		s.mu.Unlock()
		select {
		case <-timer.C:
		case <-s.caretakerWake:
		}
		s.mu.Lock()
		pause = min(2*pause, lastPause)
		if s.tcp.Len() > 0 || len(s.udpPorts) > 0 || s.lookSoon {
			pause = min(pause, shortPause)
			s.takeCare()
		}
		switch busy := s.roleMoves != seen; {
		case s.closed:
		case s.role == roleFree && !busy && s.parked.head == nil:
			s.pollUntil(roleCaretaker, &s.recall, s.recall.seq, never, &wait.Spinner{Mode: WaitBlock})
			pause = firstPause
		case s.role == roleFree:
			pause = firstPause
		case !busy && s.away == sleeping:
			s.caretakerIdle = true
			s.mu.Unlock()
			<-s.caretakerWake
			s.mu.Lock()
			pause = firstPause
		}
		seen = s.roleMoves
		timer.Reset(pause)
	}
}

// takeCare does for connections and ports, while the application computes or waits for
// something else, what cannot wait for its next call. mu is held, here and below.
func (s *Stack) takeCare() {
	if s.lookSoon {
		s.lookSoon = false
		if s.lookDelay = min(2*s.lookDelay+firstLook, lastLook); s.lookMoves == s.roleMoves {
			s.lookDelay = 0
		}
	}
	if s.closed || s.role != roleFree {
		return
	}
	s.readClock()
	if s.woken > 0 {
		s.input() // those that were woken wait for a processor, and nobody polls before they have run
	}
	s.runDue()
	s.sendUnserved()
}

// wakeCaretaker ends the caretaker's pause. mu is held.
func (s *Stack) wakeCaretaker() {
	s.caretakerIdle = false
	select {
	case s.caretakerWake <- struct{}{}:
	default:
	}
}
