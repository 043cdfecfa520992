package tcp

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/soak"
)

// The simulation: two tables in virtual time, a network between them that loses, duplicates, damages,
// delays and reorders segments, and applications that make random calls. The invariants are checked
// after every step. At the end every byte has arrived once, and no memory is in use.

// pattern is byte i of what the host of that index sends.
func pattern(host int, i int) byte {
	x := uint32(i)*2654435761 + uint32(host)*977
	return byte(x>>24) ^ byte(i)
}

// app is the application of one host: it sends total bytes and reads until the end of the stream.
type app struct {
	h           *simHost
	c           *Conn
	total       int
	sent        int
	got         int
	expect      int
	eof         bool
	writeClosed bool
	closed      bool
	useClose    bool // it does not call CloseWrite: Close ends both directions, when all is read
	posted      []byte
	loans       []Loan
	lent        [][]byte
	err         error
}

// verify compares data that was read.
func (a *app) verify(p []byte) {
	for _, b := range p {
		if want := pattern(1-a.h.index, a.got); b != want {
			a.h.net.fatalf("host %d: byte %d is %#x, want %#x", a.h.index, a.got, b, want)
		}
		a.got++
	}
}

// nextBytes are the next n bytes to send.
func (a *app) nextBytes(n int) []byte { return patternBytes(a.h.index, a.sent, n) }

// randomCall makes a random call.
func (a *app) randomCall() {
	net, c := a.h.net, a.c
	if c == nil || a.closed || c.State() == SynSent {
		return
	}
	switch net.rand.IntN(10) {
	case 0, 1, 2, 3:
		if a.sent < a.total {
			p := a.nextBytes(min(a.total-a.sent, 1+net.rand.IntN([]int{1, 64, 1500, 20000}[net.rand.IntN(4)])))
			if net.rand.IntN(4) == 0 {
				ok, err := c.Lend(net.now, p)
				a.fail(err)
				if ok {
					a.sent += len(p)
					a.lent = append(a.lent, p)
				}
			} else {
				n, err := c.Write(net.now, p)
				a.fail(err)
				a.sent += n
			}
		} else if !a.writeClosed && (!a.useClose || a.eof) {
			a.writeClosed = true
			if err := c.CloseWrite(net.now); err != nil {
				a.fail(err)
			}
		}
	case 4:
		c.Flush(net.now)
	case 5:
		if a.posted == nil {
			p := make([]byte, 1+net.rand.IntN(5000))
			if c.Post(net.now, p) {
				a.posted = p
			}
		} else {
			n := c.Unpost(net.now)
			a.verify(a.posted[:n])
			a.posted = nil
		}
	case 6:
		if a.posted == nil {
			if l, ok := c.Borrow(net.now); ok {
				a.verify(l.Data)
				a.loans = append(a.loans, l)
			}
		}
	case 7:
		for len(a.loans) > 0 {
			a.h.tab.Return(&a.loans[0])
			a.loans = a.loans[1:]
		}
	default:
		if a.posted != nil {
			n := c.Unpost(net.now)
			a.verify(a.posted[:n])
			a.posted = nil
		}
		p := make([]byte, 1+net.rand.IntN(9000))
		n, err := c.Read(net.now, p)
		a.verify(p[:n])
		if err == io.EOF {
			a.eof = true
		} else {
			a.fail(err)
		}
	}
	if a.eof && a.writeClosed && len(a.loans) == 0 && a.posted == nil {
		c.Close(net.now)
		a.closed = true
	}
}

func (a *app) fail(err error) {
	if err != nil {
		a.err = err
		a.h.net.fatalf("host %d: %v", a.h.index, err)
	}
}

// runPair runs two applications with random calls until both have closed.
func runPair(net *network, o [2]Options, totals [2]int, simultaneous bool) {
	apps := [2]*app{}
	for i := range apps {
		o[i].UserTimeout = -1 // with much loss a segment may need more than five minutes
		apps[i] = &app{h: net.hosts[i], total: totals[i], expect: totals[1-i], useClose: net.rand.IntN(3) == 0}
	}
	apps[0].useClose = apps[0].useClose && !apps[1].useClose
	var listener *Listener
	if simultaneous {
		for i := range apps {
			var err error
			apps[i].c, err = net.hosts[i].tab.Dial(net.now, AddrPort{Addr: net.hosts[i].addr, Port: uint16(1000 + i)}, AddrPort{Addr: net.hosts[1-i].addr, Port: uint16(1001 - i)}, o[i])
			if err != nil {
				net.fatalf("%v", err)
			}
		}
	} else {
		listener = net.listen(o[1])
		apps[0].c = net.dial(o[0])
	}
	deadline := net.now.add(2 * time.Hour)
	for steps := 0; !apps[0].closed || !apps[1].closed; steps++ {
		if steps > 400000 || net.now > deadline {
			net.fatalf("not finished after two hours or 400000 steps: %d/%d and %d/%d bytes", apps[0].got, totals[1], apps[1].got, totals[0])
		}
		for range net.rand.IntN(3) {
			apps[net.rand.IntN(2)].randomCall()
			net.check()
		}
		if net.gaveUp() || net.orphanGaveUp(apps[0]) || net.orphanGaveUp(apps[1]) {
			for _, a := range apps {
				for i := range a.loans {
					a.h.tab.Return(&a.loans[i])
				}
			}
			net.abortAll(listener)
			return
		}
		if listener != nil && apps[1].c == nil {
			apps[1].c = listener.Accept()
		}
		if net.rulesChange && net.rand.IntN(1000) == 0 {
			net.impair(net.rand.IntN(2), simLinks[net.rand.IntN(len(simLinks))])
		}
		if net.rand.IntN(3) > 0 {
			net.step(net.now.add(time.Duration(1 + net.rand.IntN(1<<uint(net.rand.IntN(30))))))
		}
		if net.inFlight() == 0 && net.rand.IntN(20) == 0 {
			net.now = net.now.add(time.Duration(net.rand.IntN(int(time.Millisecond))))
			for _, h := range net.hosts {
				if h.tab.Deadline < net.now {
					h.tab.Expire(net.now)
				}
			}
		}
	}
	for i, a := range apps {
		if a.got != a.expect {
			net.fatalf("host %d: got %d bytes, want %d", i, a.got, a.expect)
		}
	}
	net.runToEnd(listener)
	for i, a := range apps {
		lent, returned := a.c.Lent()
		if lent != returned || int(lent) != len(a.lent) {
			net.fatalf("host %d: lent %d, %d returned", i, lent, returned)
		}
	}
}

// abortAll aborts all connections.
func (net *network) abortAll(l *Listener) {
	for _, h := range net.hosts {
		for _, c := range h.tab.conns {
			c.Abort()
		}
	}
	net.runToEnd(l)
}

// runToEnd runs until there is no segment and no timer, and checks that no connection, memory or
// frame is left.
func (net *network) runToEnd(l *Listener) {
	if l != nil {
		l.Close()
	}
	for n := 0; net.step(Never); n++ {
		if n > 100000 {
			net.fatalf("segments or timers are left after 100000 steps")
		}
	}
	for i, h := range net.hosts {
		for {
			if c, _ := h.tab.NextEvent(); c == nil {
				break
			}
		}
		if h.tab.Len() != 0 || h.tab.TimeWaits() != 0 || h.tab.MemoryInUse() != 0 || len(h.frames) != 0 || len(h.tab.timers) != 0 {
			net.fatalf("host %d: %d connections, %d in TIME-WAIT, %d bytes, %d frames, %d timers left",
				i, h.tab.Len(), h.tab.TimeWaits(), h.tab.MemoryInUse(), len(h.frames), len(h.tab.timers))
		}
	}
}

// simLinks are rules for one direction.
var simLinks = []linksim.Rule{
	{Delay: 20 * time.Microsecond},
	{Loss: 0.05, Duplicate: 0.02, Delay: 100 * time.Microsecond, Reorder: 1, HoldBack: 300 * time.Microsecond},
	{Loss: 0.2, Duplicate: 0.1, Delay: time.Millisecond, Reorder: 1, HoldBack: 5 * time.Millisecond},
	{Duplicate: 0.3, Delay: 10 * time.Microsecond, Reorder: 1, HoldBack: 50 * time.Microsecond},
	{Burst: linksim.Burst{Enter: 0.02, Leave: 0.5, Keep: 0.5}, Delay: time.Millisecond, Jitter: 3 * time.Millisecond},
	{Corrupt: 0.1, Duplicate: 0.05, Delay: 100 * time.Microsecond, Reorder: 0.05, HoldBack: time.Millisecond},
	{Rate: 10e6, Queue: 20_000, Delay: 5 * time.Millisecond},
	{Blackout: linksim.Blackout{After: 5 * time.Millisecond, Length: time.Second, Every: 3300 * time.Millisecond}, Delay: time.Millisecond}, // no multiple of which is a minute, the longest timeout
}

func TestSimulation(t *testing.T) {
	eachSeed(t, 250, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 77))
		cfg := [2]Config{}
		o := [2]Options{}
		for i := range cfg {
			cfg[i].NoTimestamps = r.IntN(4) == 0
			cfg[i].NoSACK = r.IntN(4) == 0
			cfg[i].NoWindowScale = r.IntN(4) == 0
			cfg[i].InPlace = []int{1, 512, 3000}[r.IntN(3)]
			o[i].MTU = []int{576, 1500, 9000}[r.IntN(3)]
			o[i].ReceiveBuffer = []int{2048, 10000, 65536, 0}[r.IntN(4)]
			o[i].SendBuffer = []int{2048, 30000, 1 << 20}[r.IntN(3)]
			o[i].Nagle = r.IntN(4) == 0
			o[i].AdaptiveAck = r.IntN(2) == 0
			if r.IntN(3) == 0 {
				o[i].Cork = -1
			}
		}
		net := newNetwork(t, seed, cfg)
		net.hosts[0].memory, net.hosts[1].memory = Memory(r.IntN(3)), Memory(r.IntN(3))
		net.hosts[0].paths, net.hosts[1].paths = seed%3 == 0, seed%4 == 0
		for i := range net.hosts {
			net.impair(i, simLinks[r.IntN(len(simLinks))])
		}
		net.rulesChange = r.IntN(4) == 0
		totals := [2]int{r.IntN(1 << uint(r.IntN(18))), r.IntN(1 << uint(r.IntN(18)))}
		runPair(net, o, totals, r.IntN(5) == 0)
	})
}

// blockingApp is an application as a stack runs it: it reads and writes until it would block, and then
// waits for an event. If an event is missing the simulation ends before the application is done.
type blockingApp struct {
	app
	connected    bool
	readWait     bool
	writeWait    bool
	lends, posts bool // it uses Lend instead of Write; it uses Post
	turnBytes    int  // the bytes of a request and of an answer, if the applications send in turns; else 0
}

// limit is how many bytes may have been sent by now.
func (a *blockingApp) limit() int {
	if a.turnBytes == 0 {
		return a.total
	}
	return min(a.total, a.got/a.turnBytes*a.turnBytes+(1-a.h.index)*a.turnBytes)
}

func (a *blockingApp) run() {
	net, c := a.h.net, a.c
	if c == nil || a.closed || !a.connected {
		return
	}
	for before := -1; before != a.sent+a.got && !a.closed; { // after a read it may be this side's turn
		before = a.sent + a.got
		a.write()
		a.read()
	}
	if a.eof && a.writeClosed {
		a.closed = true
		c.Close(net.now)
	}
}

func (a *blockingApp) write() {
	net, c := a.h.net, a.c
	for !a.writeWait && !a.writeClosed {
		if a.sent == a.total {
			if err := c.CloseWrite(net.now); err != nil {
				net.fatalf("host %d: %v", a.h.index, err)
			}
			a.writeClosed = true
			break
		}
		if a.sent >= a.limit() {
			break
		}
		p := a.nextBytes(min(a.limit()-a.sent, 1+net.rand.IntN([]int{64, 4000, 100000}[net.rand.IntN(3)])))
		if a.lends {
			ok, err := c.Lend(net.now, p)
			a.fail(err)
			if !ok {
				a.writeWait = true
				break
			}
			a.sent += len(p)
			continue
		}
		n, err := c.Write(net.now, p)
		a.fail(err)
		a.sent += n
		a.writeWait = n < len(p)
	}
}

func (a *blockingApp) read() {
	net, c := a.h.net, a.c
	for !a.readWait && !a.eof {
		if a.posted != nil {
			n := c.Unpost(net.now)
			a.verify(a.posted[:n])
			a.posted = nil
		}
		p := make([]byte, 1+net.rand.IntN(30000))
		n, err := c.Read(net.now, p)
		a.verify(p[:n])
		switch {
		case err == io.EOF:
			a.eof = true
		case err != nil:
			a.fail(err)
		case n == 0:
			a.readWait = true
			if a.posts && c.Post(net.now, p) {
				a.posted = p
			}
			c.Flush(net.now) // as a stack does before the goroutine waits
		}
	}
}

func TestWakeUps(t *testing.T) {
	eachSeed(t, 200, testWakeUps)
}

func testWakeUps(t *testing.T, seed uint64) {
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
	net := newNetwork(t, seed, [2]Config{})
	if r.IntN(2) == 0 {
		net.setLink(linkModel{loss: 0.03, dup: 0.02, delay: 50 * time.Microsecond, jitter: 100 * time.Microsecond})
	}
	apps := [2]*blockingApp{}
	for i := range apps {
		apps[i] = &blockingApp{app: app{h: net.hosts[i], total: r.IntN(1 << uint(r.IntN(20)))}, lends: r.IntN(3) == 0, posts: r.IntN(2) == 0}
	}
	runBlocking(net, apps, o)
}

// runBlocking runs two applications that wait for events until both have closed.
func runBlocking(net *network, apps [2]*blockingApp, o [2]Options) {
	l := net.listen(o[1])
	apps[0].c = net.dial(o[0])
	start := net.now
	for alive := true; alive; {
		alive = net.step(Never)
		if net.gaveUp() || net.orphanGaveUp(&apps[0].app) || net.orphanGaveUp(&apps[1].app) {
			net.abortAll(l)
			return
		}
		for i, h := range net.hosts {
			for c, e := h.tab.NextEvent(); c != nil; c, e = h.tab.NextEvent() {
				a := apps[i]
				if e&Acceptable != 0 {
					a.c, a.connected = l.Accept(), true
				}
				if c != a.c {
					net.fatalf("host %d: an event for another connection", i)
				}
				a.connected = a.connected || e&Connected != 0
				a.readWait = a.readWait && e&Readable == 0
				a.writeWait = a.writeWait && e&Writable == 0
				if e&Readable != 0 && !a.c.Readable() && !a.closed {
					net.fatalf("host %d: the event Readable, and there is nothing to read", i)
				}
			}
			if a := apps[i]; !a.closed {
				a.run()
				alive = true
				net.check()
			}
			if net.now > start.add(6*time.Hour) {
				net.fatalf("not finished after six hours")
			}
		}
		if !alive && (!apps[0].closed || !apps[1].closed) {
			net.fatalf("no segment and no timer is left, and the applications have not closed")
		}
		if net.inFlight() == 0 && net.hosts[0].tab.Ready == nil && net.hosts[1].tab.Ready == nil &&
			net.hosts[0].tab.Deadline == Never && net.hosts[1].tab.Deadline == Never && (!apps[0].closed || !apps[1].closed) {
			net.fatalf("an event is missing: %+v %+v", apps[0].app, apps[1].app)
		}
	}
	for i, a := range apps {
		if a.got != apps[1-i].total {
			net.fatalf("host %d: got %d of %d bytes", i, a.got, apps[1-i].total)
		}
	}
	net.runToEnd(l)
}

// eachSeed runs f for n seeds, or for those that the flags say. With the race detector it runs a tenth:
// these tests have one goroutine, in which there are no races.
func eachSeed(t *testing.T, n uint64, f func(t *testing.T, seed uint64)) {
	if underRace {
		n = max(n/10, 1)
	}
	soak.EachSeed(t, n, f)
}

// TestSoak is part of `make soak`.
func TestSoak(t *testing.T) {
	soak.Run(t, "./proto/tcp", "TestSimulation", "TestTransfers", "TestWakeUps")
}
