package tcp

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// A receiver that lies about what it has. It can harm what it receives itself; it must
// not make us send faster than it acknowledges, nor work more than a little for an ACK.

// ackUpTo is an ACK of what the second host has sent up to n bytes behind SND.UNA, with
// a large window.
func (p *pair) ackUpTo(n int) forge {
	f := p.peer(nil)
	f.fields.Ack = p.conns[1].sndUna.Add(uint32(n)).Uint32()
	f.fields.Window = 60000
	return f
}

// sends has the second host send as much as it may, to nobody.
func (p *pair) sends(n int) {
	p.conns[1].Write(p.now, make([]byte, n))
	for c := p.tabs[1].NextReady(); c != nil; c = p.tabs[1].NextReady() {
		c.Emit(p.now, p.buf)
	}
}

// settles has both ends go on until the first has read n bytes.
func (p *pair) settles(t *testing.T, n int) {
	t.Helper()
	to := make([]byte, 1<<16)
	got := 0
	for end := p.now.add(10 * time.Minute); got < n && p.now < end; p.now = p.now.add(10 * time.Millisecond) {
		p.exchange()
		for k := 1; k > 0; got += k {
			k, _ = p.conns[0].Read(p.now, to)
		}
		for _, tab := range p.tabs {
			tab.Expire(p.now)
		}
	}
	p.exchange()
	if got != n {
		t.Errorf("%d of %d bytes came in the end: %+v", got, n, p.conns[1].Info())
	}
}

// Many ACKs for one segment (Savage et al., "TCP congestion control with a misbehaving
// receiver") make the window no larger than one does: bytes are counted (RFC 3465).
func TestAckDivision(t *testing.T) {
	for name, control := range map[string]func(int) Congestion{"CUBIC": NewCubic, "Reno": NewReno} {
		var windows [2]int
		for i, step := range []int{0, 1} {
			p := newPair(t, Config{NewCongestion: control}, Options{SendBuffer: 1 << 20})
			p.sends(1 << 20)
			c := p.conns[1]
			flight := int(c.sndMax.From(c.sndUna))
			if step == 0 {
				step = c.mss
			}
			for n := 0; n < flight; n += step {
				p.now = p.now.add(time.Microsecond)
				p.attack(p.ackUpTo(min(step, flight-n)))
			}
			windows[i] = c.window
		}
		if windows[1] > windows[0] {
			t.Errorf("%s: a window of %d bytes by whole ACKs, of %d by pieces", name, windows[0], windows[1])
		}
	}
}

// An ACK of what has not been sent yet changes nothing, and is not answered for ever.
func TestOptimisticAcks(t *testing.T) {
	p := newPair(t, Config{}, Options{SendBuffer: 1 << 20})
	p.sends(1 << 20)
	c, tab := p.conns[1], p.tabs[1]
	before, sent := *c, tab.Count(SegmentsSent)
	flight := int(c.sndMax.From(c.sndUna))
	for i := range 1000 {
		p.attack(p.ackUpTo(flight + 1 + i*1000))
	}
	if c.window != before.window || c.sndUna != before.sndUna || c.sndNxt != before.sndNxt {
		t.Error("something was believed")
	}
	if n := tab.Count(SegmentsSent) - sent; n > challengeBurst || tab.Count(AckUnsent) != 1000 {
		t.Errorf("%d were answered, %d counted", n, tab.Count(AckUnsent))
	}
	p.settles(t, 1<<20)
}

// Spoofed duplicate ACKs of a peer without SACK let go one segment each at most, and no
// more than its window.
func TestDuplicateAckSpoofing(t *testing.T) {
	p := newPair(t, Config{NoSACK: true, NoTimestamps: true}, Options{SendBuffer: 4 << 20})
	p.sends(4 << 20)
	c, tab := p.conns[1], p.tabs[1]
	f := p.ackUpTo(0)
	f.fields.Window = 8000 // scaled: 1 MB
	p.attack(f)
	sent := tab.Count(SegmentsSent)
	for range 5000 {
		p.attack(f)
	}
	if n := tab.Count(SegmentsSent) - sent; n > 5000 {
		t.Errorf("%d segments for 5000 ACKs", n)
	}
	if n := c.sndMax.From(c.sndUna); n > c.sndWnd {
		t.Errorf("%d bytes in flight, the window is %d", n, c.sndWnd)
	}
	if msg := c.invariant(); msg != "" {
		t.Error(msg)
	}
	p.settles(t, 4<<20)
}

// SACK blocks of all kinds, four with every ACK: beyond what was sent, before what is
// acknowledged, empty, the wrong way round, overlapping, of single bytes. The scoreboard
// keeps its bound and its invariants, and all arrives in the end.
func TestSackLies(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		p := newPair(t, Config{NoTimestamps: seed%2 == 0}, Options{SendBuffer: 1 << 20})
		const total = 200_000
		p.sends(total)
		c := p.conns[1]
		most := 0
		for range 4000 {
			p.now = p.now.add(time.Microsecond)
			f := p.ackUpTo(0)
			flight := int(c.sndMax.From(c.sndUna))
			o := &f.opts
			o.SACKBlocks = uint8(1 + rnd.IntN(wire.MaxSACKBlocks-1))
			for k := range o.SACKBlocks {
				left := rnd.IntN(3*flight+1) - flight
				length := 1
				if seed > 1 || rnd.IntN(100) == 0 {
					length = []int{0, 1, 1, 1 + rnd.IntN(3000), -1 - rnd.IntN(3000)}[rnd.IntN(5)]
				}
				if seed < 2 {
					left = rnd.IntN(flight)
				}
				at := c.sndUna.Add(uint32(int32(left)))
				o.SACK[k] = wire.SACKBlock{Left: at.Uint32(), Right: at.Add(uint32(int32(length))).Uint32()}
			}
			p.attack(f)
			if msg := c.invariant(); msg != "" {
				t.Fatalf("seed %d: %s", seed, msg)
			}
			most = max(most, c.board.spans)
		}
		if most > maxSpans+maxSpans/4 || seed < 2 && most < maxSpans {
			t.Errorf("seed %d: %d spans", seed, most)
		}
		if c.sndUna != p.conns[0].rcvNxt {
			t.Errorf("seed %d: SND.UNA has moved", seed)
		}
		p.settles(t, total)
	}
}

// BenchmarkSackStorm is an ACK at its dearest: each of its blocks lies at the end of a
// scoreboard that is full, and the last makes losses to be looked for.
func BenchmarkSackStorm(b *testing.B) {
	p := newPair(b, Config{}, Options{SendBuffer: 1 << 20})
	p.conns[1].Write(p.now, make([]byte, 1<<20))
	c, tab := p.conns[1], p.tabs[1]
	for tab.NextReady() != nil {
		c.Emit(p.now, p.buf)
	}
	flight := int(c.sndMax.From(c.sndUna))
	for i := 1; i < flight && c.board.spans < maxSpans; i += 2 {
		f := p.ackUpTo(0)
		f.opts.SACKBlocks = 1
		at := c.sndUna.Add(uint32(i))
		f.opts.SACK[0] = wire.SACKBlock{Left: at.Uint32(), Right: at.Add(1).Uint32()}
		p.attack(f)
	}
	var buf [100]byte
	f := p.ackUpTo(0)
	f.opts.SACKBlocks = 3
	for k := range 3 { // the last byte of all, and two that would need another span
		at := c.sndUna.Add(uint32(flight - 1 - 2*k))
		f.opts.SACK[k] = wire.SACKBlock{Left: at.Uint32(), Right: at.Add(1).Uint32()}
	}
	f.fields.DstPort = 80
	in := &Inbound{Src: f.from.Addr, Dst: hostB, Data: f.put(buf[:])}
	b.ReportMetric(float64(c.board.spans), "spans")
	for b.Loop() {
		tab.Process(p.now, in)
	}
}
