package stack

import "time"

// The caretaker's pauses between two looks at who polls.
const (
	firstPause = time.Millisecond     // also the grace after the application's last wait
	lastPause  = 8 * time.Millisecond // while the application is busy
	// lastPauseTCP is lastPause while there are connections: less than the time
	// after which a peer like us sends again what has not been acknowledged.
	lastPauseTCP = 2 * time.Millisecond

	firstLook   = 30 * time.Microsecond // see lookSoonForTCP
	lastLookTCP = 500 * time.Microsecond
)

// caretaker holds the poll role while nobody in the application waits, so that
// ARP, pings, ICMP errors and timers do not depend on the application.
//
// It must not disturb: a process that computes between two waits pays nothing
// for it, no goroutine switch and no system call. So the application never
// starts it and never stops it on that path. The caretaker looks by itself, once
// every few milliseconds, whether the application has taken or left the role
// since the last look. If not, and nobody holds it, it takes the role and sleeps in the link, with no more
// pauses; the next wait of the application calls it back (recall). If the
// application sits asleep in a long wait of its own, the caretaker goes to sleep
// too, and the end of that wait, which has cost a wake-up anyway, wakes it.
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
		if s.tcp.Len() > 0 || s.lookSoon {
			pause = min(pause, lastPauseTCP)
			s.careForTCP()
		}
		switch busy := s.roleMoves != seen; {
		case s.closed:
		case s.role == roleFree && !busy && s.parked.head == nil:
			s.role = roleCaretaker
			s.pollUntil(&s.recall, s.recall.seq, never, WaitBlock)
			s.leaveRole()
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

// careForTCP does for connections, while the application computes or waits for
// something else, what cannot wait for its next call. mu is held, here and below.
func (s *Stack) careForTCP() {
	if s.lookSoon {
		s.lookSoon = false
		if s.lookDelay = min(2*s.lookDelay+firstLook, lastLookTCP); s.lookMoves == s.roleMoves {
			s.lookDelay = 0
		}
	}
	if s.closed || s.role != roleFree {
		return
	}
	s.readClock()
	s.releaseAcks()
	s.runDue()
}

// lookSoonForTCP is called by a writer that nobody polls for and that leaves
// something which is due before the caretaker would look, corked text: it has the
// caretaker look in time. While the writer goes on, and so sees to it itself, that
// is less and less often.
func (s *Stack) lookSoonForTCP() {
	if s.lookSoon || s.lookTimer == nil || s.timerAt >= s.now+instant(lastPauseTCP) {
		return
	}
	s.lookSoon, s.lookMoves = true, s.roleMoves
	s.lookTimer.Reset(max(time.Duration(s.timerAt-s.now), s.lookDelay))
}

// wakeCaretaker ends the caretaker's pause. mu is held.
func (s *Stack) wakeCaretaker() {
	s.caretakerIdle = false
	select {
	case s.caretakerWake <- struct{}{}:
	default:
	}
}
