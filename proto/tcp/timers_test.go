package tcp

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The heap against a search through all connections, with timers that move both
// ways, stop and end.
func TestTimerHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var h timerHeap
	conns := make([]*Conn, 50)
	for i := range conns {
		conns[i] = &Conn{rtxAt: Never, ackAt: Never, corkAt: Never, keepAt: Never, waitAt: Never, paceAt: Never, queuedAt: Never}
	}
	earliest := func() Time {
		at := Never
		for _, c := range conns {
			at = min(at, c.queuedAt)
		}
		return at
	}
	for range 20000 {
		c := conns[r.IntN(len(conns))]
		switch r.IntN(4) {
		case 0:
			h.stop(c)
			c.rtxAt, c.ackAt = Never, Never
		case 1:
			c.rtxAt = Time(r.IntN(1000))
			h.schedule(c)
		case 2:
			c.ackAt = Time(r.IntN(1000))
			h.schedule(c)
		case 3: // as Expire does with the first
			if len(h) > 0 {
				c = h[0].conn
				c.rtxAt, c.ackAt = Time(r.IntN(1000)), Never
				c.queuedAt = c.earliestTimer()
				h.move(int(c.slot), timerEntry{c.queuedAt, c})
			}
		}
		n := 0
		for _, c := range conns {
			if c.queuedAt > c.earliestTimer() || (c.slot != 0) != (c.queuedAt != Never) {
				t.Fatalf("in place %d for %d, timers at %d and %d", c.slot, c.queuedAt, c.rtxAt, c.ackAt)
			}
			if c.slot != 0 {
				n++
				if e := h[c.slot-1]; e.conn != c || e.at != c.queuedAt {
					t.Fatal("not where it thinks it is")
				}
			}
		}
		if n != len(h) || n > 0 && h[0].at != earliest() {
			t.Fatalf("%d entries for %d connections, the first at %d and not %d", len(h), n, h[0].at, earliest())
		}
	}
}

// A thousand connections with timers of all kinds: none is late.
func TestManyTimers(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	l := p.tabs[1].listeners[80]
	r := rand.New(rand.NewPCG(8, 9))
	for range 1000 {
		p.now += 1000
		p.dial(t, l, Options{KeepAlive: KeepAlive{Enable: true, Idle: time.Duration(1+r.IntN(10)) * time.Second}})
		if r.IntN(2) == 0 {
			p.conns[0].Write(p.now, make([]byte, 10))
		}
	}
	tab := p.tabs[0]
	for i := 0; i < 20000 && tab.NextDeadline() != Never; i++ {
		for c := tab.NextReady(); c != nil; c = tab.NextReady() {
			c.Emit(p.now, p.buf) // nobody answers
		}
		p.now = max(p.now, tab.NextDeadline())
		tab.Expire(p.now)
		if at := tab.NextDeadline(); at <= p.now {
			t.Fatalf("due at %d, and it is %d", at, p.now)
		}
		if i%100 == 0 {
			for _, c := range tab.conns {
				if c.earliestTimer() <= p.now {
					t.Fatal("a timer is late")
				}
			}
		}
	}
	if tab.Len() != 1 { // the first, which is idle and asks nobody
		t.Errorf("%d connections have not noticed that nobody is there", tab.Len())
	}
}
