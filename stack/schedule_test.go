//go:build unetdebug && !race

package stack

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A scheduler that tries all schedules of a few goroutines on a real stack. One goroutine runs at
// a time, until it is about to take the lock again. Each choice of the next goroutine is tried. A
// state is explored once: if two schedules lead to the same state, as far as waiting depends on
// it, the second one is not continued.

// actor is one goroutine that takes the stack's lock.
type actor struct {
	name  string
	calls []call
	at    int // which of calls it is in

	turn    chan struct{}
	ready   bool    // about to take the lock, or to begin a call
	where   uint64  // the call stack there
	seen    uint32  // signals of the event that it waits for, when it parked
	ended   bool    // its goroutine has
	waiting *waiter // while it is parked
}

// call is a call that may wait.
type call struct {
	do func()
	// canEnd reports whether what the call waits for has happened. nil: the call always ends.
	canEnd func() bool
}

// scheduleRun is one run of the actors by one schedule.
type scheduleRun struct {
	s             *Stack
	actors        []*actor
	events        map[*event]string
	conns         []*TCPConn
	udpConns      []*UDPConn
	listeners     []*TCPListener
	bufs          map[string][]byte // memory that readers may post
	timeSteps     int               // how often time may advance
	timeStepsDone int               // how often time has advanced

	mu   sync.Mutex // guards the fields below and actors, for goroutines that run at once
	byID map[string]*actor
	free bool // no more scheduling
}

const timeStep = 5 * time.Millisecond // how far time advances: past every deadline, and to the next poll of the caretaker

func (r *scheduleRun) actor(name string, calls ...call) {
	r.actors = append(r.actors, &actor{name: name, calls: calls, turn: make(chan struct{})})
}

// self is the calling goroutine.
func self() string {
	var b [64]byte
	return strings.Fields(string(b[:runtime.Stack(b[:], false)]))[1]
}

// pause is called by an actor that is about to take the lock.
func (r *scheduleRun) pause() {
	var pcs [24]uintptr
	n := runtime.Callers(3, pcs[:])
	id := self()
	r.mu.Lock()
	if r.free {
		r.mu.Unlock()
		return
	}
	a := r.byID[id]
	if a == nil { // a goroutine of the stack itself
		a = &actor{name: "caretaker", turn: make(chan struct{})}
		r.byID[id] = a
		r.actors = append(r.actors, a)
	}
	a.where = 14695981039346656037
	for _, pc := range pcs[:n] {
		a.where = (a.where ^ uint64(pc)) * 1099511628211
	}
	a.ready = true
	r.mu.Unlock()
	<-a.turn
}

func (r *scheduleRun) run(a *actor) {
	id := self()
	r.mu.Lock()
	r.byID[id] = a
	r.mu.Unlock()
	for a.at = 0; a.at < len(a.calls); a.at++ {
		r.pause()
		a.calls[a.at].do()
	}
	a.ended = true
}

// state is all that the rest of a run depends on, as text.
func (r *scheduleRun) state() string {
	s := r.s
	var b strings.Builder
	owner := map[*waiter]string{}
	for _, a := range r.actors {
		fmt.Fprintf(&b, "%s %d %v %v %x %d;", a.name, a.at, a.ready, a.ended, a.where, a.seen)
		if a.waiting != nil {
			owner[a.waiting] = a.name
		}
	}
	fmt.Fprintf(&b, "|%d %d %v %v %d %d %v|", s.role.holder, s.role.away, s.role.idle, s.closed, s.role.seq, r.timeStepsDone, s.link.Pending())
	fmt.Fprintf(&b, "%s %d %d|", r.events[s.role.event], s.role.woken, s.role.earliest)
	for w := s.role.parked.head; w != nil; w = w.links[onRole].next {
		fmt.Fprintf(&b, "%s:%s ", owner[w], r.events[w.event])
	}
	for _, c := range r.conns {
		v := reflect.ValueOf(c.conn).Elem()
		post := v.FieldByName("post")
		posted := ""
		for name, buf := range r.bufs {
			if post.Len() > 0 && post.Pointer() == reflect.ValueOf(buf).Pointer() {
				posted = name
			}
		}
		fmt.Fprintf(&b, "|%s %v %d %d %d %v %v %v %v", posted, v.FieldByName("wantsRead"), v.FieldByName("posted").Int(), c.conn.Buffered(), c.conn.Room(),
			c.conn.State(), v.FieldByName("wantsWrite"), c.writing, c.closed)
		fmt.Fprintf(&b, " %d %d %d", c.readable.seq, c.writable.seq, c.turn.seq)
	}
	for _, u := range r.udpConns {
		fmt.Fprintf(&b, "|%d %d %v", u.udp.Len(), u.readable.seq, u.closed)
	}
	for _, l := range r.listeners {
		fmt.Fprintf(&b, "|%d %d %v", l.listener.Len(), l.acceptable.seq, l.closed)
	}
	return b.String()
}

// noteParked finds the actor that has just parked: the only one that ran.
func (r *scheduleRun) noteParked(ran *actor) {
	parked := map[*waiter]bool{}
	for w := r.s.role.parked.head; w != nil; w = w.links[onRole].next {
		parked[w] = true
	}
	for _, a := range r.actors {
		if a.waiting != nil {
			if !parked[a.waiting] {
				a.waiting = nil
			}
			delete(parked, a.waiting)
		}
	}
	for w := range parked {
		ran.waiting, ran.seen = w, w.event.seq
	}
}

// scheduleSearch tries all schedules of a set-up.
type scheduleSearch struct {
	t     *testing.T
	build func(*scheduleRun)
	seen  map[string]bool
	todo  [][]int // beginnings of schedules to be tried
	runs  int

	diverged int // replays that differed: of two timers that expire at once, either may be first
}

func trySchedules(t *testing.T, build func(*scheduleRun)) {
	x := &scheduleSearch{t: t, build: build, seen: map[string]bool{}, todo: [][]int{nil}}
	for len(x.todo) > 0 && !t.Failed() {
		next := x.todo[len(x.todo)-1]
		x.todo = x.todo[:len(x.todo)-1]
		x.runs++
		synctest.Test(t, func(t *testing.T) { x.try(t, next) })
	}
	t.Logf("%d states, %d runs, %d diverged", len(x.seen), x.runs, x.diverged)
}

// try runs one schedule and goes on with the first choice each time, until it comes to a
// state that has been seen.
func (x *scheduleSearch) try(t *testing.T, schedule []int) {
	r := &scheduleRun{byID: map[string]*actor{}, events: map[*event]string{nil: "-"}, bufs: map[string][]byte{}, free: true}
	beforeLock = r.pause
	x.build(r)
	r.events[r.s.role.recalled()] = "recall"
	r.events[&r.s.drained] = "drained"
	for i, c := range r.conns {
		for name, e := range map[string]*event{"readable": &c.readable, "writable": &c.writable, "turn": &c.turn, "reclaimed": &c.reclaimed} {
			r.events[e] = fmt.Sprint(name, i)
		}
	}
	for i, u := range r.udpConns {
		r.events[&u.readable] = fmt.Sprint("datagrams", i)
	}
	for i, l := range r.listeners {
		r.events[&l.acceptable] = fmt.Sprint("acceptable", i)
	}
	synctest.Wait()
	r.free = false
	for _, a := range r.actors {
		go r.run(a)
	}
	var trace []string
	path := schedule
	for step := 0; ; step++ {
		synctest.Wait()
		var choices []*actor
		for _, a := range r.actors {
			if a.ready {
				choices = append(choices, a)
			}
		}
		if len(choices) == 0 && r.timeStepsDone == r.timeSteps {
			if step >= len(schedule) {
				r.check(t, trace)
			}
			break
		}
		if r.timeStepsDone < r.timeSteps {
			choices = append(choices, nil)
		}
		k := 0
		if step < len(schedule) {
			if k = schedule[step]; k >= len(choices) {
				x.diverged++
				break
			}
		} else {
			state := r.state()
			if x.seen[state] {
				break
			}
			x.seen[state] = true
			for other := 1; other < len(choices); other++ {
				x.todo = append(x.todo, append(append([]int(nil), path...), other))
			}
			path = append(path[:len(path):len(path)], 0)
		}
		if a := choices[k]; a != nil {
			trace = append(trace, a.name)
			a.ready = false
			a.turn <- struct{}{}
			synctest.Wait()
			r.noteParked(a)
		} else {
			trace = append(trace, "time")
			r.timeStepsDone++
			time.Sleep(timeStep)
		}
	}
	// Let all goroutines run freely.
	r.mu.Lock()
	r.free = true
	for _, a := range r.actors {
		if a.ready {
			close(a.turn)
		}
	}
	r.mu.Unlock()
	r.s.Close()
	synctest.Wait()
	beforeLock = nil
}

// check is called when no actor can continue and time has passed.
func (r *scheduleRun) check(t *testing.T, trace []string) {
	s := r.s
	fail := func(format string, args ...any) {
		t.Errorf("%s\nschedule: %s\n%s", fmt.Sprintf(format, args...), strings.Join(trace, " "), r.state())
	}
	for _, a := range r.actors {
		if a.at < len(a.calls) && !a.ended && (a.calls[a.at].canEnd == nil || a.calls[a.at].canEnd()) {
			fail("%s sleeps in its call %d, although what it waits for has happened", a.name, a.at)
		}
	}
	if s.role.hasParked() && s.role.is(roleFree) {
		fail("goroutines are parked, and no goroutine polls")
	}
	if s.role.hasWoken() {
		fail("%d goroutines are woken and do not run", s.role.woken)
	}
}
