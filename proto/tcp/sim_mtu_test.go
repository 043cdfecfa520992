package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
	"github.com/unet-go/unet/wire"
)

// narrowPath is bulk from one host to the other over a path whose MTU changes.
type narrowPath struct {
	w    *world
	a, b *Conn
	rule fate.Rule
	icmp bool // the router tells
	told func(mtu int) int
	mtu  int // of the path
	sent int
	got  int
}

func newNarrowPath(t *testing.T, seed uint64, cfg Config, o Options, link linkModel) *narrowPath {
	w := newWorld(t, seed, [2]Config{cfg, cfg})
	w.link = linkModel{delay: link.delay}
	n := &narrowPath{w: w, rule: link.rule(), told: func(mtu int) int { return mtu }}
	o.SendBuffer, o.ReceiveBuffer = or(o.SendBuffer, 1<<20), or(o.ReceiveBuffer, 1<<20)
	l, err := w.hosts[1].tab.Listen(AddrPort{Port: 80}, ListenOptions{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	if n.a, err = w.hosts[0].tab.Dial(w.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, o); err != nil {
		t.Fatal(err)
	}
	for n.b == nil {
		w.step(Never)
		n.b = l.Accept()
	}
	w.tooLarge = n.report
	return n
}

// report is the router's word on a segment that was too large.
func (n *narrowPath) report(from int, b []byte) {
	if !n.icmp {
		return
	}
	w := n.w
	packet := make([]byte, 20+len(b))
	src, dst := w.hosts[from].addr, w.hosts[1-from].addr
	wire.PutIPv4(packet, wire.IPv4Fields{TotalLen: uint16(len(packet)), TTL: 1, Protocol: wire.ProtocolTCP, Src: src, Dst: dst})
	copy(packet[20:], b)
	m := make([]byte, wire.MaxUnreachableLen)
	m = m[:wire.PutUnreachable(m, wire.ICMPFragmentationNeeded, uint16(n.told(n.mtu)), wire.IPv4(packet))]
	icmp, err := wire.ParseICMPv4(m)
	if err != nil {
		w.fatalf("%v", err)
	}
	quoted, err := icmp.Quoted()
	if err != nil {
		w.fatalf("%v", err)
	}
	w.note("%d < ICMP, MTU %d", from, n.told(n.mtu))
	w.hosts[from].tab.ProcessICMP(w.now, icmp, quoted)
}

// setPath changes the path's MTU.
func (n *narrowPath) setPath(mtu int) {
	n.mtu = mtu
	n.rule.MaxSize = mtu - 20
	n.w.impair(0, n.rule)
}

// run transfers so many bytes more.
func (n *narrowPath) run(bytes int) {
	w := n.w
	limit := w.now.add(10 * time.Minute)
	p := make([]byte, 64<<10)
	for end := n.got + bytes; n.got < end; {
		for n.sent < end && n.a.Room() >= 32<<10 {
			for i := range p {
				p[i] = pattern(0, n.sent+i)
			}
			k, err := n.a.Write(w.now, p[:min(len(p), end-n.sent)])
			if err != nil {
				w.fatalf("%v", err)
			}
			if n.sent += k; k == 0 {
				break
			}
		}
		w.step(limit)
		for {
			k, _ := n.b.Read(w.now, p)
			if k == 0 {
				break
			}
			for i, x := range p[:k] {
				if x != pattern(0, n.got+i) {
					w.fatalf("byte %d", n.got+i)
				}
			}
			n.got += k
		}
		if w.now >= limit {
			w.fatalf("%d of %d bytes after ten minutes", n.got, end)
		}
	}
}

// counts is what has happened, for whoever looks at a failure.
func (n *narrowPath) counts() string {
	t := n.w.hosts[0].tab
	s := fmt.Sprintf("%v, MTU %d", time.Duration(n.w.now), n.a.Info().PathMTU)
	for _, c := range []Counter{Timeouts, FastRecoveries, BlackHoles, MTUProbes, MTUProbesLost, MTUReportsAccepted, MTUReportsHeld, MTUReportsRefuted, MTUReportsLate, MTUReportsBad} {
		s += fmt.Sprintf(", %d %v", t.Count(c), c)
	}
	return s
}

// A path that is narrower than its ends believe is found out, whether its router tells or
// not, and whatever else the path does: text flows, and segments become as large as the
// path takes, or nearly.
func TestNarrowPath(t *testing.T) {
	oneGoroutine(t)
	lan := linkModel{delay: 20 * time.Microsecond}
	for _, c := range []struct {
		name  string
		link  linkModel
		cfg   Config
		way   string
		bytes int
	}{
		{"LAN", lan, Config{}, "black hole", 1 << 20},
		{"LAN, ICMP", lan, Config{}, "ICMP", 1 << 20},
		{"LAN, old router", lan, Config{}, "old router", 1 << 20},
		{"1% loss", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{}, "black hole", 3 << 20},
		{"1% loss, ICMP", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{}, "ICMP", 1 << 20},
		{"20 ms, jitter", linkModel{delay: 10 * time.Millisecond, jitter: time.Millisecond}, Config{}, "black hole", 3 << 20},
		{"20 ms, jitter, ICMP", linkModel{delay: 10 * time.Millisecond, jitter: time.Millisecond}, Config{}, "ICMP", 1 << 20},
		{"LAN, no SACK", lan, Config{NoSACK: true}, "black hole", 1 << 20},
		{"LAN, no SACK, ICMP", lan, Config{NoSACK: true}, "ICMP", 1 << 20},
		{"LAN, bare", lan, noOptions, "black hole", 1 << 20},
	} {
		for _, p := range []struct{ link, path, least, plateau int }{
			{1500, 1500, 1500, 1500}, {1500, 1492, 1492, 1492}, {1500, 1400, 1400, 1006}, {1500, 1300, 1284, 1006}, {1500, 1024, 1024, 1006}, {1500, 600, 576, 576},
			{9000, 1500, 1500, 1492}, {9000, 8950, 8934, 8166}, {9000, 4352, 4352, 4352}, {9000, 2000, 1500, 1492},
		} {
			t.Run(fmt.Sprintf("%s/%d over %d", c.name, p.link, p.path), func(t *testing.T) {
				n := newNarrowPath(t, 1, c.cfg, Options{MTU: p.link}, c.link)
				n.icmp = c.way != "black hole"
				if c.way == "old router" {
					n.told = func(int) int { return 0 }
					p.least = p.plateau
				}
				n.setPath(p.path)
				n.run(c.bytes)
				tab := n.w.hosts[0].tab
				if mtu := n.a.Info().PathMTU; mtu > p.path || mtu < p.least {
					t.Errorf("not found: %+v, %+v", n.a.path, n.a.congestion)
				}
				if holes := tab.Count(BlackHoles); (holes > 0) != (c.way == "black hole" && p.path < p.link) {
					t.Error("a black hole, or none")
				}
				if c.link.loss == 0 && c.link.jitter == 0 && tab.Count(FastRecoveries) > 0 {
					t.Error("a probe, or a router's report, was taken for congestion")
				}
				t.Log(n.counts())
			})
		}
	}
}

// wait lets time pass in which nothing is written.
func (n *narrowPath) wait(d time.Duration) {
	for end := n.w.now.add(d); n.w.step(end); {
	}
}

// A path that changes while it is used is followed, down and, by probes, up again.
func TestPathChanges(t *testing.T) {
	for _, icmp := range []bool{true, false} {
		t.Run(fmt.Sprintf("ICMP %v", icmp), func(t *testing.T) {
			n := newNarrowPath(t, 1, Config{}, Options{MTU: 1500, SendBuffer: 64 << 10}, linkModel{delay: 500 * time.Microsecond})
			n.icmp = icmp
			check := func(what string, least, most int) {
				t.Helper()
				if mtu := n.a.Info().PathMTU; mtu < least || mtu > most {
					t.Errorf("%s: %s; %+v", what, n.counts(), n.a.path)
				}
			}
			n.run(1 << 20)
			n.setPath(1400)
			n.run(1 << 20)
			check("narrower", 1384, 1400)
			n.wait(verifyAfter)
			n.run(2 << 20)
			check("a probe has found it so", 1384, 1400)
			before := n.w.line(0).Counters().LostForSize
			n.run(1 << 20)
			n.wait(searchAgain / 2)
			n.run(1 << 20)
			if lost := n.w.line(0).Counters().LostForSize - before; lost > 0 {
				t.Errorf("%d too large when all was known: %s", lost, n.counts())
			}
			n.setPath(1500)
			n.wait(searchAgain)
			n.run(1 << 20)
			check("wide again", 1500, 1500)
			if tab := n.w.hosts[0].tab; tab.Count(FastRecoveries) > 0 {
				t.Errorf("congestion: %s", n.counts())
			}
		})
	}
}

// Who can forge reports for what is in flight, and does so for each segment, cannot
// change what is known to be true; where segments are lost by chance, he can at times, and
// not for long.
func TestForgedReports(t *testing.T) {
	for _, loss := range []float64{0, 0.01} {
		t.Run(fmt.Sprint("loss ", loss), func(t *testing.T) {
			n := newNarrowPath(t, 1, Config{}, Options{MTU: 1500, SendBuffer: 64 << 10}, linkModel{loss: loss, delay: 500 * time.Microsecond})
			n.setPath(1500)
			n.run(1 << 18)
			n.icmp, n.mtu = true, 68
			forge := true
			n.w.sent = func(from int, b []byte) {
				if forge && from == 0 && len(wire.TCP(b).Payload()) > 0 {
					n.report(0, b)
				}
			}
			n.run(1 << 20)
			mtu := n.a.Info().PathMTU
			if loss == 0 && mtu != 1500 || mtu < 576 {
				t.Errorf("believed: %s", n.counts())
			}
			forge = false
			n.wait(verifyAfter)
			n.run(1 << 20)
			if n.a.Info().PathMTU != 1500 {
				t.Errorf("and not forgotten: %s, %+v", n.counts(), n.a.path)
			}
			tab := n.w.hosts[0].tab
			if tab.Count(MTUReportsRefuted) < 10 || tab.Count(MTUReportsAccepted) > 10 {
				t.Error(n.counts())
			}
		})
	}
}
