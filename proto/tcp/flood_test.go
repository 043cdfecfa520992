package tcp

import (
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/wire"
)

// Floods from strangers who cannot see the connection: it goes on, the memory is
// bounded, and every segment is in a counter.
func TestFloods(t *testing.T) {
	t.Run("timestamps", func(t *testing.T) { floods(t, Config{}) })
	t.Run("bare", func(t *testing.T) { floods(t, noOptions) })
}

func floods(t *testing.T, cfg Config) {
	p := newPair(t, cfg, Options{})
	tab, c := p.tabs[1], p.conns[1]
	r := rand.New(rand.NewPCG(5, 6))
	b := make([]byte, 80)
	send := func(src [4]byte, f wire.TCPFields, text int) Result {
		n := 20 + text
		wire.PutTCP(b, &f, 20, wire.Sum(b[20:n], wire.PseudoHeader4(src, hostB, wire.ProtocolTCP, uint16(n))))
		return tab.Process(p.now, &Inbound{Src: src, Dst: hostB, Data: b[:n]})
	}
	stranger := func() [4]byte { return [4]byte{11, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())} }
	works := func(what string) {
		t.Helper()
		msg := []byte("still here")
		to := make([]byte, 20)
		p.exchange()
		p.conns[0].Read(p.now, to)
		c.Read(p.now, to)
		p.send(t, 0, msg, to, true)
		p.send(t, 1, msg, to, false)
		p.exchange()
		if c.State() != Established {
			t.Fatalf("%s: %v", what, c.State())
		}
	}

	// SYNs from everywhere: the queue fills, then cookies go out, and somebody
	// who means it gets in.
	for range 50000 {
		send(stranger(), wire.TCPFields{SrcPort: uint16(1 + r.IntN(65535)), DstPort: 80, Seq: r.Uint32(), Flags: wire.TCPSyn, Window: 1000}, 0)
		tab.EmitReply(b)
	}
	if tab.Len() > 1+DefaultSynQueue || tab.MemoryInUse() != 0 || tab.Count(CookiesSent) != 50000-DefaultSynQueue {
		t.Fatalf("%d connections, %d bytes, %d cookies", tab.Len(), tab.MemoryInUse(), tab.Count(CookiesSent))
	}
	for c := tab.NextReady(); c != nil; c = tab.NextReady() {
		c.Emit(p.now, b) // their SYN-ACKs go nowhere
	}
	l := tab.listeners[80]
	old := p.conns
	p.dial(t, l, Options{})
	works("through the SYN flood")
	if tab.Count(CookiesAccepted) != 1 {
		t.Error("not by a cookie")
	}
	p.conns = old

	// ACKs that would be cookies: each is one guess in 2^24 at best.
	for range 20000 {
		send(stranger(), wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: r.Uint32(), Ack: r.Uint32(), Flags: wire.TCPAck}, 0)
	}
	if tab.Count(CookiesAccepted) != 1 {
		t.Error("a cookie was guessed, and the seed is fixed")
	}
	works("after guesses at cookies")

	// Everything at the connection itself, from its peer's address.
	before, resets := tab.Count(SegmentsReceived), tab.Count(ResetsSent)
	sent := tab.Count(SegmentsSent)
	for i := range 50000 {
		f := wire.TCPFields{SrcPort: p.conns[0].Local().Port, DstPort: 80, Seq: r.Uint32(), Ack: r.Uint32(),
			Flags: wire.TCPFlags(r.Uint32()), Window: uint16(r.Uint32())}
		if f.Seq == c.rcvNxt.Uint32() {
			continue // one in 2^32: the guess that no defence helps against
		}
		if i%2 == 0 {
			f.Flags = wire.TCPRst | wire.TCPAck
		}
		send(hostA, f, i%60)
		for c := tab.NextReady(); c != nil; c = tab.NextReady() {
			c.Emit(p.now, b)
		}
	}
	if tab.Count(ResetsSent) != resets {
		t.Error("strangers made us send a RST")
	}
	if tab.Count(AcksLimited) == 0 {
		t.Error("everything was answered")
	}
	t.Logf("%d segments answered of %d", tab.Count(SegmentsSent)-sent, tab.Count(SegmentsReceived)-before)
	works("after everything at the connection")
}

// A peer that SACKs every second byte does not make the scoreboard larger than its
// bound, and what is ignored is only sent again.
func TestSackStorm(t *testing.T) {
	p := newPair(t, Config{}, Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20})
	c, peer := p.conns[0], p.conns[1]
	c.Write(p.now, make([]byte, 10000))
	for p.tabs[0].NextReady() != nil {
		c.Emit(p.now, p.buf)
	}
	una := c.sndUna
	for i := 1; i+8 < 10000; i += 8 {
		p.now += 1000
		b := make([]byte, 80)
		o := wire.TCPOptions{HasTimestamps: true, TSVal: peer.timestamp(p.now), SACKBlocks: 3}
		for k := range 3 {
			at := una.Add(uint32(i + 2*k)).Uint32()
			o.SACK[k] = wire.SACKBlock{Left: at, Right: at + 1}
		}
		n, sum := wire.PutTCPOptions(b[20:], &o)
		f := wire.TCPFields{SrcPort: 80, DstPort: c.Local().Port, Seq: peer.sndNxt.Uint32(), Ack: una.Uint32(), Flags: wire.TCPAck, Window: 60000}
		wire.PutTCP(b, &f, 20+n, addSums(sum, wire.PseudoHeader4(hostB, hostA, wire.ProtocolTCP, uint16(20+n))))
		p.tabs[0].Process(p.now, &Inbound{Src: hostB, Dst: hostA, Data: b[:20+n]})
		for k := 0; p.tabs[0].NextReady() != nil && k < 5; k++ {
			c.Emit(p.now, p.buf)
		}
		if msg := c.invariant(); msg != "" {
			t.Fatal(msg)
		}
	}
	if c.board.spans < maxSpans || c.board.spans > maxSpans+maxSpans/4 || p.tabs[0].Count(SackIgnored) == 0 {
		t.Errorf("%d spans, %d blocks ignored", c.board.spans, p.tabs[0].Count(SackIgnored))
	}
	c.Abort()
	if c.board.head != nil || p.tabs[0].spans.n < maxSpans {
		t.Error("spans left")
	}
}
