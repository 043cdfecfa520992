package tcp

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// pair is two tables and a connection between them. What one emits the other processes at once.
// The first table has dialed.
type pair struct {
	tabs     [2]*Table
	listener *Listener // of the second table, on port 80
	conns    [2]*Conn
	now      Time
	buf      []byte

	change func(from int, b []byte) // changes each segment before it is received; nil: no change
}

func newPair(t testing.TB, cfg Config, o Options) *pair {
	p := &pair{now: Time(time.Second), buf: make([]byte, 10000)}
	for i := range p.tabs {
		cfg.Secret = testSecret
		cfg.ReturnFrame = func(uint64) {}
		p.tabs[i] = NewTable(cfg)
	}
	var err error
	if p.listener, err = p.tabs[1].Listen(AddrPort{Port: 80}, ListenOptions{Options: o}); err != nil {
		t.Fatal(err)
	}
	p.dial(t, o)
	return p
}

// dial opens another connection to the listener. It becomes p.conns.
func (p *pair) dial(t testing.TB, o Options) {
	t.Helper()
	c, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, o)
	if err != nil {
		t.Fatal(err)
	}
	p.exchange()
	p.conns = [2]*Conn{c, p.listener.Accept()}
	if p.conns[1] == nil || c.State() != Established {
		t.Fatal("not established")
	}
}

// exchange carries segments both ways until there are no more.
func (p *pair) exchange() {
	for again := true; again; {
		again = false
		for i, t := range p.tabs {
			for c := t.Ready; c != nil; c = t.Ready {
				p.carry(i, c)
				again = true
			}
			for c, _ := t.NextEvent(); c != nil; c, _ = t.NextEvent() {
			}
		}
	}
}

// carry emits one segment of c, and the other table processes it. Its reply comes back.
func (p *pair) carry(from int, c *Conn) {
	in := Inbound{Src: hostA, Dst: hostB, Memory: MemoryBorrowed}
	if from == 1 {
		in.Src, in.Dst = hostB, hostA
	}
	in.Data = p.buf[:c.Emit(p.now, p.buf)]
	if p.change != nil {
		p.change(from, in.Data)
	}
	if r := p.tabs[1-from].Process(p.now, &in); r.Reply {
		in := Inbound{Src: in.Dst, Dst: in.Src}
		in.Data = p.buf[:p.tabs[1-from].EmitReply(p.buf)]
		p.tabs[from].Process(p.now, &in)
	}
}

// send writes b on one side, emits it as one segment, and reads it on the other into the memory
// to, which is posted before if post is set.
func (p *pair) send(t testing.TB, from int, b, to []byte, post bool) {
	src, dst := p.conns[from], p.conns[1-from]
	if post && !dst.Post(p.now, to) {
		t.Fatal("not posted")
	}
	if n, err := src.Write(p.now, b); n != len(b) || err != nil {
		t.Fatal(n, err)
	}
	p.carry(from, src)
	if c, e := p.tabs[1-from].NextEvent(); c != dst || e&Readable == 0 {
		t.Fatal("not readable")
	}
	n := 0
	if post {
		n = dst.Unpost(p.now)
	} else {
		n, _ = dst.Read(p.now, to)
		dst.Read(p.now, to) // finds nothing
	}
	if string(to[:n]) != string(b) {
		t.Fatalf("read %x, want %x", to[:n], b)
	}
}

// drop emits all segments of a table and drops them.
func (p *pair) drop(tab *Table) {
	for c := tab.Ready; c != nil; c = tab.Ready {
		c.Emit(p.now, p.buf)
	}
}

func TestNoAllocations(t *testing.T) {
	for name, cfg := range map[string]Config{"timestamps": {}, "none": noOptions} {
		p := newPair(t, cfg, Options{})
		b, to := patternBytes(0, 0, 64), make([]byte, 64)
		big, bigTo := patternBytes(0, 0, 1400), make([]byte, 1400)
		for what, f := range map[string]func(){
			"posted": func() { p.now += 1000; p.send(t, 0, b, to, true); p.send(t, 1, b, to, true) },
			"read": func() {
				p.conns[0].Read(p.now, to)
				p.conns[1].Read(p.now, to)
				p.send(t, 0, b, to, false)
				p.send(t, 1, b, to, false)
			},
			"large": func() { p.send(t, 0, big, bigTo, true); p.send(t, 1, big, bigTo, true) },
			"lent": func() {
				if ok, err := p.conns[0].Lend(p.now, big); !ok || err != nil {
					t.Fatal("not lent:", err)
				}
				p.exchange()
				if n, _ := p.conns[1].Read(p.now, bigTo); string(bigTo[:n]) != string(big) {
					t.Fatalf("read %d bytes, or other ones than were lent", n)
				}
				p.exchange()
			},
			"timers": func() { p.now += Time(10 * time.Millisecond); p.tabs[0].Expire(p.now); p.tabs[1].Expire(p.now) },
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s, %s: %v allocations", name, what, n)
			}
			p.exchange()
		}
	}
}

func TestCookiesDoNotAllocate(t *testing.T) {
	tab := NewTable(Config{})
	id := makeTuple(AddrPort{Addr: host6A, Port: 1}, AddrPort{Addr: host6B, Port: 2})
	if n := testing.AllocsPerRun(100, func() { tab.cookie(id, seq.New(1), 2, 3) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// An idle connection takes 4 KiB at most: the struct, its place in the table, and its timer. Each of
// the two tables has one end.
func TestIdleMemory(t *testing.T) {
	const n = 4000
	p := newPair(t, Config{}, Options{KeepAlive: KeepAlive{Enable: true}})
	l, err := p.tabs[1].Listen(AddrPort{Port: 81}, ListenOptions{AcceptQueue: n, Options: Options{KeepAlive: KeepAlive{Enable: true}}})
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]*Conn, 0, 2*n)
	b, to := patternBytes(0, 0, 64), make([]byte, 64)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range n {
		c, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 81}, Options{KeepAlive: KeepAlive{Enable: true}})
		if err != nil {
			t.Fatal(err)
		}
		p.exchange()
		p.conns = [2]*Conn{c, l.Accept()}
		p.conns[0].Read(p.now, to)
		p.send(t, 0, b, to, true)
		p.send(t, 1, b, to, false)
		p.exchange()
		conns = append(conns, p.conns[0], p.conns[1])
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (after.HeapAlloc - before.HeapAlloc) / (2 * n)
	t.Logf("%d bytes for an idle connection", each)
	if each > 4096 {
		t.Errorf("an idle connection takes %d bytes, want 4096 at most", each)
	}
	if used := p.tabs[0].MemoryInUse() + p.tabs[1].MemoryInUse(); used != 0 {
		t.Errorf("%d bytes of buffers in use", used)
	}
	runtime.KeepAlive(conns)
}

// One operation is a request of 64 bytes and its reply: two writes, two segments
// emitted and processed, two reads.
func BenchmarkRequestReply(b *testing.B) {
	for _, post := range []bool{true, false} {
		for name, cfg := range map[string]Config{"timestamps": {}, "bare": noOptions} {
			b.Run(fmt.Sprintf("posted=%v/%s", post, name), func(b *testing.B) {
				p := newPair(b, cfg, Options{})
				msg, to := make([]byte, 64), make([]byte, 64)
				p.conns[0].Read(p.now, to)
				p.conns[1].Read(p.now, to)
				b.ReportAllocs()
				for b.Loop() {
					p.now += 2000
					p.send(b, 0, msg, to, post)
					p.send(b, 1, msg, to, post)
				}
			})
		}
	}
}

// One operation is a write of 64 KiB, its segments, their ACKs, and the reads.
func BenchmarkBulk(b *testing.B) {
	p := newPair(b, Config{}, Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20})
	chunk, to := make([]byte, 64<<10), make([]byte, 64<<10)
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		p.now += 20000
		p.conns[0].Write(p.now, chunk)
		p.conns[0].Flush(p.now)
		p.exchange()
		for {
			n, _ := p.conns[1].Read(p.now, to)
			if n == 0 {
				break
			}
		}
		p.exchange()
	}
}

func BenchmarkOpenClose(b *testing.B) {
	p := newPair(b, Config{TimeWait: time.Microsecond}, Options{})
	l, err := p.tabs[1].Listen(AddrPort{Port: 81}, ListenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p.now += 10000
		c, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 81}, Options{})
		if err != nil {
			b.Fatal(err)
		}
		p.exchange()
		s := l.Accept()
		c.Close(p.now)
		p.exchange()
		s.Close(p.now)
		p.exchange()
		p.now += 10000
		p.tabs[0].Expire(p.now)
		p.tabs[1].Expire(p.now)
	}
}

// One operation is a request and its reply on one of many connections in turn. It
// shows the cost of cache misses and of the table.
func BenchmarkManyConnections(b *testing.B) {
	for _, n := range []int{10, 1000, 20000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPair(b, Config{}, Options{})
			msg, to := make([]byte, 64), make([]byte, 64)
			conns := make([][2]*Conn, n)
			for i := range conns {
				p.now += 1000
				p.dial(b, Options{})
				conns[i] = p.conns
			}
			i := 0
			for b.Loop() {
				p.now += 2000
				p.conns = conns[i]
				if i++; i == n {
					i = 0
				}
				p.send(b, 0, msg, to, true)
				p.send(b, 1, msg, to, true)
			}
		})
	}
}

// One operation is a write of 64 bytes on a connection that always has data in flight, so that
// corking makes full segments. Their emission, processing and reading is included.
func BenchmarkOneWay(b *testing.B) {
	p := newPair(b, Config{}, Options{})
	msg, to := make([]byte, 64), make([]byte, 64<<10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.now += 100
		if n, _ := p.conns[0].Write(p.now, msg); n != len(msg) {
			b.Fatal("no room")
		}
		if p.tabs[0].Ready != nil {
			p.carry(0, p.conns[0])
			if i%4 == 0 { // the reader reads after every fourth write
				for {
					if n, _ := p.conns[1].Read(p.now, to); n == 0 {
						break
					}
				}
				p.exchange()
			}
		}
	}
}
