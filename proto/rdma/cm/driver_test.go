package cm

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

var (
	client = [4]byte{10, 9, 1, 2}
	server = [4]byte{10, 9, 1, 1}
)

// capture is the MADs of a capture and the hosts that sent them.
func capture(t testing.TB, name string) (mads []datagram) {
	t.Helper()
	b, err := os.ReadFile("../../../wire/testdata/cm_" + name + ".pcap")
	if err != nil {
		t.Fatal(err)
	}
	for b = b[24:]; len(b) > 0; {
		n := binary.LittleEndian.Uint32(b[8:])
		frame := b[16 : 16+n]
		mads = append(mads, datagram{[4]byte(frame[14+12:]), [4]byte(frame[14+16:]), [wire.MADLen]byte(frame[n-wire.ICRCLen-wire.MADLen:])})
		b = b[16+n:]
	}
	return mads
}

type datagram struct {
	from, to [4]byte
	mad      [wire.MADLen]byte
}

func newEngine(addr [4]byte, seed uint64, edit func(*Config)) *Engine {
	cfg := Config{Addr: addr, GUID: uint64(addr[3]), Rand: rand.New(rand.NewPCG(seed, uint64(addr[3]))).Uint64}
	if edit != nil {
		edit(&cfg)
	}
	return New(cfg)
}

// emitted are the MADs that wait for Emit.
func emitted(e *Engine) (out []datagram) {
	for {
		var d datagram
		to, ok := e.Emit(d.mad[:])
		if ok != (len(d.mad) > 0 && d.mad[0] == 1) {
			panic("Emit wrote no MAD, or reported none")
		}
		if !ok {
			return out
		}
		d.from, d.to = e.cfg.Addr, to
		out = append(out, d)
	}
}

func events(e *Engine) (out []Event) {
	for ev, ok := e.NextEvent(); ok; ev, ok = e.NextEvent() {
		out = append(out, ev)
	}
	return out
}

// pair is a client and a server that listens, and the time of both.
type pair struct {
	t        testing.TB
	now      Time
	cli, srv *Engine
	l        *Listener
}

func newPair(t testing.TB, edit func(*Config)) *pair {
	p := &pair{t: t, now: 1, cli: newEngine(client, 1, edit), srv: newEngine(server, 2, edit)}
	var err error
	if p.l, err = p.srv.Listen(7174, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pair) dial(qpn uint32) *Conn {
	p.t.Helper()
	c, err := p.cli.Dial(p.now, wire.AddrPort4{Addr: server, Port: 7174}, Param{QPN: qpn, PSN: 5, ResponderResources: 3, InitiatorDepth: 8, RetryCount: 6, RNRRetryCount: 2, Private: []byte("hello")})
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// deliver hands every MAD of one engine to the other and returns them.
func (p *pair) deliver(from *Engine) []datagram {
	out := emitted(from)
	for i := range out {
		p.input(&out[i])
	}
	return out
}

func (p *pair) input(d *datagram) {
	e := p.cli
	if d.to == server {
		e = p.srv
	}
	e.Input(p.now, d.from, d.mad[:])
}

// wantEvent takes the only event of an engine, whose type must be want.
func (p *pair) wantEvent(e *Engine, want EventType) *Conn {
	p.t.Helper()
	got := events(e)
	if len(got) != 1 || got[0].Type != want {
		p.t.Fatalf("events %v, want %v", got, want)
	}
	return got[0].Conn
}

func (p *pair) wantNothing(e *Engine) {
	p.t.Helper()
	if got := events(e); len(got) != 0 {
		p.t.Fatalf("events %v, want none", got)
	}
	if out := emitted(e); len(out) != 0 {
		p.t.Fatalf("sent %v, want nothing", wire.CM(out[0].mad[:]).Attr())
	}
}

// connect establishes a connection.
func (p *pair) connect(qpn uint32) (cli, srv *Conn) {
	p.t.Helper()
	cli = p.dial(qpn)
	p.deliver(p.cli)
	srv = p.wantEvent(p.srv, ConnectRequest)
	p.accept(srv, qpn+1000)
	p.deliver(p.srv)
	p.wantEvent(p.cli, ConnectResponse)
	if err := cli.Establish(); err != nil {
		p.t.Fatal(err)
	}
	p.deliver(p.cli)
	p.wantEvent(p.srv, Established)
	return cli, srv
}

func (p *pair) accept(c *Conn, qpn uint32) {
	p.t.Helper()
	if err := c.Accept(p.now, Param{QPN: qpn, PSN: 9, ResponderResources: 4, InitiatorDepth: 4, RNRRetryCount: 3, Private: []byte("welcome")}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) wantCount(e *Engine, c Counter, want uint64) {
	p.t.Helper()
	if got := e.Count(c); got != want {
		p.t.Errorf("%v: %d, want %d", c, got, want)
	}
}

// wantEmpty reports as an error what is left in an engine that has no connection any more.
func (p *pair) wantEmpty(e *Engine) {
	p.t.Helper()
	if e.Len() != 0 || len(e.remotes) != 0 || len(e.qps) != 0 || len(e.timers) != 0 || e.Deadline() != Never {
		p.t.Errorf("%d connections, %d by ID, %d by queue pair, %d timers are left", e.Len(), len(e.remotes), len(e.qps), len(e.timers))
	}
	for _, l := range e.listeners {
		if l.pending != 0 {
			p.t.Errorf("%d connections are left in the backlog", l.pending)
		}
	}
}

const (
	interval = Time(4096)<<20 + 2*Time(4096)<<16 // between two REQs, with the defaults
	second   = Time(time.Second)
)
