package tcp

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Any single segment causes at most one answer, without data, and uses no memory: an attacker
// cannot use us to flood a third host.
func TestNoAmplification(t *testing.T) {
	for flags := range wire.TCPFlags(64) {
		for name, port := range map[string]uint16{"nobody": 9, "listener": 80, "connection": 80} {
			p := newPair(t, Config{}, Options{})
			c, tab := p.conns[1], p.tabs[1]
			for _, offset := range []uint32{0, 1, 1000, 1 << 20, 1 << 31} {
				for _, text := range []int{0, 1, 1000} {
					if c.State() != Established {
						continue // a RST with the right number has ended it, or it has closed
					}
					f := p.peer(make([]byte, text))
					if name != "connection" {
						f.from = AddrPort{Addr: wire.AddrFrom4([4]byte{10, 9, 9, 9}), Port: 1000}
					} else if offset == 0 {
						continue // the segment is a valid one of the peer
					}
					f.fields.DstPort, f.fields.Flags = port, flags
					f.fields.Seq += offset
					sent := tab.Count(SegmentsSent)
					p.attack(f)
					if n := tab.Count(SegmentsSent) - sent; n > 1 || tab.MemoryInUse() > ChunkSize*int(c.stat.outOfOrder) {
						t.Errorf("%v of %d bytes at %d, %s: %d answers, %d bytes in use", flags, text, offset, name, n, tab.MemoryInUse())
					}
				}
			}
		}
	}
}

// What an attacker off the path must guess: for a RST exactly RCV.NXT, for data a number in the
// window and an acknowledgment of data that is or was in flight. A SYN changes nothing.
func TestGuessedSequenceNumbers(t *testing.T) {
	const window = 2048
	guess := func(flags wire.TCPFlags, number, ack int, text int) (effect bool) {
		p := newPair(t, noOptions, Options{ReceiveBuffer: window})
		c := p.conns[1]
		f := p.peer(make([]byte, text))
		f.fields.Flags = flags
		f.fields.Seq = c.rcvNxt.Add(uint32(number)).Uint32()
		f.fields.Ack = c.sndUna.Add(uint32(ack)).Uint32()
		p.attack(f)
		return c.State() != Established || c.Buffered() > 0 || len(c.outOfOrder.runs) > 0 || c.sndUna != p.conns[0].rcvNxt
	}
	for number := -window; number <= 2*window; number += 8 {
		if guess(wire.TCPRst, number, 0, 0) != (number == 0) {
			t.Errorf("a RST at %d", number)
		}
		if guess(wire.TCPSyn, number, 0, 0) || guess(wire.TCPSyn|wire.TCPAck, number, 0, 0) {
			t.Errorf("a SYN at %d", number)
		}
		if guess(wire.TCPAck, number, 0, 1) != (number >= 0 && number < window) {
			t.Errorf("data at %d", number)
		}
		if guess(wire.TCPAck, number, 1, 1) || guess(wire.TCPAck, number, -0x10000-1, 1) || guess(0, number, 0, 1) {
			t.Errorf("data at %d with an acknowledgment that cannot be", number)
		}
	}
}

// Each connection has its own limit of challenge ACKs: the answers of one connection do not
// change those of another (CVE-2016-5696).
func TestChallengeLimitIsPerConnection(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	tab := p.tabs[1]
	l := tab.listenerFor(makeTuple(AddrPort{Addr: hostB, Port: 80}, AddrPort{}))
	first := p.conns
	p.dial(t, l, Options{})
	second := p.conns
	challenges := func(n int) uint64 {
		before := tab.Count(ChallengeAcks)
		for range n {
			f := p.peer(nil)
			f.fields.Flags, f.fields.Seq = wire.TCPRst, f.fields.Seq+100
			p.attack(f)
		}
		return tab.Count(ChallengeAcks) - before
	}
	if n := challenges(1000); n != challengeBurst {
		t.Errorf("%d challenges", n)
	}
	p.conns = first
	if n := challenges(1000); n != challengeBurst {
		t.Errorf("%d challenges beside a connection that was attacked", n)
	}
	p.now = p.now.add(time.Second)
	if n := challenges(1000); n != 10 {
		t.Errorf("%d challenges after a second", n)
	}
	for _, p.conns = range [][2]*Conn{first, second} {
		p.works(t)
	}
}

// Others attack the same table while a transfer goes on: with tiny segments out of order
// on many connections, which take all memory that they can get; with SYNs; with windows
// that never open. It loses nothing and takes no longer. Only time that passes in the
// network counts here; what an attack costs the processor is bounded elsewhere.
func TestTransferDuringAttacks(t *testing.T) {
	oneGoroutine(t)
	const limit, total = 8 << 20, 2 << 20
	elapsed := map[bool]time.Duration{}
	for _, attacked := range []bool{false, true} {
		w := newWorld(t, 3, [2]Config{{}, {Memory: limit}})
		for i := range w.hosts {
			w.impair(i, linksim.Rule{Delay: 100 * time.Microsecond, Rate: 1e9, Queue: 4 << 20})
		}
		tab := w.hosts[1].tab
		l, err := tab.Listen(AddrPort{Port: 80}, ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		open := func() (c, peer *Conn) {
			c, err := w.hosts[0].tab.Dial(w.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for peer == nil {
				w.step(Never)
				peer = l.Accept()
			}
			return c, peer
		}
		var bad [][2]*Conn
		if attacked {
			for range 100 {
				c, peer := open()
				bad = append(bad, [2]*Conn{c, peer})
			}
		}
		c, peer := open()
		start, next, round := w.now, w.now, 0
		inject := func(f forge) {
			var b [100]byte
			if f.fields.DstPort == 0 {
				f.fields.DstPort = 80
			}
			w.hosts[1].receive(f.put(b[:]))
		}
		sent, got := 0, 0
		text, to := make([]byte, 64<<10), make([]byte, 64<<10)
		for got < total {
			if sent < total {
				n, err := c.Write(w.now, text[:min(len(text), total-sent)])
				if err != nil {
					t.Fatal(err)
				}
				sent += n
			}
			w.step(Never)
			for n := 1; n > 0; got += n {
				n, _ = peer.Read(w.now, to)
			}
			if n := tab.MemoryInUse(); n > limit {
				t.Fatalf("%d bytes in use", n)
			}
			if w.now < next {
				continue
			}
			next = w.now.add(200 * time.Microsecond)
			round++
			for i := range bad {
				p := pair{conns: bad[i], now: w.now}
				f := p.peer([]byte{1})
				if i%2 == 0 {
					f.fields.Seq += uint32(2*round + 1)
				} else { // nothing to it, but it answers
					f = p.peer(nil)
					f.fields.Window = 0
					if bad[i][1].Unacknowledged() == 0 {
						bad[i][1].Write(w.now, text[:4000])
					}
				}
				inject(f)
			}
			if attacked {
				at := seq.New(uint32(round)).Uint32()
				inject(forge{from: AddrPort{Addr: hostA, Port: uint16(1 + round%1000)}, fields: wire.TCPFields{Seq: at, Flags: wire.TCPSyn, Window: 100}})
			}
		}
		elapsed[attacked] = time.Duration(w.now - start)
		if attacked && tab.MemoryInUse() < limit/5 {
			t.Errorf("the attack took only %d bytes", tab.MemoryInUse())
		}
		if n := w.hosts[0].tab.Count(BytesRetransmitted); n > 0 && attacked {
			t.Errorf("%d bytes were sent again", n)
		}
	}
	if elapsed[true] > elapsed[false]*11/10 {
		t.Errorf("the transfer takes %v, and %v during the attacks", elapsed[false], elapsed[true])
	}
}

// Floods from hosts that do not see the connection's segments: the connection works, the memory is
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
	send := func(src wire.Addr, f wire.TCPFields, text int) Result {
		n := 20 + text
		wire.PutTCP(b, &f, 20, wire.Sum(b[20:n], wire.PseudoHeader(src, hostB, wire.ProtocolTCP, uint16(n))))
		return tab.Process(p.now, &Inbound{Src: src, Dst: hostB, Data: b[:n]})
	}
	stranger := func() wire.Addr {
		return wire.AddrFrom4([4]byte{11, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	}
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

	// SYNs from many addresses: the SYN queue fills, then cookies are sent, and a peer that
	// answers its cookie connects.
	for range 50000 {
		send(stranger(), wire.TCPFields{SrcPort: uint16(1 + r.IntN(65535)), DstPort: 80, Seq: r.Uint32(), Flags: wire.TCPSyn, Window: 1000}, 0)
		tab.EmitReply(b)
	}
	if tab.Len() > 1+DefaultSynQueue || tab.MemoryInUse() != 0 || tab.Count(CookiesSent) != 50000-DefaultSynQueue {
		t.Fatalf("%d connections, %d bytes, %d cookies", tab.Len(), tab.MemoryInUse(), tab.Count(CookiesSent))
	}
	for c := tab.Ready; c != nil; c = tab.Ready {
		c.Emit(p.now, b) // their SYN-ACKs go nowhere
	}
	l := tab.listeners[80]
	old := p.conns
	p.dial(t, l, Options{})
	works("through the SYN flood")
	if tab.Count(CookiesAccepted) != 1 {
		t.Error("connected without a cookie")
	}
	p.conns = old

	// ACKs that would be cookies: each is one guess in 2^24 at best.
	for range 20000 {
		send(stranger(), wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: r.Uint32(), Ack: r.Uint32(), Flags: wire.TCPAck}, 0)
	}
	if tab.Count(CookiesAccepted) != 1 {
		t.Error("an ACK was accepted as a cookie")
	}
	works("after guesses at cookies")

	// Everything at the connection itself, from its peer's address.
	before, resets := tab.Count(SegmentsReceived), tab.Count(ResetsSent)
	sent := tab.Count(SegmentsSent)
	for i := range 50000 {
		f := wire.TCPFields{SrcPort: p.conns[0].Local().Port, DstPort: 80, Seq: r.Uint32(), Ack: r.Uint32(),
			Flags: wire.TCPFlags(r.Uint32()), Window: uint16(r.Uint32())}
		if f.Seq == c.rcvNxt.Uint32() {
			continue // one of 2^32: the number is right
		}
		if i%2 == 0 {
			f.Flags = wire.TCPRst | wire.TCPAck
		}
		send(hostA, f, i%60)
		for c := tab.Ready; c != nil; c = tab.Ready {
			c.Emit(p.now, b)
		}
	}
	if tab.Count(ResetsSent) != resets {
		t.Error("a forged segment made us send a RST")
	}
	if tab.Count(AcksLimited) == 0 {
		t.Error("every segment was answered")
	}
	t.Logf("%d segments answered of %d", tab.Count(SegmentsSent)-sent, tab.Count(SegmentsReceived)-before)
	works("after everything at the connection")
}

// A peer that SACKs every second byte does not make the scoreboard larger than its
// bound, and what is ignored is only sent again.
func TestScoreboardIsBounded(t *testing.T) {
	p := newPair(t, Config{}, Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20})
	c, peer := p.conns[0], p.conns[1]
	c.Write(p.now, make([]byte, 10000))
	for p.tabs[0].Ready != nil {
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
		wire.PutTCP(b, &f, 20+n, addSums(sum, wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, uint16(20+n))))
		p.tabs[0].Process(p.now, &Inbound{Src: hostB, Dst: hostA, Data: b[:20+n]})
		for k := 0; p.tabs[0].Ready != nil && k < 5; k++ {
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
