package tcp

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// Attacks by peers, and by hosts that forge a peer's address. docs/tcp.md, "Hostile peers",
// lists them.

// forgedSegment is a segment to the second host of a pair.
type forgedSegment struct {
	from   AddrPort
	fields wire.TCPFields
	opts   wire.TCPOptions
	text   []byte
}

// put writes the segment into b and returns it.
func (f *forgedSegment) put(b []byte) []byte {
	n, sum := wire.PutTCPOptions(b[20:], &f.opts)
	n += 20
	n += copy(b[n:], f.text)
	sum = wire.Sum(b[n-len(f.text):n], sum)
	f.fields.SrcPort = f.from.Port
	wire.PutTCP(b, &f.fields, n-len(f.text), addSums(sum, wire.PseudoHeader(f.from.Addr, hostB, wire.ProtocolTCP, uint16(n))))
	return b[:n]
}

// inject gives a segment, without another port for port 80, to the second host. What that host
// sends then is dropped.
func (p *pair) inject(f forgedSegment) {
	var b [2000]byte
	tab := p.tabs[1]
	if f.fields.DstPort == 0 {
		f.fields.DstPort = 80
	}
	if tab.Process(p.now, &Inbound{Src: f.from.Addr, Dst: hostB, Data: f.put(b[:])}).Reply {
		tab.EmitReply(b[:])
	}
	p.drop(tab)
}

// validSegment is the next segment of the first host: its sequence number, acknowledgment and
// timestamp are right.
func (p *pair) validSegment(text []byte) forgedSegment {
	c := p.conns[0]
	f := forgedSegment{from: c.Local(), text: text}
	f.fields = wire.TCPFields{Seq: c.sndNxt.Uint32(), Ack: c.rcvNxt.Uint32(), Flags: wire.TCPAck, Window: 1000}
	if c.timestamps {
		f.opts.HasTimestamps, f.opts.TSVal, f.opts.TSEcr = true, c.timestamp(p.now), c.tsRecent
	}
	return f
}

// checkDataBothWays checks that each end of the connection receives data of the other.
func (p *pair) checkDataBothWays(t *testing.T) {
	t.Helper()
	msg, to := []byte("message"), make([]byte, 100)
	for i, c := range p.conns {
		c.Write(p.now, msg)
		p.exchange()
		if n, err := p.conns[1-i].Read(p.now, to); string(to[:n]) != string(msg) || err != nil {
			t.Errorf("read %q, %v", to[:n], err)
		}
		p.exchange()
	}
	if s := p.conns[1].State(); s != Established {
		t.Errorf("state %v", s)
	}
}

// PAWS would drop all segments of the peer after a timestamp from the future. A timestamp is stored
// only if its segment has a valid acknowledgment.
func TestFutureTimestampNeedsValidAck(t *testing.T) {
	for _, flags := range []wire.TCPFlags{0, wire.TCPAck, wire.TCPSyn, wire.TCPSyn | wire.TCPAck, wire.TCPFin, wire.TCPPsh | wire.TCPUrg | wire.TCPAck} {
		p := newPair(t, Config{}, Options{})
		c := p.conns[1]
		for _, text := range []int{0, 1, 1000} {
			f := p.validSegment(make([]byte, text))
			f.fields.Flags = flags
			f.fields.Ack = c.sndMax.Add(1 << 30).Uint32()
			f.opts.TSVal += 1<<31 - 1000
			before := c.tsRecent
			p.inject(f)
			if c.tsRecent != before {
				t.Errorf("%v with %d bytes: TS.Recent rose by %d ms", flags, text, c.tsRecent-before)
			}
		}
		p.checkDataBothWays(t)
	}
}

// LAND attack: the source of the segment is its destination. It is dropped and counted.
func TestLandAttack(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	tab := p.tabs[1]
	for _, flags := range []wire.TCPFlags{wire.TCPSyn, wire.TCPAck, wire.TCPSyn | wire.TCPAck, wire.TCPFin, wire.TCPRst} {
		sent := tab.Count(SegmentsSent)
		p.inject(forgedSegment{from: AddrPort{Addr: hostB, Port: 80}, fields: wire.TCPFields{Flags: flags}})
		if n := tab.Len(); n != 1 || tab.Count(SegmentsSent) != sent {
			t.Errorf("%v: %d connections, %d answers", flags, n, tab.Count(SegmentsSent)-sent)
		}
	}
	if n := tab.Count(BadAddress); n != 5 {
		t.Errorf("counted %d, want 5", n)
	}
	p.checkDataBothWays(t)
}

// The peer's window opens by a byte and closes again, is always a byte, or is large for a moment:
// the host sends a segment for each of the peer's at most, apart from window probes, and the queue is
// bounded.
func TestHostileWindows(t *testing.T) {
	for name, windows := range map[string][]uint16{
		"opens by a byte": {0, 1, 0, 2},
		"always a byte":   {1},
		"shrinks":         {20000, 100, 0, 3000},
		"closed":          {0},
	} {
		p := newPair(t, noOptions, Options{})
		c, tab := p.conns[1], p.tabs[1]
		const total = 100_000
		f := p.ackUpTo(0)
		f.fields.Window = windows[0]
		p.inject(f)
		p.writeAndDrop(total)
		start := tab.Count(SegmentsSent)
		const rounds = 2000
		for i := range rounds {
			p.now = p.now.add(100 * time.Microsecond)
			f := p.ackUpTo(0)
			if windows[0] == 1 && c.sndMax != c.sndUna { // this peer acknowledges the byte
				f = p.ackUpTo(1)
			}
			f.fields.Window = windows[i%len(windows)]
			p.inject(f)
			tab.Expire(p.now)
			p.drop(tab)
			if msg := c.invariant(); msg != "" {
				t.Fatal(msg)
			}
		}
		if n := tab.Count(SegmentsSent) - start; n > rounds+20000/uint64(c.mss)+50 {
			t.Errorf("%s: %d segments sent for %d of the peer", name, n, rounds)
		}
		if n := tab.MemoryInUse(); n > total+2*ChunkSize {
			t.Errorf("%s: %d bytes in use", name, n)
		}
		if c.State() != Established {
			t.Errorf("%s: %v, %v", name, c.State(), c.Err())
		}
	}
}

// A window that never opens is probed at growing intervals, up to a minute. After Close the
// connection ends, although the peer answers, and its memory is free.
func TestWindowClosedForEver(t *testing.T) {
	p := newPair(t, noOptions, Options{})
	c, tab := p.conns[1], p.tabs[1]
	closed := func() {
		f := p.ackUpTo(0)
		f.fields.Window = 0
		p.inject(f)
	}
	closed()
	p.writeAndDrop(50_000)
	probes := tab.Count(WindowProbes)
	hour := func() {
		for end := p.now.add(time.Hour); tab.Deadline < end && tab.Len() > 0; {
			p.now = tab.Deadline
			tab.Expire(p.now)
			p.drop(tab)
			closed()
		}
		p.now = p.now.add(time.Hour)
	}
	hour()
	if n := tab.Count(WindowProbes) - probes; n < 50 || n > 100 || c.State() != Established {
		t.Errorf("%d window probes in an hour, %v", n, c.State())
	}
	c.Close(p.now)
	hour()
	if tab.Len() != 0 || tab.MemoryInUse() != 0 {
		t.Errorf("%v, %d bytes in use", c.State(), tab.MemoryInUse())
	}
}

// Data for connections that are not accepted: each holds no more than its initial receive buffer,
// and there are no more of them than the accept queue has places.
func TestAcceptQueueFlood(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	tab := p.tabs[1]
	l, err := tab.Listen(AddrPort{Port: 81}, ListenOptions{AcceptQueue: 16})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		c, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 81}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.exchange()
		c.Write(p.now, patternBytes(0, 0, 200_000))
		p.exchange()
	}
	if l.Len() != 16 || tab.Count(AcceptOverflows)+tab.Count(SynDropped) == 0 {
		t.Errorf("%d connections wait to be accepted, %d overflows, %d SYNs dropped", l.Len(), tab.Count(AcceptOverflows), tab.Count(SynDropped))
	}
	if n, most := tab.MemoryInUse(), 16*(initialReceiveBuffer+ChunkSize); n > most || n < most/2 {
		t.Errorf("%d bytes in use, want %d to %d", n, most/2, most)
	}
	p.checkDataBothWays(t)
	c := l.Accept()
	got, to := 0, make([]byte, 1<<20)
	for range 1000 {
		n, _ := c.Read(p.now, to)
		checkPattern(t, 0, got, to[:n])
		got += n
		p.exchange()
	}
	if got != 200_000 {
		t.Errorf("read %d bytes of 200000 after Accept", got)
	}
	l.Close()
}

// Data behind the peer's FIN is counted and ignored (RFC 9293, section 3.10.7.4). Only the segment that
// begins before RCV.NXT is answered.
func TestDataAfterFin(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	c, tab := p.conns[1], p.tabs[1]
	f := p.validSegment(nil)
	f.fields.Flags |= wire.TCPFin
	p.inject(f)
	sent := tab.Count(SegmentsSent)
	for i := range 100 {
		f = p.validSegment(make([]byte, 1000))
		f.fields.Seq += uint32(i) // from the FIN on
		p.inject(f)
	}
	if c.State() != CloseWait || c.Buffered() != 0 || tab.MemoryInUse() != 0 || tab.Count(DataAfterFin) == 0 {
		t.Errorf("%v, %d bytes to read, %d counted", c.State(), c.Buffered(), tab.Count(DataAfterFin))
	}
	if n := tab.Count(SegmentsSent) - sent; n != 1 {
		t.Errorf("%d answers to 100 segments, want 1", n)
	}
}

// A reassembled packet is in memory of the heap, which may be much larger than its data. Then the
// data is copied out of it. Otherwise the memory is kept, and all of it counts as in use.
func TestDataInLargeHeapMemoryIsCopied(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	tab, c := p.tabs[1], p.conns[1]
	deliver := func(text, size int) {
		p.conns[0].Write(p.now, patternBytes(0, text, text))
		b := make([]byte, size)
		n := p.conns[0].Emit(p.now, b)
		tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b[:n], Memory: MemoryHeap})
		p.exchange()
	}
	deliver(1000, 60000)
	if n := tab.MemoryInUse(); n != ChunkSize {
		t.Errorf("%d bytes in use for 1000 in memory of 60000", n)
	}
	to := make([]byte, 2000)
	n, _ := c.Read(p.now, to[:1000])
	checkPattern(t, 0, 1000, to[:n])
	deliver(1000, 1500)
	if n := tab.MemoryInUse(); n < 1000 || n > 1500 {
		t.Errorf("%d bytes in use for 1000 in memory of 1500", n)
	}
	n, _ = c.Read(p.now, to)
	checkPattern(t, 0, 1000, to[:n])
	if n != 1000 || tab.MemoryInUse() != 0 {
		t.Errorf("read %d bytes, and %d are in use when all is read", n, tab.MemoryInUse())
	}
}

// Receivers with false acknowledgments: they must not make the host send faster than they
// acknowledge, or do more than a bounded amount of work for an ACK.

// ackUpTo is an ACK of what the second host has sent up to n bytes behind SND.UNA, with
// a large window.
func (p *pair) ackUpTo(n int) forgedSegment {
	f := p.validSegment(nil)
	f.fields.Ack = p.conns[1].sndUna.Add(uint32(n)).Uint32()
	f.fields.Window = 60000
	return f
}

// writeAndDrop writes n bytes at the second host. The segments that it sends at once are dropped.
func (p *pair) writeAndDrop(n int) {
	p.conns[1].Write(p.now, patternBytes(1, 0, n))
	p.drop(p.tabs[1])
}

// receiveAll exchanges segments until the first host has read the n bytes of writeAndDrop.
func (p *pair) receiveAll(t *testing.T, n int) {
	t.Helper()
	to := make([]byte, 1<<16)
	got := 0
	for end := p.now.add(10 * time.Minute); got < n && p.now < end; p.now = p.now.add(10 * time.Millisecond) {
		p.exchange()
		for k := 1; k > 0; got += k {
			k, _ = p.conns[0].Read(p.now, to)
			checkPattern(t, 1, got, to[:k])
		}
		for _, tab := range p.tabs {
			tab.Expire(p.now)
		}
	}
	p.exchange()
	if got != n {
		t.Errorf("%d of %d bytes have come after ten minutes: %+v", got, n, p.conns[1].Info())
	}
}

// Many ACKs for one segment (Savage et al., "TCP congestion control with a misbehaving
// receiver") make the window no larger than one does: bytes are counted (RFC 3465).
func TestAckDivision(t *testing.T) {
	for name, control := range map[string]func(int) Congestion{"CUBIC": NewCubic, "Reno": NewReno} {
		var windows [2]int
		for i, step := range []int{0, 1} {
			p := newPair(t, Config{NewCongestion: control}, Options{SendBuffer: 1 << 20})
			p.writeAndDrop(1 << 20)
			c := p.conns[1]
			flight := int(c.sndMax.From(c.sndUna))
			if step == 0 {
				step = c.mss
			}
			for n := 0; n < flight; n += step {
				p.now = p.now.add(time.Microsecond)
				p.inject(p.ackUpTo(min(step, flight-n)))
			}
			windows[i] = c.window
		}
		if windows[1] > windows[0] {
			t.Errorf("%s: ACKs of segments make a window of %d bytes, ACKs of bytes one of %d", name, windows[0], windows[1])
		}
	}
}

// An ACK of data that has not been sent yet changes nothing, and answers to it are limited.
func TestOptimisticAcks(t *testing.T) {
	p := newPair(t, Config{}, Options{SendBuffer: 1 << 20})
	p.writeAndDrop(1 << 20)
	c, tab := p.conns[1], p.tabs[1]
	before, sent := *c, tab.Count(SegmentsSent)
	flight := int(c.sndMax.From(c.sndUna))
	for i := range 1000 {
		p.inject(p.ackUpTo(flight + 1 + i*1000))
	}
	if c.window != before.window || c.sndUna != before.sndUna || c.sndNxt != before.sndNxt {
		t.Error("an ACK of data that was not sent had an effect")
	}
	if n := tab.Count(SegmentsSent) - sent; n > challengeBurst || tab.Count(AckUnsent) != 1000 {
		t.Errorf("%d answers, %d ACKs counted", n, tab.Count(AckUnsent))
	}
	p.receiveAll(t, 1<<20)
}

// Forged duplicate ACKs without SACK release one segment each at most, and no more than the peer's
// window.
func TestDuplicateAckSpoofing(t *testing.T) {
	p := newPair(t, Config{NoSACK: true, NoTimestamps: true}, Options{SendBuffer: 4 << 20})
	p.writeAndDrop(4 << 20)
	c, tab := p.conns[1], p.tabs[1]
	f := p.ackUpTo(0)
	f.fields.Window = 8000 // scaled: 1 MB
	p.inject(f)
	sent := tab.Count(SegmentsSent)
	for range 5000 {
		p.inject(f)
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
	p.receiveAll(t, 4<<20)
}

// Random SACK blocks, up to three with every ACK: beyond what was sent, before what is acknowledged,
// empty, with the right end before the left, overlapping, of single bytes. The scoreboard keeps its
// bound and its invariants, and all data arrives afterwards.
func TestInvalidSackBlocks(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		p := newPair(t, Config{NoTimestamps: seed%2 == 0}, Options{SendBuffer: 1 << 20})
		const total = 200_000
		p.writeAndDrop(total)
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
			p.inject(f)
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
		p.receiveAll(t, total)
	}
}

// BenchmarkSackWithFullScoreboard is the most expensive ACK: each of its blocks lies at the end of a
// scoreboard that is full, and the last one starts a search for losses.
func BenchmarkSackWithFullScoreboard(b *testing.B) {
	p := newPair(b, Config{}, Options{SendBuffer: 1 << 20})
	p.conns[1].Write(p.now, make([]byte, 1<<20))
	c, tab := p.conns[1], p.tabs[1]
	p.drop(tab)
	flight := int(c.sndMax.From(c.sndUna))
	for i := 1; i < flight && c.board.spans < maxSpans; i += 2 {
		f := p.ackUpTo(0)
		f.opts.SACKBlocks = 1
		at := c.sndUna.Add(uint32(i))
		f.opts.SACK[0] = wire.SACKBlock{Left: at.Uint32(), Right: at.Add(1).Uint32()}
		p.inject(f)
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

// Each retransmission has a time of its own and so needs a span of its own. Here more segments are
// sent again than a scoreboard has spans.
func TestRetransmissionsBeyondScoreboardBound(t *testing.T) {
	const segments = 2 * maxSpans
	p := newPair(t, Config{noPacing: true}, Options{SendBuffer: 8 << 20, MTU: 576})
	c := p.conns[1]
	c.sndWnd, c.window = 8<<20, 8<<20
	c.Write(p.now, make([]byte, segments*c.mss))
	p.drop(p.tabs[1])
	c.leaveOpen(recovering)
	c.complete()
	c.board.lose(&p.tabs[1].spans, c.sndUna)
	c.update(p.now)
	most := 0
	for p.tabs[1].Ready == c {
		p.now += Time(time.Microsecond)
		c.Emit(p.now, p.buf)
		if msg := c.invariant(); msg != "" {
			t.Fatal(msg)
		}
		most = max(most, c.board.spans)
	}
	if c.board.lost != 0 || most < maxSpans {
		t.Errorf("%d bytes still lost, %d spans at most", c.board.lost, most)
	}
}
