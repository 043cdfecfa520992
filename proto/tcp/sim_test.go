package tcp

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/soak"
)

// The simulation: two tables in virtual time, a network between them that loses,
// duplicates, damages, delays and reorders, and applications that do everything in random
// order. After every step the invariants are checked, at the end that every byte
// has arrived once and that nothing is left.

// pattern is byte i of what the host of that index sends.
func pattern(host int, i int) byte {
	x := uint32(i)*2654435761 + uint32(host)*977
	return byte(x>>24) ^ byte(i)
}

// app is one side's application: it sends total bytes and reads what comes.
type app struct {
	h        *simHost
	c        *Conn
	total    int
	sent     int
	got      int
	expect   int
	eof      bool
	shut     bool
	closed   bool
	useClose bool // by Close instead of CloseWrite, once all is read
	posted   []byte
	loans    []Loan
	lends    [][]byte
	err      error
}

func (a *app) verify(p []byte) {
	for _, b := range p {
		if want := pattern(1-a.h.index, a.got); b != want {
			a.h.net.fatalf("host %d: byte %d is %#x, want %#x", a.h.index, a.got, b, want)
		}
		a.got++
	}
}

func (a *app) make(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = pattern(a.h.index, a.sent+i)
	}
	return p
}

// act does one random thing.
func (a *app) randomCall() {
	net, c := a.h.net, a.c
	if c == nil || a.closed || c.State() == SynSent {
		return
	}
	switch net.rand.IntN(10) {
	case 0, 1, 2, 3:
		if a.sent < a.total {
			p := a.make(min(a.total-a.sent, 1+net.rand.IntN([]int{1, 64, 1500, 20000}[net.rand.IntN(4)])))
			if net.rand.IntN(4) == 0 {
				ok, err := c.Lend(net.now, p)
				a.fail(err)
				if ok {
					a.sent += len(p)
					a.lends = append(a.lends, p)
				}
			} else {
				n, err := c.Write(net.now, p)
				a.fail(err)
				a.sent += n
			}
		} else if !a.shut && (!a.useClose || a.eof) {
			a.shut = true
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
	if a.eof && a.shut && len(a.loans) == 0 && a.posted == nil {
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

// runPair lets two applications exchangeMessages until both are done.
func runPair(net *network, o [2]Options, totals [2]int, simultaneous bool) {
	apps := [2]*app{}
	for i := range apps {
		o[i].UserTimeout = -1 // on a link that is bad enough even five minutes pass
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
			net.fatalf("no end: %d/%d and %d/%d bytes", apps[0].got, totals[1], apps[1].got, totals[0])
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
		if net.underWay() == 0 && net.rand.IntN(20) == 0 {
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
		if lent != returned || int(lent) != len(a.lends) {
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

// runToEnd runs until nothing is left to happen, and checks that nothing is left
// at all.
func (net *network) runToEnd(l *Listener) {
	if l != nil {
		l.Close()
	}
	for n := 0; net.step(Never); n++ {
		if n > 100000 {
			net.fatalf("events do not end")
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

// simLinks are what may happen to one direction.
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
		for i := range net.hosts {
			net.impair(i, simLinks[r.IntN(len(simLinks))])
		}
		net.rulesChange = r.IntN(4) == 0
		totals := [2]int{r.IntN(1 << uint(r.IntN(18))), r.IntN(1 << uint(r.IntN(18)))}
		runPair(net, o, totals, r.IntN(5) == 0)
	})
}

// blockingApp is an application as a stack runs it: it goes on until it would
// block and then does nothing until an event says so. A wake-up that is missing
// ends the simulation with work undone.
type blockingApp struct {
	app
	connected       bool
	readWait        bool
	writeWait       bool
	lendMode, posts bool
	turn            int // bytes by which what is sent may be ahead of what was received; 0: no limit
}

// limit is how much may have been sent by now.
func (a *blockingApp) limit() int {
	if a.turn == 0 {
		return a.total
	}
	return min(a.total, a.got/a.turn*a.turn+(1-a.h.index)*a.turn)
}

func (a *blockingApp) run() {
	net, c := a.h.net, a.c
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
		c.Close(net.now)
	}
}

func (a *blockingApp) write() {
	net, c := a.h.net, a.c
	for !a.writeWait && !a.shut {
		if a.sent == a.total {
			if err := c.CloseWrite(net.now); err != nil {
				net.fatalf("host %d: %v", a.h.index, err)
			}
			a.shut = true
			break
		}
		if a.sent >= a.limit() {
			break
		}
		p := a.make(min(a.limit()-a.sent, 1+net.rand.IntN([]int{64, 4000, 100000}[net.rand.IntN(3)])))
		if a.lendMode {
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
			c.Flush(net.now) // the goroutine waits
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
		apps[i] = &blockingApp{app: app{h: net.hosts[i], total: r.IntN(1 << uint(r.IntN(20)))}, lendMode: r.IntN(3) == 0, posts: r.IntN(2) == 0}
	}
	runBlocking(net, apps, o)
}

// runBlocking lets two applications that sleep exchangeMessages until both are done.
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
					net.fatalf("host %d: woken for nothing", i)
				}
			}
			if a := apps[i]; !a.closed {
				a.run()
				alive = true
				net.check()
			}
			if net.now > start.add(6*time.Hour) {
				net.fatalf("stuck")
			}
		}
		if !alive && (!apps[0].closed || !apps[1].closed) {
			net.fatalf("no application is ready, and they are not done")
		}
		if net.underWay() == 0 && net.hosts[0].tab.Ready == nil && net.hosts[1].tab.Ready == nil &&
			net.hosts[0].tab.Deadline == Never && net.hosts[1].tab.Deadline == Never && (!apps[0].closed || !apps[1].closed) {
			net.fatalf("a wake-up is missing: %+v %+v", apps[0].app, apps[1].app)
		}
	}
	for i, a := range apps {
		if a.got != apps[1-i].total {
			net.fatalf("host %d: got %d of %d bytes", i, a.got, apps[1-i].total)
		}
	}
	net.runToEnd(l)
}

// eachSeed runs f for n seeds, or for those that the flags say. There is one goroutine, so
// the race detector only makes it slow: a tenth is enough for it.
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
