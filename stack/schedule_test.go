//go:build unetdebug

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

// A scheduler that tries all schedules of a few goroutines on a real stack. They
// run one at a time, from one taking of the lock to the next, and each choice of who is next
// is tried. A state is explored once: if two schedules lead to the same state, as far as
// waiting depends on it, the second is not continued.

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
	// there reports whether what it waits for is there. nil: the call always ends.
	there func() bool
}

// scene is one run.
type scene struct {
	s      *Stack
	actors []*actor
	events map[*event]string
	conns  []*TCPConn
	socks  []*UDPConn
	lists  []*TCPListener
	bufs   map[string][]byte // memory that readers may post
	ticks  int               // how often time may move on
	ticked int

	mu   sync.Mutex // of what follows and of actors, between goroutines that run at once
	byID map[string]*actor
	free bool // no more scheduling
}

const tick1 = 5 * time.Millisecond // how far time moves: past every deadline, and to the caretaker's next look

func (sc *scene) actor(name string, calls ...call) {
	sc.actors = append(sc.actors, &actor{name: name, calls: calls, turn: make(chan struct{})})
}

// self is the calling goroutine.
func self() string {
	var b [64]byte
	return strings.Fields(string(b[:runtime.Stack(b[:], false)]))[1]
}

// pause is called by an actor that is about to take the lock.
func (sc *scene) pause() {
	var pcs [24]uintptr
	n := runtime.Callers(3, pcs[:])
	id := self()
	sc.mu.Lock()
	if sc.free {
		sc.mu.Unlock()
		return
	}
	a := sc.byID[id]
	if a == nil { // the stack's own
		a = &actor{name: "caretaker", turn: make(chan struct{})}
		sc.byID[id] = a
		sc.actors = append(sc.actors, a)
	}
	a.where = 14695981039346656037
	for _, pc := range pcs[:n] {
		a.where = (a.where ^ uint64(pc)) * 1099511628211
	}
	a.ready = true
	sc.mu.Unlock()
	<-a.turn
}

func (sc *scene) run(a *actor) {
	id := self()
	sc.mu.Lock()
	sc.byID[id] = a
	sc.mu.Unlock()
	for a.at = 0; a.at < len(a.calls); a.at++ {
		sc.pause()
		a.calls[a.at].do()
	}
	a.ended = true
}

// state is all that the rest of a run depends on, as text.
func (sc *scene) state() string {
	s := sc.s
	var b strings.Builder
	owner := map[*waiter]string{}
	for _, a := range sc.actors {
		fmt.Fprintf(&b, "%s %d %v %v %x %d;", a.name, a.at, a.ready, a.ended, a.where, a.seen)
		if a.waiting != nil {
			owner[a.waiting] = a.name
		}
	}
	fmt.Fprintf(&b, "|%d %d %v %v %d %d %v|", s.role, s.away, s.caretakerIdle, s.closed, s.pollerSeq, sc.ticked, s.link.Pending())
	fmt.Fprintf(&b, "%s %s %d|", sc.events[s.pollerEvent], owner[s.offered], min(s.earliestWaiter, never))
	for w := s.parked.head; w != nil; w = w.links[onStack].next {
		fmt.Fprintf(&b, "%s:%s ", owner[w], sc.events[w.event])
	}
	for _, c := range sc.conns {
		v := reflect.ValueOf(c.conn).Elem()
		post := v.FieldByName("post")
		posted := ""
		for name, buf := range sc.bufs {
			if post.Len() > 0 && post.Pointer() == reflect.ValueOf(buf).Pointer() {
				posted = name
			}
		}
		fmt.Fprintf(&b, "|%s %v %d %d %d %v %v %v %v", posted, v.FieldByName("wantsRead"), v.FieldByName("posted").Int(), c.conn.Buffered(), c.conn.Room(),
			c.conn.State(), v.FieldByName("wantsWrite"), c.writing, c.closed)
		fmt.Fprintf(&b, " %d %d %d %d", c.readable.seq, c.writable.seq, c.turn.seq, c.readers)
	}
	for _, u := range sc.socks {
		fmt.Fprintf(&b, "|%d %d %v", u.udp.Len(), u.readable.seq, u.closed)
	}
	for _, l := range sc.lists {
		fmt.Fprintf(&b, "|%d %d %v", l.listener.Len(), l.acceptable.seq, l.closed)
	}
	return b.String()
}

// noteParked finds the actor that has just parked: the only one that ran.
func (sc *scene) noteParked(ran *actor) {
	parked := map[*waiter]bool{}
	for w := sc.s.parked.head; w != nil; w = w.links[onStack].next {
		parked[w] = true
	}
	for _, a := range sc.actors {
		if a.waiting != nil {
			if !parked[a.waiting] && a.waiting != sc.s.offered {
				a.waiting = nil
			}
			delete(parked, a.waiting)
		}
	}
	for w := range parked {
		ran.waiting, ran.seen = w, w.event.seq
	}
}

// search tries all schedules of scenes.
type search struct {
	t     *testing.T
	build func(*scene)
	seen  map[string]bool
	todo  [][]int // beginnings of schedules to be tried
	runs  int

	strayed int // replays that differed: of two timers that expire at once, either may be first
}

func trySchedules(t *testing.T, build func(*scene)) {
	x := &search{t: t, build: build, seen: map[string]bool{}, todo: [][]int{nil}}
	for len(x.todo) > 0 && !t.Failed() {
		next := x.todo[len(x.todo)-1]
		x.todo = x.todo[:len(x.todo)-1]
		x.runs++
		synctest.Test(t, func(t *testing.T) { x.try(t, next) })
	}
	t.Logf("%d states, %d runs, %d strayed", len(x.seen), x.runs, x.strayed)
}

// try runs one schedule and goes on with the first choice each time, until it comes to a
// state that has been seen.
func (x *search) try(t *testing.T, schedule []int) {
	sc := &scene{byID: map[string]*actor{}, events: map[*event]string{nil: "-"}, bufs: map[string][]byte{}, free: true}
	beforeLock = sc.pause
	x.build(sc)
	sc.events[&sc.s.recall] = "recall"
	sc.events[&sc.s.drained] = "drained"
	for i, c := range sc.conns {
		for name, e := range map[string]*event{"readable": &c.readable, "writable": &c.writable, "turn": &c.turn, "reclaimed": &c.reclaimed} {
			sc.events[e] = fmt.Sprint(name, i)
		}
	}
	for i, u := range sc.socks {
		sc.events[&u.readable] = fmt.Sprint("datagrams", i)
	}
	for i, l := range sc.lists {
		sc.events[&l.acceptable] = fmt.Sprint("acceptable", i)
	}
	synctest.Wait()
	sc.free = false
	for _, a := range sc.actors {
		go sc.run(a)
	}
	var trace []string
	path := schedule
	for step := 0; ; step++ {
		synctest.Wait()
		var choices []*actor
		for _, a := range sc.actors {
			if a.ready {
				choices = append(choices, a)
			}
		}
		if len(choices) == 0 && sc.ticked == sc.ticks {
			if step >= len(schedule) {
				sc.check(t, trace)
			}
			break
		}
		if sc.ticked < sc.ticks {
			choices = append(choices, nil)
		}
		k := 0
		if step < len(schedule) {
			if k = schedule[step]; k >= len(choices) {
				x.strayed++
				break
			}
		} else {
			state := sc.state()
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
			sc.noteParked(a)
		} else {
			trace = append(trace, "time")
			sc.ticked++
			time.Sleep(tick1)
		}
	}
	// Let all goroutines run freely.
	sc.mu.Lock()
	sc.free = true
	for _, a := range sc.actors {
		if a.ready {
			close(a.turn)
		}
	}
	sc.mu.Unlock()
	sc.s.Close()
	synctest.Wait()
	beforeLock = nil
}

// check is called when no actor can continue and time has passed.
func (sc *scene) check(t *testing.T, trace []string) {
	s := sc.s
	fail := func(format string, args ...any) {
		t.Errorf("%s\nschedule: %s\n%s", fmt.Sprintf(format, args...), strings.Join(trace, " "), sc.state())
	}
	for _, a := range sc.actors {
		if a.at < len(a.calls) && !a.ended && (a.calls[a.at].there == nil || a.calls[a.at].there()) {
			fail("%s sleeps in its call %d, although what it waits for is there", a.name, a.at)
		}
	}
	if s.parked.head != nil && s.role == roleFree {
		fail("goroutines sleep, and nobody polls")
	}
	if s.offered != nil {
		fail("the role was offered to a goroutine that does not take it")
	}
}
