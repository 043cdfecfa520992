package tcp

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Any single segment causes one answer at most, and uses no memory but for data out of order: an
// attacker cannot use the host to flood a third one.
func TestNoAmplification(t *testing.T) {
	for flags := range wire.TCPFlags(64) {
		for name, port := range map[string]uint16{"no listener": 9, "listener": 80, "connection": 80} {
			p := newPair(t, Config{}, Options{})
			c, tab := p.conns[1], p.tabs[1]
			for _, offset := range []uint32{0, 1, 1000, 1 << 20, 1 << 31} {
				for _, text := range []int{0, 1, 1000} {
					if c.State() != Established {
						continue // a segment with the right numbers has ended or closed it
					}
					f := p.validSegment(make([]byte, text))
					if name != "connection" {
						f.from = AddrPort{Addr: wire.AddrFrom4([4]byte{10, 9, 9, 9}), Port: 1000}
					} else if offset == 0 {
						continue // the segment is a valid one of the peer
					}
					f.fields.DstPort, f.fields.Flags = port, flags
					f.fields.Seq += offset
					sent := tab.Count(SegmentsSent)
					p.inject(f)
					if n := tab.Count(SegmentsSent) - sent; n > 1 || tab.MemoryInUse() > ChunkSize*int(c.stat.outOfOrder) {
						t.Errorf("%v with %d bytes, %d from the right number, %s: %d answers, %d bytes in use", flags, text, offset, name, n, tab.MemoryInUse())
					}
				}
			}
		}
	}
}

// An attacker who does not see the segments must guess RCV.NXT exactly for a RST, and for data a
// number in the window and an acknowledgment of data that is or was in flight. A SYN changes nothing.
func TestGuessedSequenceNumbers(t *testing.T) {
	const window = 2048
	guess := func(flags wire.TCPFlags, number, ack int, text int) (effect bool) {
		p := newPair(t, noOptions, Options{ReceiveBuffer: window})
		c := p.conns[1]
		f := p.validSegment(make([]byte, text))
		f.fields.Flags = flags
		f.fields.Seq = c.rcvNxt.Add(uint32(number)).Uint32()
		f.fields.Ack = c.sndUna.Add(uint32(ack)).Uint32()
		p.inject(f)
		return c.State() != Established || c.Buffered() > 0 || len(c.outOfOrder.runs) > 0 || c.sndUna != p.conns[0].rcvNxt
	}
	for number := -window; number <= 2*window; number += 8 {
		if guess(wire.TCPRst, number, 0, 0) != (number == 0) {
			t.Errorf("wrong effect of a RST at RCV.NXT%+d", number)
		}
		if guess(wire.TCPSyn, number, 0, 0) || guess(wire.TCPSyn|wire.TCPAck, number, 0, 0) {
			t.Errorf("a SYN at RCV.NXT%+d has an effect", number)
		}
		if guess(wire.TCPAck, number, 0, 1) != (number >= 0 && number < window) {
			t.Errorf("wrong effect of data at RCV.NXT%+d", number)
		}
		if guess(wire.TCPAck, number, 1, 1) || guess(wire.TCPAck, number, -0x10000-1, 1) || guess(0, number, 0, 1) {
			t.Errorf("data at RCV.NXT%+d without a possible acknowledgment has an effect", number)
		}
	}
}

// Each connection has its own limit of challenge ACKs: the answers of one connection do not
// change those of another (CVE-2016-5696).
func TestChallengeLimitIsPerConnection(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	tab := p.tabs[1]
	first := p.conns
	p.dial(t, Options{})
	second := p.conns
	challenges := func(n int) uint64 {
		before := tab.Count(ChallengeAcks)
		for range n {
			f := p.validSegment(nil)
			f.fields.Flags, f.fields.Seq = wire.TCPRst, f.fields.Seq+100
			p.inject(f)
		}
		return tab.Count(ChallengeAcks) - before
	}
	if n := challenges(1000); n != challengeBurst {
		t.Errorf("%d challenge ACKs, want %d", n, challengeBurst)
	}
	p.conns = first
	if n := challenges(1000); n != challengeBurst {
		t.Errorf("%d challenge ACKs after those of another connection, want %d", n, challengeBurst)
	}
	p.now = p.now.add(time.Second)
	if n := challenges(1000); n != 10 {
		t.Errorf("%d challenge ACKs after a second, want 10", n)
	}
	for _, p.conns = range [][2]*Conn{first, second} {
		p.checkDataBothWays(t)
	}
}

// Other peers attack the table during a transfer: with tiny segments out of order on many
// connections, which take as much memory as they get; with SYNs; with windows that never open. The
// transfer loses no data and takes at most a tenth longer. Time is virtual: CPU time does not count.
func TestTransferDuringAttacks(t *testing.T) {
	skipUnderRace(t)
	const limit, total = 8 << 20, 2 << 20
	elapsed := map[bool]time.Duration{}
	for _, attacked := range []bool{false, true} {
		net := newNetwork(t, 3, [2]Config{{}, {Memory: limit}})
		for i := range net.hosts {
			net.impair(i, linksim.Rule{Delay: 100 * time.Microsecond, Rate: 1e9, Queue: 4 << 20})
		}
		tab := net.hosts[1].tab
		l := net.listen(Options{})
		var hostile [][2]*Conn
		if attacked {
			for range 100 {
				c, peer := net.connect(l, Options{})
				hostile = append(hostile, [2]*Conn{c, peer})
			}
		}
		c, peer := net.connect(l, Options{})
		start, next, round := net.now, net.now, 0
		inject := func(f forgedSegment) {
			var b [100]byte
			if f.fields.DstPort == 0 {
				f.fields.DstPort = 80
			}
			net.hosts[1].receive(f.put(b[:]))
		}
		sent, got := 0, 0
		data, to := patternBytes(0, 0, total), make([]byte, 64<<10)
		for got < total {
			if sent < total {
				n, err := c.Write(net.now, data[sent:min(sent+len(to), total)])
				if err != nil {
					t.Fatal(err)
				}
				sent += n
			}
			net.step(Never)
			for n := 1; n > 0; got += n {
				n, _ = peer.Read(net.now, to)
				if !bytes.Equal(to[:n], data[got:got+n]) {
					t.Fatalf("%d bytes from %d on are wrong", n, got)
				}
			}
			if n := tab.MemoryInUse(); n > limit {
				t.Fatalf("%d bytes in use", n)
			}
			if net.now < next {
				continue
			}
			next = net.now.add(200 * time.Microsecond)
			round++
			for i := range hostile {
				p := pair{conns: hostile[i], now: net.now}
				f := p.validSegment([]byte{1})
				if i%2 == 0 {
					f.fields.Seq += uint32(2*round + 1)
				} else { // its window stays closed
					f = p.validSegment(nil)
					f.fields.Window = 0
					if hostile[i][1].Unacknowledged() == 0 {
						hostile[i][1].Write(net.now, make([]byte, 4000))
					}
				}
				inject(f)
			}
			if attacked {
				at := seq.New(uint32(round)).Uint32()
				inject(forgedSegment{from: AddrPort{Addr: hostA, Port: uint16(1 + round%1000)}, fields: wire.TCPFields{Seq: at, Flags: wire.TCPSyn, Window: 100}})
			}
		}
		elapsed[attacked] = time.Duration(net.now - start)
		if attacked && tab.MemoryInUse() < limit/5 {
			t.Errorf("the attack took only %d bytes", tab.MemoryInUse())
		}
		if n := net.hosts[0].tab.Count(BytesRetransmitted); n > 0 && attacked {
			t.Errorf("%d bytes were sent again, which shows that some were lost", n)
		}
	}
	if elapsed[true] > elapsed[false]*11/10 {
		t.Errorf("the transfer takes %v, and %v during the attacks", elapsed[false], elapsed[true])
	}
}

// Floods from hosts that do not see the connection's segments: the connection works, the memory is
// bounded, and every segment that is dropped is in a counter.
func TestFloods(t *testing.T) {
	t.Run("timestamps", func(t *testing.T) { testFloods(t, Config{}) })
	t.Run("bare", func(t *testing.T) { testFloods(t, noOptions) })
}

func testFloods(t *testing.T, cfg Config) {
	p := newPair(t, cfg, Options{})
	tab, c := p.tabs[1], p.conns[1]
	r := rand.New(rand.NewPCG(5, 6))
	b := make([]byte, 80)
	send := func(src wire.Addr, f wire.TCPFields, text int) Result {
		n := 20 + text
		wire.PutTCP(b, &f, 20, wire.Sum(b[20:n], wire.PseudoHeader(src, hostB, wire.ProtocolTCP, uint16(n))))
		return tab.Process(p.now, &Inbound{Src: src, Dst: hostB, Data: b[:n]})
	}
	randomAddr := func() wire.Addr {
		return wire.AddrFrom4([4]byte{11, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	}

	// SYNs from many addresses: the SYN queue fills, then cookies are sent, and a peer that
	// answers its cookie connects.
	for range 50000 {
		send(randomAddr(), wire.TCPFields{SrcPort: uint16(1 + r.IntN(65535)), DstPort: 80, Seq: r.Uint32(), Flags: wire.TCPSyn, Window: 1000}, 0)
		tab.EmitReply(b)
	}
	if tab.Len() > 1+DefaultSynQueue || tab.MemoryInUse() != 0 || tab.Count(CookiesSent) != 50000-DefaultSynQueue {
		t.Fatalf("%d connections, %d bytes, %d cookies", tab.Len(), tab.MemoryInUse(), tab.Count(CookiesSent))
	}
	p.drop(tab) // SYN,ACKs
	old := p.conns
	p.dial(t, Options{})
	p.checkDataBothWays(t)
	if tab.Count(CookiesAccepted) != 1 {
		t.Error("connected without a cookie")
	}
	p.conns = old

	// ACKs that would be cookies: each is one guess in 2^24 at best.
	for range 20000 {
		send(randomAddr(), wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: r.Uint32(), Ack: r.Uint32(), Flags: wire.TCPAck}, 0)
	}
	if tab.Count(CookiesAccepted) != 1 {
		t.Error("an ACK was accepted as a cookie")
	}
	p.checkDataBothWays(t)

	// Random segments from the peer's address to the connection.
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
		irregular := tab.irregularSegments()
		send(hostA, f, i%60)
		p.drop(tab)
		if tab.irregularSegments() == irregular {
			t.Fatalf("segment %d is in no counter: %v seq %d ack %d", i, f.Flags, f.Seq, f.Ack)
		}
	}
	if tab.Count(ResetsSent) != resets {
		t.Error("a forged segment made us send a RST")
	}
	if tab.Count(AcksLimited) == 0 {
		t.Error("every segment was answered")
	}
	t.Logf("%d segments answered of %d", tab.Count(SegmentsSent)-sent, tab.Count(SegmentsReceived)-before)
	p.checkDataBothWays(t)
}

// SACKs of every second byte do not make the scoreboard larger than its bound. Blocks for which there
// is no room are ignored.
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
