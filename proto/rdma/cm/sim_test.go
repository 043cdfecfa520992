package cm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unet-go/unet/wire"
)

// simulation is two hosts whose applications dial, accept, reject and close at random, joined by a
// network that loses, duplicates, delays and so reorders.
type simulation struct {
	t       testing.TB
	rnd     *rand.Rand
	now     Time
	engines [2]*Engine
	wire    []delayedMAD
	loss    float64
	dup     float64
	slow    Time
	nextQPN uint32
	ends    map[*Conn]*end
}

type delayedMAD struct {
	at Time
	d  datagram
}

// end is the state of a connection in the application of one side.
type end struct {
	param       Param
	active      bool
	established bool // RTU sent or received
	closed      bool // by this side
	last        *EventType
}

func newSimulation(t testing.TB, seed uint64) *simulation {
	w := &simulation{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), now: 1, nextQPN: 2, ends: map[*Conn]*end{}}
	w.loss, w.dup, w.slow = w.rnd.Float64()*0.4, w.rnd.Float64()*0.3, Time(w.rnd.Int64N(int64(20*second)))
	for i, addr := range [][4]byte{client, server} {
		w.engines[i] = newEngine(addr, seed, nil)
		if _, err := w.engines[i].Listen(1, 4); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *simulation) param() Param {
	w.nextQPN++
	return Param{QPN: w.nextQPN, PSN: w.rnd.Uint32N(1 << 24), ResponderResources: uint8(w.rnd.UintN(256)), InitiatorDepth: uint8(w.rnd.UintN(256)),
		RetryCount: uint8(w.rnd.UintN(8)), RNRRetryCount: uint8(w.rnd.UintN(8)), SRQ: w.rnd.UintN(2) == 0,
		Private: fmt.Appendf(nil, "%d", w.nextQPN)}
}

func (w *simulation) send() {
	for _, e := range w.engines {
		for _, d := range emitted(e) {
			for n := 1; n > 0; n-- {
				if w.rnd.Float64() < w.dup {
					n++
				}
				if w.rnd.Float64() >= w.loss {
					w.wire = append(w.wire, delayedMAD{w.now + 1 + Time(w.rnd.Int64N(int64(w.slow))), d})
				}
			}
		}
	}
}

// step goes to the next instant at which something happens. It returns false if there is none.
func (w *simulation) step() bool {
	next := min(w.engines[0].Deadline(), w.engines[1].Deadline())
	for _, f := range w.wire {
		next = min(next, f.at)
	}
	if next == Never {
		return false
	}
	w.now = max(w.now, next)
	var due []datagram
	w.wire = slices.DeleteFunc(w.wire, func(f delayedMAD) bool {
		if f.at <= w.now {
			due = append(due, f.d)
		}
		return f.at <= w.now
	})
	for _, d := range due {
		e := w.engines[0]
		if d.to == server {
			e = w.engines[1]
		}
		e.Input(w.now, d.from, d.mad[:])
	}
	for _, e := range w.engines {
		if w.rnd.UintN(4) > 0 { // a driver that is late reads several events at once
			e.Expire(w.now)
		}
		if e.Deadline() <= w.now {
			e.Expire(w.now)
		}
		w.handle(e)
	}
	w.send()
	return true
}

func (w *simulation) handle(e *Engine) {
	for _, ev := range events(e) {
		c := ev.Conn
		a := w.ends[c]
		if a == nil {
			if ev.Type != ConnectRequest {
				w.t.Fatalf("first event %v", ev.Type)
			}
			a = &end{}
			w.ends[c] = a
		}
		if a.last != nil && *a.last >= Rejected {
			w.t.Fatalf("event %v after %v", ev.Type, *a.last)
		}
		a.last = &ev.Type
		switch ev.Type {
		case ConnectRequest:
			w.answer(c, a)
		case ConnectResponse:
			if a.closed || !a.active {
				w.t.Fatalf("connect response, closed %v, active %v", a.closed, a.active)
			}
			if c.State() != RepReceived {
				continue // it has ended since; the event follows
			}
			if w.rnd.UintN(8) == 0 {
				c.Reject(nil)
				a.closed = true
			} else {
				if err := c.Establish(); err != nil {
					w.t.Fatal(err)
				}
				a.established = true
			}
		case Established:
			if a.active {
				w.t.Fatal("an event Established at the active side")
			}
			a.established = true
		case Rejected:
			var r *RejectError
			if !errors.As(c.Err(), &r) {
				w.t.Fatalf("rejected: %v", c.Err())
			}
		case Unreachable:
			if c.Err() != ErrTimeout {
				w.t.Fatalf("unreachable: %v", c.Err())
			}
		}
		if ev.Type >= Rejected && c.State() != Closed {
			w.t.Fatalf("%v in %v", ev.Type, c.State())
		}
	}
}

func (w *simulation) answer(c *Conn, a *end) {
	switch w.rnd.UintN(8) {
	case 0:
		if c.Reject([]byte("no")) == nil {
			a.closed = true
		}
	case 1: // never answered
	default:
		a.param = w.param()
		if err := c.Accept(w.now, a.param); err != nil && !errors.Is(err, ErrState) {
			w.t.Fatal(err)
		}
	}
}

// TestSimulation: each connection ends; both sides that established one agree on it; nothing is
// left in the engines.
func TestSimulation(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	both := 0
	for seed := range seeds {
		w := newSimulation(t, seed)
		for range 12 {
			from := w.rnd.IntN(2)
			p := w.param()
			c, err := w.engines[from].Dial(w.now, wire.AddrPort4{Addr: w.engines[1-from].cfg.Addr, Port: 1}, p)
			if err != nil {
				t.Fatal(err)
			}
			w.ends[c] = &end{param: p, active: true}
			w.send()
			for range w.rnd.IntN(12) {
				w.step()
			}
			w.closeSome(0.1)
		}
		for range 200 {
			w.step()
		}
		both += w.check()
		for steps := 0; ; steps++ {
			if steps > 100_000 {
				t.Fatalf("seed %d: no end", seed)
			}
			w.closeSome(1)
			if !w.step() {
				break
			}
		}
		for _, e := range w.engines {
			(&pair{t: t}).wantEmpty(e)
		}
		for c, a := range w.ends {
			if a.last == nil && !a.closed || a.last != nil && *a.last < Rejected && !a.closed {
				t.Errorf("seed %d: no end of a connection: active %v, %v", seed, a.active, c.State())
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if both < int(seeds) {
		t.Errorf("only %d connections were established", both)
	}
}

// closeSome closes connections of the applications with a probability.
func (w *simulation) closeSome(probability float64) {
	for _, e := range w.engines {
		for _, id := range sortedIDs(e) {
			c := e.conns[id]
			if a := w.ends[c]; a != nil && w.rnd.Float64() < probability {
				a.closed = true
				c.Close(w.now)
			}
		}
	}
	w.send()
}

func sortedIDs(e *Engine) (ids []uint32) {
	for id := range e.conns {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// check compares both sides of the connections that are established and returns their number.
func (w *simulation) check() (n int) {
	for _, c := range w.engines[0].conns {
		o := w.engines[1].conns[c.remote]
		if o == nil || o.remote != c.local || c.State() != StateEstablished || o.State() != StateEstablished {
			continue
		}
		n++
		a, b := w.ends[c], w.ends[o]
		if a.active == b.active {
			w.t.Errorf("both sides active: %v", a.active)
		}
		for _, s := range []struct {
			mine, peers *end
			c           *Conn
		}{{a, b, c}, {b, a, o}} {
			got, want := s.c.Attr(), Attr{
				DestQPN: s.peers.param.QPN, RQPSN: s.mine.param.PSN, SQPSN: s.peers.param.PSN, PathMTU: 3,
				MaxDestRdAtomic: min(s.mine.param.ResponderResources, s.peers.param.InitiatorDepth),
				MaxRdAtomic:     min(s.mine.param.InitiatorDepth, s.peers.param.ResponderResources),
				Timeout:         17, RNRRetry: s.peers.param.RNRRetryCount, PeerSRQ: s.peers.param.SRQ,
			}
			want.RetryCount = a.param.RetryCount
			if b.active {
				want.RetryCount = b.param.RetryCount
			}
			if got != want {
				w.t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if private := string(s.peers.param.Private); string(s.c.Private()[:len(private)+1]) != private+"\x00" {
				w.t.Errorf("private data %q, want %q", s.c.Private(), private)
			}
		}
	}
	return n
}
