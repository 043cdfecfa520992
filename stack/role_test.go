package stack

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// wakeLink is a link that counts the calls of Wake.
type wakeLink struct {
	Link
	wakes int
}

func (l *wakeLink) Wake() { l.wakes++ }

// roleTest is a poll role, and goroutines that are parked.
type roleTest struct {
	*testing.T
	pollRole
	mu   stackMutex
	link wakeLink
	ran  []string // goroutines that have been woken
}

// testRole calls f with a role in a bubble of its own. All parked goroutines must be woken in the end.
func testRole(t *testing.T, f func(r *roleTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &roleTest{T: t}
		r.init(&r.link)
		f(r)
	})
}

// park parks a goroutine and returns when it sleeps.
func (r *roleTest) park(name string, e *event, deadline instant) {
	go func() {
		r.mu.Lock()
		r.pollRole.park(&r.mu, e, deadline)
		r.ran = append(r.ran, name)
		r.mu.Unlock()
	}()
	synctest.Wait()
}

// want calls f with the lock held and checks which goroutines are woken.
func (r *roleTest) want(what string, f func(), names ...string) {
	r.Helper()
	r.ran = nil
	r.mu.Lock()
	f()
	woken := r.hasWoken()
	r.mu.Unlock()
	synctest.Wait()
	slices.Sort(r.ran)
	if !slices.Equal(r.ran, names) || woken != (len(names) > 0) || r.hasWoken() {
		r.Errorf("%s: woken %v, want %v; hasWoken %v, then %v", what, r.ran, names, woken, r.hasWoken())
	}
}

// A signal goes to the holder of the role first. The next one wakes the goroutine that has waited
// longest.
func TestRoleSignal(t *testing.T) {
	testRole(t, func(r *roleTest) {
		var e, other event
		r.take(roleApplication, &e, e.seq)
		r.park("a", &e, never)
		r.park("b", &e, never)
		r.want("another event", func() { r.signal(&other) })
		r.want("the first signal", func() { r.signal(&e) })
		r.want("the second signal", func() { r.signal(&e) }, "a")
		r.want("without a holder", func() { r.giveUp(); r.signal(&e) }, "b")
		r.want("nobody waits", func() { r.signal(&e) })
		if e.seq != 4 || other.seq != 1 {
			t.Errorf("%d and %d signals", e.seq, other.seq)
		}
	})
}

func TestRoleBroadcast(t *testing.T) {
	testRole(t, func(r *roleTest) {
		var e, other event
		r.take(roleApplication, &e, e.seq)
		r.park("a", &e, never)
		r.park("other", &other, never)
		r.park("b", &e, never)
		r.goAway(sleeping)
		r.want("broadcast", func() { r.broadcast(&e) }, "a", "b")
		if r.link.wakes != 1 {
			t.Errorf("%d wakes of the holder", r.link.wakes)
		}
		r.want("the other event", func() { r.broadcast(&other) }, "other")
		if r.link.wakes != 1 {
			t.Error("the holder was woken for another event")
		}
	})
}

// The holder is called back from where it is without the lock.
func TestRoleCallsTheHolderBack(t *testing.T) {
	var e event
	for _, c := range []struct {
		name string
		call func(r *roleTest)
	}{
		{"poke", func(r *roleTest) { r.poke() }},
		{"signal", func(r *roleTest) { r.signal(&e) }},
		{"broadcast", func(r *roleTest) { r.broadcast(&e) }},
	} {
		testRole(t, func(r *roleTest) {
			r.want(c.name+": not away", func() { r.take(roleApplication, &e, e.seq); c.call(r) })
			if r.wanted() || r.link.wakes != 0 {
				t.Errorf("%s: called back with the lock", c.name)
			}
			r.take(roleApplication, &e, e.seq)
			r.want(c.name+": spinning", func() { r.goAway(spinning); c.call(r) })
			if !r.wanted() || r.link.wakes != 0 {
				t.Errorf("%s: spinning: wanted %v, %d wakes", c.name, r.wanted(), r.link.wakes)
			}
			if r.comeBack(); r.wanted() {
				t.Errorf("%s: wanted after it has come back", c.name)
			}
			r.take(roleApplication, &e, e.seq)
			r.want(c.name+": sleeping", func() { r.goAway(sleeping); c.call(r) })
			if r.wanted() || r.link.wakes != 1 || !r.sleeps() {
				t.Errorf("%s: sleeping: wanted %v, %d wakes", c.name, r.wanted(), r.link.wakes)
			}
			if r.comeBack(); r.sleeps() {
				t.Errorf("%s: sleeps after it has come back", c.name)
			}
		})
	}
}

// pass wakes one goroutine, unless somebody has the role or has been woken.
func TestRolePass(t *testing.T) {
	testRole(t, func(r *roleTest) {
		var e, other event
		r.want("nobody is parked", r.pass)
		r.park("a", &e, never)
		r.park("b", &other, never)
		r.take(roleApplication, new(event), 0)
		r.want("the role is held", r.pass)
		r.giveUp()
		r.want("pass twice", func() { r.pass(); r.pass() }, "a")
		r.want("after a signal", func() { r.signal(&other); r.pass() }, "b")
		if r.hasParked() || e.seq != 0 || other.seq != 1 {
			t.Errorf("parked %v, %d and %d signals", r.hasParked(), e.seq, other.seq)
		}
	})
}

// The holder sees to the deadlines of those that are parked, and is called back for an earlier one.
func TestRoleDeadlines(t *testing.T) {
	testRole(t, func(r *roleTest) {
		var e event
		r.take(roleApplication, new(event), 0)
		r.goAway(sleeping)
		wakes := 0
		for _, at := range []instant{never, 3, 1, 2} {
			if at < r.deadline() {
				wakes++
			}
			name := "never"
			if at != never {
				name = string('0' + rune(at))
			}
			if r.park(name, &e, at); r.link.wakes != wakes {
				t.Errorf("%d wakes of the holder after deadline %s, want %d", r.link.wakes, name, wakes)
			}
		}
		for _, c := range []struct {
			now   instant
			woken []string
			next  instant
		}{{0, nil, 1}, {1, []string{"1"}, 2}, {1, nil, 2}, {2, []string{"2"}, 3}, {never - 1, []string{"3"}, never}} {
			r.want("deadlines", func() { r.wakeExpired(c.now) }, c.woken...)
			if r.deadline() != c.next {
				t.Errorf("at %d the next deadline is %d, want %d", c.now, r.deadline(), c.next)
			}
		}
		r.want("the rest", func() { r.signal(&e) }, "never")
	})
}

// Whether a goroutine of the application polls or is about to.
func TestRoleIsServed(t *testing.T) {
	testRole(t, func(r *roleTest) {
		var e event
		check := func(what string, want bool) {
			t.Helper()
			if r.isServed() != want {
				t.Errorf("%s: served %v", what, !want)
			}
		}
		check("free", false)
		r.take(roleCaretaker, r.recalled(), r.recalled().seq)
		check("the caretaker polls", false)
		r.giveUp()
		r.take(roleApplication, &e, e.seq)
		check("the application polls", true)
		r.giveUp()
		r.park("a", &e, never)
		check("parked", true)
		r.want("signal", func() { r.signal(&e); check("woken", true) }, "a")
		check("nobody waits any more", false)
	})
}

// The caretaker is told to give the role up, and learns whether somebody has polled.
func TestRoleCaretaker(t *testing.T) {
	testRole(t, func(r *roleTest) {
		recalled := r.recalled()
		var e event
		moves := r.moves()
		step := func(what string, moved bool, recalls uint32) {
			t.Helper()
			if (r.moves() != moves) != moved || recalled.seq != recalls {
				t.Errorf("%s: moved %v, %d recalls", what, r.moves() != moves, recalled.seq)
			}
			moves = r.moves()
		}
		r.take(roleApplication, &e, e.seq)
		step("the application takes the role", true, 0)
		r.visit()
		step("a visit to the application", true, 0)
		r.giveUp()
		step("the application gives the role up", true, 0)
		r.visit()
		step("a visit to a free role", true, 0)
		r.take(roleCaretaker, recalled, recalled.seq)
		step("the caretaker takes the role", true, 0)
		if !r.waitsFor(recalled) || r.waitsFor(&e) {
			t.Error("the caretaker does not wait for its recall")
		}
		r.goAway(sleeping)
		r.visit()
		step("a visit to the caretaker", true, 1)
		if r.link.wakes != 1 {
			t.Errorf("%d wakes of the caretaker", r.link.wakes)
		}
		r.comeBack()
		r.giveUp()
		step("the caretaker gives the role up", true, 1)
		if r.waitsFor(recalled) {
			t.Error("nobody holds the role and waits")
		}
	})
}

// A caretaker that sleeps while the application does is woken when the role is free, or at the end. A wake that
// comes while it does not sleep ends its next pause.
func TestRoleIdleCaretaker(t *testing.T) {
	testRole(t, func(r *roleTest) {
		idle := func() *bool {
			ended := new(bool)
			go func() {
				r.mu.Lock()
				r.letIdle(&r.mu)
				*ended = true
				r.mu.Unlock()
			}()
			synctest.Wait()
			return ended
		}
		for what, f := range map[string]func(){"wakeIdle": r.wakeIdle, "dismiss": r.dismiss} {
			ended := idle()
			if *ended {
				t.Fatalf("%s: it does not sleep", what)
			}
			r.mu.Lock()
			f()
			r.mu.Unlock()
			if synctest.Wait(); !*ended {
				t.Fatalf("%s: it sleeps", what)
			}
			if r.wakeIdle(); len(r.woke()) != 0 {
				t.Errorf("%s: woken although it does not sleep", what)
			}
		}
		r.dismiss()
		r.dismiss() // does not block
		select {
		case <-r.woke():
		case <-time.After(time.Second):
			t.Error("its pause does not end")
		}
	})
}

func TestRoleWakesNobodyTwice(t *testing.T) {
	testRole(t, func(r *roleTest) {
		var e event
		r.park("a", &e, never)
		w := r.parked.head
		r.want("signal", func() { r.signal(&e) }, "a")
		defer func() {
			if recover() == nil {
				t.Error("a goroutine that is not parked was woken")
			}
		}()
		r.unpark(w)
	})
}

// To park does not allocate, except the first time that as many are parked.
func TestRoleReusesWaiters(t *testing.T) {
	testRole(t, func(r *roleTest) {
		var e event
		seen := map[*waiter]bool{}
		for range 10 {
			r.park("a", &e, never)
			r.park("b", &e, 7)
			for w := r.parked.head; w != nil; w = w.links[onRole].next {
				seen[w] = true
			}
			r.want("broadcast", func() { r.broadcast(&e) }, "a", "b")
		}
		if len(seen) != 2 {
			t.Errorf("%d waiters for two goroutines", len(seen))
		}
	})
}
