package tcp

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

// blockingApp is an application as a stack runs it: it goes on until it would
// block and then does nothing until an event says so. A wake-up that is missing
// ends the simulation with work undone.
type blockingApp struct {
	app
	connected        bool
	readWait         bool
	writeWait        bool
	lendMode, poster bool
	turn             int // at most so far may what is sent be ahead of what was received; 0: as far as it wants
}

// limit is how much may have been sent by now.
func (a *blockingApp) limit() int {
	if a.turn == 0 {
		return a.total
	}
	return min(a.total, a.got/a.turn*a.turn+(1-a.h.index)*a.turn)
}

func (a *blockingApp) run() {
	w, c := a.h.w, a.c
	if c == nil || a.closed || !a.connected {
		return
	}
	for moved := -1; moved != a.sent+a.got && !a.closed; { // what was read may be an answer's turn
		moved = a.sent + a.got
		a.write()
		a.read()
	}
	if a.eof && a.shut {
		a.closed = true
		c.Close(w.now)
	}
}

func (a *blockingApp) write() {
	w, c := a.h.w, a.c
	for !a.writeWait && !a.shut {
		if a.sent == a.total {
			if err := c.CloseWrite(w.now); err != nil {
				w.fatalf("host %d: %v", a.h.index, err)
			}
			a.shut = true
			break
		}
		if a.sent >= a.limit() {
			break
		}
		p := a.make(min(a.limit()-a.sent, 1+w.rand.IntN([]int{64, 4000, 100000}[w.rand.IntN(3)])))
		if a.lendMode {
			ok, err := c.Lend(w.now, p)
			a.fail(err)
			if !ok {
				a.writeWait = true
				break
			}
			a.sent += len(p)
			continue
		}
		n, err := c.Write(w.now, p)
		a.fail(err)
		a.sent += n
		a.writeWait = n < len(p)
	}
}

func (a *blockingApp) read() {
	w, c := a.h.w, a.c
	for !a.readWait && !a.eof {
		if a.posted != nil {
			n := c.Unpost(w.now)
			a.verify(a.posted[:n])
			a.posted = nil
		}
		p := make([]byte, 1+w.rand.IntN(30000))
		n, err := c.Read(w.now, p)
		a.verify(p[:n])
		switch {
		case err == io.EOF:
			a.eof = true
		case err != nil:
			a.fail(err)
		case n == 0:
			a.readWait = true
			if a.poster && c.Post(p) {
				a.posted = p
			}
			c.Flush(w.now) // the goroutine waits
		}
	}
}

func TestWakeUps(t *testing.T) {
	eachSeed(t, 200, wakeUps)
}

func wakeUps(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 78))
	o := [2]Options{}
	for i := range o {
		o[i] = Options{
			MTU:           []int{576, 1500, 9000}[r.IntN(3)],
			ReceiveBuffer: []int{2048, 10000, 65536, 0}[r.IntN(4)],
			SendBuffer:    []int{2048, 30000, 1 << 20}[r.IntN(3)],
			Nagle:         r.IntN(4) == 0,
			AdaptiveAck:   r.IntN(2) == 0,
		}
	}
	w := newWorld(t, seed, [2]Config{})
	if r.IntN(2) == 0 {
		w.link = linkModel{loss: 0.03, dup: 0.02, delay: 50 * time.Microsecond, jitter: 100 * time.Microsecond}
	}
	apps := [2]*blockingApp{}
	for i := range apps {
		apps[i] = &blockingApp{app: app{h: w.hosts[i], total: r.IntN(1 << uint(r.IntN(20)))}, lendMode: r.IntN(3) == 0, poster: r.IntN(2) == 0}
	}
	runBlocking(w, apps, o)
}

// runBlocking lets two applications that sleep talk until both are done.
func runBlocking(w *world, apps [2]*blockingApp, o [2]Options) {
	l, err := w.hosts[1].tab.Listen(AddrPort{Port: 80}, ListenOptions{Options: o[1]})
	if err != nil {
		w.fatalf("%v", err)
	}
	if apps[0].c, err = w.hosts[0].tab.Dial(w.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, o[0]); err != nil {
		w.fatalf("%v", err)
	}
	start := w.now
	for alive := true; alive; {
		alive = w.step(Never)
		if w.gaveUp() || w.orphanGaveUp(&apps[0].app) || w.orphanGaveUp(&apps[1].app) {
			w.abandon(l)
			return
		}
		for i, h := range w.hosts {
			for h.tab.NextListener() != nil {
				apps[i].c = l.Accept()
				apps[i].connected = true
			}
			for c, e := h.tab.NextEvent(); c != nil; c, e = h.tab.NextEvent() {
				a := apps[i]
				if c != a.c {
					w.fatalf("host %d: an event for another connection", i)
				}
				a.connected = a.connected || e&Connected != 0
				a.readWait = a.readWait && e&Readable == 0
				a.writeWait = a.writeWait && e&Writable == 0
				if e&Readable != 0 && !a.c.Readable() && !a.closed {
					w.fatalf("host %d: woken for nothing", i)
				}
			}
			if a := apps[i]; !a.closed {
				a.run()
				alive = true
				w.check()
			}
			if w.now > start.add(6*time.Hour) {
				w.fatalf("stuck")
			}
		}
		if !alive && (!apps[0].closed || !apps[1].closed) {
			w.fatalf("nobody has anything to do, and it is not done")
		}
		if w.underWay() == 0 && w.hosts[0].tab.NextReady() == nil && w.hosts[1].tab.NextReady() == nil &&
			w.hosts[0].tab.NextDeadline() == Never && w.hosts[1].tab.NextDeadline() == Never && (!apps[0].closed || !apps[1].closed) {
			w.fatalf("a wake-up is missing: %+v %+v", apps[0].app, apps[1].app)
		}
	}
	for i, a := range apps {
		if a.got != apps[1-i].total {
			w.fatalf("host %d: got %d of %d bytes", i, a.got, apps[1-i].total)
		}
	}
	w.quiesce(l)
}
