package stack

import "sync/atomic"

// pollRole is the poll role of a stack, which doc.go explains: who holds it, and which goroutines
// wait without it. All methods but wanted and woke need the stack's lock. wait.go has the loops in which
// goroutines hold it.
//
// The invariant by which every goroutine is served: whenever the lock is released while the role is
// free and goroutines are parked, another goroutine has been woken and has not taken the lock yet
// (woken > 0). The last of these takes the role, or wakes a goroutine that is parked to take it.
//
// Connections take turns: a goroutine that waits does not take the role while goroutines that were
// woken have not run, so what has been received is handled before more is.
type pollRole struct {
	// attention calls the goroutine that spins on the link without the lock.
	attention atomic.Bool
	_         [63]byte // keep the spinner's cache line apart from all others

	link   receiver // its Wake calls the goroutine that sleeps in it without the lock
	holder holder
	away   awayKind
	event  *event // what the holder waits for
	seq    uint32 // the signals of event when it began to wait
	moved  uint64 // see moves

	parked   waiterList // all goroutines that sleep on an event
	unused   *waiter    // a list, by its links onRole
	earliest instant    // the earliest deadline of a parked goroutine
	woken    int        // goroutines that were woken and have not taken the lock yet

	recall event         // tells the caretaker to give the role up
	idle   bool          // the caretaker sleeps until wake
	wake   chan struct{} // one slot
}

// holder is who holds the poll role.
type holder uint8

const (
	roleFree        holder = iota
	roleApplication        // a goroutine in waitFor
	roleCaretaker
)

// awayKind is what the holder does without the lock.
type awayKind uint8

const (
	notAway  awayKind = iota
	spinning          // on Link.Pending: attention calls it back
	sleeping          // in Link.Sleep: Link.Wake calls it back
)

// event is something that goroutines wait for. Its zero value is ready.
type event struct {
	seq     uint32 // counts the signals
	waiters waiterList
}

// waiter is one parked goroutine. It is on two lists: its event's and the
// role's.
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
	onRole
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

func (r *pollRole) init(link receiver) {
	r.link, r.earliest, r.wake = link, never, make(chan struct{}, 1)
}

func (r *pollRole) is(h holder) bool { return r.holder == h }

// waitsFor reports whether the holder waits for e.
func (r *pollRole) waitsFor(e *event) bool { return r.event == e }

// sleeps reports whether the holder is in Link.Sleep.
func (r *pollRole) sleeps() bool { return r.away == sleeping }

// isServed reports whether a goroutine of the application polls or is about to. Then a call that does
// not wait receives nothing: it would take the next data of its own connection before others had
// their turn.
func (r *pollRole) isServed() bool {
	return r.holder == roleApplication || r.woken > 0 || r.hasParked()
}

// hasWoken reports whether goroutines that were woken have not taken the lock yet.
func (r *pollRole) hasWoken() bool { return r.woken > 0 }

func (r *pollRole) hasParked() bool { return r.parked.head != nil }

// deadline is the earliest deadline of a parked goroutine.
func (r *pollRole) deadline() instant { return r.earliest }

// moves is how often the role was taken or left, or the application has polled without it.
func (r *pollRole) moves() uint64 { return r.moved }

// take takes the role, which is free. The goroutine waits for e, whose signals were seq when it began to.
func (r *pollRole) take(h holder, e *event, seq uint32) {
	r.holder, r.event, r.seq = h, e, seq
	r.moved++
}

// giveUp leaves the role free. The caller then calls pass.
func (r *pollRole) giveUp() {
	r.holder, r.event = roleFree, nil
	r.moved++
}

// pass wakes the goroutine that has been parked longest to take the role, unless somebody has
// the role or will see to it.
func (r *pollRole) pass() {
	if r.parked.head != nil && r.holder == roleFree && r.woken == 0 {
		r.unpark(r.parked.head)
	}
}

// visit is called by a goroutine of the application before it polls without the role. The caretaker
// gives the role up.
func (r *pollRole) visit() {
	r.moved++
	if r.holder == roleCaretaker {
		r.signal(&r.recall)
	}
}

// recalled is the event that the caretaker waits for while it holds the role.
func (r *pollRole) recalled() *event { return &r.recall }

// dismiss ends what the caretaker waits for, whatever that is.
func (r *pollRole) dismiss() {
	r.signal(&r.recall)
	r.wakeCaretaker()
}

// goAway is called before the holder releases the lock to spin or sleep, comeBack when it has the lock again.
func (r *pollRole) goAway(how awayKind) { r.away = how }

func (r *pollRole) comeBack() {
	r.away = notAway
	if r.attention.Load() {
		r.attention.Store(false)
	}
}

// wanted reports to a holder that spins whether it is called back. It needs no lock.
func (r *pollRole) wanted() bool { return r.attention.Load() }

// poke calls the holder back from where it is without the lock.
func (r *pollRole) poke() {
	switch r.away {
	case spinning:
		r.attention.Store(true)
	case sleeping:
		r.link.Wake()
	}
}

// signal says that e has happened, and wakes one goroutine that waits for it:
// the holder, if it has not been signalled yet, before any that is parked.
func (r *pollRole) signal(e *event) {
	e.seq++
	if r.event == e && e.seq == r.seq+1 {
		if r.away != notAway {
			r.poke()
		}
	} else if w := e.waiters.head; w != nil {
		r.unpark(w)
	}
}

// broadcast is signal for all that wait for e.
func (r *pollRole) broadcast(e *event) {
	e.seq++
	for e.waiters.head != nil {
		r.unpark(e.waiters.head)
	}
	if r.event == e && r.away != notAway {
		r.poke()
	}
}

// park sleeps without mu, the stack's lock, until a signal of e, the deadline (the holder sees to
// it), or until pass wakes it.
//
// +checklocks:mu
func (r *pollRole) park(mu *stackMutex, e *event, deadline instant) {
	w := r.unused
	if w != nil {
		r.unused = w.links[onRole].next
		w.links[onRole].next = nil
	} else {
		w = &waiter{wake: make(chan struct{}, 1)}
	}
	w.event, w.deadline, w.parked = e, deadline, true
	e.waiters.add(w, onEvent)
	r.parked.add(w, onRole)
	if deadline < r.earliest {
		r.earliest = deadline
		r.poke()
	}
	mu.Unlock()
	<-w.wake
	mu.Lock()
	r.woken--
	w.event = nil
	w.links[onRole].next = r.unused
	r.unused = w
}

func (r *pollRole) unpark(w *waiter) {
	if !w.parked {
		panic("BUG: stack: goroutine woken twice")
	}
	w.parked = false
	w.event.waiters.remove(w, onEvent)
	r.parked.remove(w, onRole)
	r.woken++
	w.wake <- struct{}{}
}

// wakeExpired wakes the parked goroutines whose deadline has come.
func (r *pollRole) wakeExpired(now instant) {
	r.earliest = never
	for w := r.parked.head; w != nil; {
		next := w.links[onRole].next
		if w.deadline <= now {
			r.unpark(w)
		} else {
			r.earliest = min(r.earliest, w.deadline)
		}
		w = next
	}
}

// letIdle lets the caretaker sleep, without mu, the stack's lock, until wakeCaretaker.
//
// +checklocks:mu
func (r *pollRole) letIdle(mu *stackMutex) {
	r.idle = true
	mu.Unlock()
	<-r.wake
	mu.Lock()
}

// woke ends a pause of the caretaker. It needs no lock.
func (r *pollRole) woke() <-chan struct{} { return r.wake }

// wakeIdle is called when the role is free: a caretaker that sleeps may be needed.
func (r *pollRole) wakeIdle() {
	if r.idle {
		r.wakeCaretaker()
	}
}

// wakeCaretaker ends the caretaker's sleep or its next pause.
func (r *pollRole) wakeCaretaker() {
	r.idle = false
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
