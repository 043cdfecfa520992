package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// outOfOrderInvariant returns what is wrong with the out-of-order queue, or "".
func (c *Conn) outOfOrderInvariant() string {
	q := &c.outOfOrder
	end := c.rcvNxt
	chunks := 0
	for i, r := range q.runs {
		// The first may begin at RCV.NXT for a moment only: memory was used up.
		if r.left.Before(end) || i > 0 && r.left == end {
			return "runs overlap or touch"
		}
		end = r.left
		for b := r.head; b != nil; b = b.next {
			end = end.Add(uint32(len(b.data)))
			chunks++
			if b.kind != chunkBlock || len(b.data) == 0 || (b.next == nil) != (b == r.tail) {
				return "a block of the out-of-order queue is wrong"
			}
		}
		if end != r.right || r.left == r.right {
			return fmt.Sprintf("a run of the out-of-order queue has %d bytes, counted %d", end.From(r.left), r.right.From(r.left))
		}
	}
	if len(q.runs) > maxRuns || chunks != q.chunks || end.After(c.rcvAdv) || q.runs != nil && len(q.runs) == 0 {
		return fmt.Sprintf("out-of-order queue: %d runs, %d chunks, counted %d", len(q.runs), chunks, q.chunks)
	}
	return ""
}

// The out-of-order queue is compared with an array of bytes, for segments in random order: the runs
// are the ranges that have come, each byte has the value that came first, and the run that was
// added to last is the first of q.recent.
func TestOutOfOrderModel(t *testing.T) {
	const window = 20000
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		tab := NewTable(Config{})
		c := &Conn{table: tab, receiver: receiver{rcvNxt: seq.New(^uint32(0) - 5000)}}
		c.rcvAdv = c.rcvNxt.Add(window)
		q := &c.outOfOrder
		var have, known [window]byte
		var mismatches uint64
		for range 300 {
			at := 1 + rnd.IntN(window-1)
			text := make([]byte, 1+rnd.IntN(min(window-at, []int{1, 50, 1460, 9000}[rnd.IntN(4)])))
			for i := range text {
				text[i] = byte(rnd.Uint32())
				if known[at+i] == 0 {
					known[at+i], have[at+i] = 1, text[i]
				} else if have[at+i] != text[i] {
					mismatches++
				}
			}
			q.insert(tab, 1<<20, c.rcvNxt.Add(uint32(at)), text)
			if msg := c.outOfOrderInvariant(); msg != "" {
				t.Fatalf("seed %d: %s", seed, msg)
			}
			next := 0
			for _, r := range q.runs {
				left, right := int(r.left.From(c.rcvNxt)), int(r.right.From(c.rcvNxt))
				var got []byte
				for b := r.head; b != nil; b = b.next {
					got = append(got, b.data...)
				}
				if bytes.IndexByte(known[next:left], 1) >= 0 || bytes.IndexByte(known[left:right], 0) >= 0 || !bytes.Equal(got, have[left:right]) {
					t.Fatalf("seed %d: the run from %d to %d is wrong", seed, left, right)
				}
				next = right
			}
			if bytes.IndexByte(known[next:], 1) >= 0 {
				t.Fatalf("seed %d: bytes after %d are in no run", seed, next)
			}
			if r, ok := q.runAt(q.recent[0]); !ok || !c.rcvNxt.Add(uint32(at)).InWindow(r.left, r.right.From(r.left)) {
				t.Fatalf("seed %d: q.recent does not begin with the run that was added to", seed)
			}
		}
		if n := tab.Count(OverlapMismatch); n != mismatches {
			t.Errorf("seed %d: %d bytes that differ, counted %d", seed, mismatches, n)
		}
		q.clear(tab)
		if tab.MemoryInUse() != 0 {
			t.Errorf("seed %d: %d bytes in use", seed, tab.MemoryInUse())
		}
	}
}

// SegmentSmack (CVE-2018-5390): the work for a tiny segment is bounded, in any order of segments and
// with any number of them in the queue. The queue reads a few blocks besides those that the segment
// covers, and moves its runs once at most.
func TestOutOfOrderCost(t *testing.T) {
	const n = 4000
	orders := map[string]func(i int) int{
		"upward":   func(i int) int { return i },
		"downward": func(i int) int { return n - i },
		"random":   func(i int) int { return i * 1597 % n },
		"inward":   func(i int) int { return []int{i / 2, n - i/2}[i%2] },
	}
	for name, place := range orders {
		tab := NewTable(Config{})
		c := &Conn{table: tab, receiver: receiver{rcvAdv: seq.New(1 << 24)}}
		q := &c.outOfOrder
		insert := func(at, length int) {
			before := q.moved
			q.insert(tab, 6<<20, seq.New(uint32(at)), make([]byte, length))
			if cost := q.moved - before; cost > 2*maxRuns+comparedBlocks {
				t.Fatalf("%s: a segment of %d bytes at %d cost %d steps", name, length, at, cost)
			}
		}
		for i := range n {
			insert(10+2*place(i), 1)
		}
		if len(q.runs) != maxRuns || q.chunks != maxRuns || tab.Count(OutOfOrderFull) != n-maxRuns {
			t.Errorf("%s: %d runs in %d chunks, %d segments dropped", name, len(q.runs), q.chunks, tab.Count(OutOfOrderFull))
		}
		for i := range n {
			insert(11+2*place(i), 1) // the holes are filled
		}
		insert(9, 9000)
		if len(q.runs) != 1 || q.chunks > 3+2 {
			t.Errorf("%s: then %d runs in %d chunks", name, len(q.runs), q.chunks)
		}
		q.clear(tab)
		if tab.MemoryInUse() != 0 {
			t.Errorf("%s: %d bytes in use", name, tab.MemoryInUse())
		}
	}
}

// Random segments overlap, each with other bytes. What is read is compared with a model: each byte in
// the window has the value that came first, and each later value that differs is counted.
func TestOverlappingSegments(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		testOverlaps(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func testOverlaps(t *testing.T, seed uint64) {
	const window = 2048
	rnd := rand.New(rand.NewPCG(seed, 5))
	cfg := noOptions
	cfg.InPlace = 1 + rnd.IntN(100)
	cfg.ReturnFrame = func(uint64) {}
	p := newPair(t, cfg, Options{ReceiveBuffer: window})
	tab, c, peer := p.tabs[1], p.conns[1], p.conns[0]
	first := peer.sndNxt
	var (
		stream, known [1 << 16]byte
		next, edge    = 0, window // RCV.NXT and the right edge, as the peer knows them
		read          int
		mismatches    uint64
	)
	for next < 40000 {
		at := next - 200 + rnd.IntN(600)
		text := make([]byte, 1+rnd.IntN(400))
		for i := range text {
			text[i] = byte(rnd.Uint32())
		}
		// By the letter of section 3.10.7.4 one of its ends must be in the window.
		acceptable := at >= next || at+len(text) <= edge
		for i, b := range text {
			switch n := at + i; {
			case !acceptable, n < next || n >= edge:
			case known[n] == 0:
				stream[n], known[n] = b, 1
			case stream[n] != b:
				mismatches++
			}
		}
		for known[next] == 1 {
			next++
		}
		var post []byte
		if rnd.IntN(2) == 0 {
			post = make([]byte, 1+rnd.IntN(500))
			if !c.Post(p.now, post) {
				post = nil
			}
		}
		b := make([]byte, 20+len(text))
		copy(b[20:], text)
		f := wire.TCPFields{SrcPort: peer.Local().Port, DstPort: 80, Flags: wire.TCPAck, Window: 9000,
			Seq: first.Add(uint32(at)).Uint32(), Ack: peer.rcvNxt.Uint32()}
		wire.PutTCP(b, &f, 20, wire.Sum(b[20:], wire.PseudoHeader(hostA, hostB, wire.ProtocolTCP, uint16(len(b)))))
		tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b, Memory: Memory(rnd.IntN(3)), Frame: 1})
		if msg := c.invariant(); msg != "" {
			t.Fatal(msg)
		}
		check := func(got []byte) {
			if !bytes.Equal(got, stream[read:read+len(got)]) {
				t.Fatalf("the bytes that were read from %d on are wrong", read)
			}
			read += len(got)
		}
		if post != nil {
			check(post[:c.Unpost(p.now)])
		}
		for rnd.IntN(4) > 0 {
			got := make([]byte, 1+rnd.IntN(700))
			n, err := c.Read(p.now, got)
			if err != nil {
				t.Fatal(err)
			}
			check(got[:n])
		}
		for tab.Ready == c {
			b := make([]byte, 100)
			s := view(b[:c.Emit(p.now, b)])
			if got := int(s.Ack - first.Uint32()); got != next {
				t.Fatalf("acknowledges %d, want %d", got, next)
			}
			edge = max(edge, next+int(s.Window))
		}
	}
	if tab.Count(OutOfOrderFull) != 0 || tab.Count(NoMemory) != 0 {
		t.Fatal("a segment was dropped that the model accepts")
	}
	if got := tab.Count(OverlapMismatch); got != mismatches {
		t.Errorf("%d bytes that differ were counted, there were %d", got, mismatches)
	}
	c.Abort()
	if tab.MemoryInUse() != 0 {
		t.Errorf("%d bytes in use", tab.MemoryInUse())
	}
}

// The SACK option after random segments is compared with a model of RFC 2883, section 4: the first
// block is the first part of the segment that had come before, if there is one, and the second is
// the run around it, unless that is acknowledged. Every other block is a run.
func TestDSACKModel(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		p := newPair(t, withSack, Options{})
		tab, c, peer := p.tabs[1], p.conns[1], p.conns[0]
		first := peer.sndNxt
		var known [1 << 16]bool
		runAround := func(n int) (left, right int) {
			for left = n; left > 0 && known[left-1]; left-- {
			}
			for right = n; known[right]; right++ {
			}
			return left, right
		}
		next := 0
		for range 200 {
			at := max(0, next-300+rnd.IntN(900))
			n := 1 + rnd.IntN(500)
			b := make([]byte, 20+n)
			f := wire.TCPFields{SrcPort: peer.Local().Port, DstPort: 80, Flags: wire.TCPAck, Window: 9000,
				Seq: first.Add(uint32(at)).Uint32(), Ack: peer.rcvNxt.Uint32()}
			wire.PutTCP(b, &f, 20, wire.PseudoHeader(hostA, hostB, wire.ProtocolTCP, uint16(len(b))))
			tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b})
			left, right := 0, 0
			for i := at; i < at+n; i++ {
				if known[i] && (right == 0 || right == i) {
					if right == 0 {
						left = i
					}
					right = i + 1
				}
			}
			for i := at; i < at+n; i++ {
				known[i] = true
			}
			for known[next] {
				next++
			}
			if tab.Ready != c {
				t.Fatalf("seed %d: no ACK", seed)
			}
			ack := make([]byte, 100)
			s := view(ack[:c.Emit(p.now, ack)])
			var o wire.TCPOptions
			s.ReadOptions(&o)
			if got := int(s.Ack - first.Uint32()); got != next {
				t.Fatalf("seed %d: acknowledges %d, want %d", seed, got, next)
			}
			for i, b := range o.SACK[:o.SACKBlocks] {
				l, r := int(b.Left-first.Uint32()), int(b.Right-first.Uint32())
				wantL, wantR := runAround(l)
				switch {
				case i == 0 && right > 0:
					wantL, wantR = left, right
				case i == 1 && right > next:
					wantL, wantR = runAround(left)
				case r <= next:
					t.Fatalf("seed %d: block %d is %d to %d, and all before %d is acknowledged", seed, i, l, r, next)
				}
				if l != wantL || r != wantR {
					t.Fatalf("seed %d: block %d is %d to %d, want %d to %d", seed, i, l, r, wantL, wantR)
				}
			}
			if right > 0 && o.SACKBlocks == 0 || right > next && o.SACKBlocks < 2 {
				t.Fatalf("seed %d: only %d blocks after %d to %d came twice", seed, o.SACKBlocks, left, right)
			}
			for c.recv.bytes > 0 {
				c.Read(p.now, make([]byte, 4096))
			}
		}
		c.Abort()
	}
}

// A table in every state receives segments of every combination of flags, with numbers left of, at,
// in and right of the windows, with and without data. What it sends, what can be read, and its state
// are compared with the oracle. Each irregular segment is in a counter.
func TestEverySegmentInEveryState(t *testing.T) {
	for _, m := range []struct {
		name    string
		passive bool // the connection began in a listener, which is closed
		stamp   stamp
	}{
		{"active", false, notAgreed},
		{"passive", true, notAgreed},
		{"good timestamp", false, goodStamp},
		{"old timestamp", true, oldStamp},
		{"no timestamp", false, noStamp},
	} {
		t.Run(m.name, func(t *testing.T) {
			for _, q := range situations {
				passive := strings.Replace(q.script, "dial\nestablished", "listen\nestablished\nunlisten", 1)
				switch {
				case m.passive && m.stamp == notAgreed && passive == q.script:
					continue // the same as active
				case m.stamp != notAgreed && q.state < SynReceived:
					continue // none are agreed on
				case m.passive:
					q.script = passive
				}
				acks := []int{q.una, q.nxt, q.nxt + 1}
				if m.name == "active" {
					acks = []int{q.una - maxWindow - 1, q.una - 1, q.una, q.una + 1, q.una + 5, q.nxt, q.nxt + 1, q.nxt + 100000}
				}
				t.Run(q.name, func(t *testing.T) { testEverySegment(t, q, m.stamp, acks) })
			}
		})
	}
}

func testEverySegment(t *testing.T, q situation, stamp stamp, acks []int) {
	seqs := []int{q.rcvNxt - 1000, q.rcvNxt - 5, q.rcvNxt - 1, q.rcvNxt, q.rcvNxt + 1, q.rcvNxt + 500,
		q.rcvNxt + q.rcvWnd - 1, q.rcvNxt + q.rcvWnd, q.rcvNxt + q.rcvWnd + 100}
	cfg := noOptions
	cfg.NoTimestamps = stamp == notAgreed
	for flags := range wire.TCPFlags(64) {
		for _, n := range seqs {
			for _, a := range acks {
				if flags&wire.TCPAck == 0 && a != acks[0] {
					continue
				}
				for _, text := range []int{0, 1, 20} {
					if stamp != notAgreed && text == 1 {
						continue
					}
					s := incoming{flags, n, a, text, stamp}
					if text == 1 {
						s.flags |= wire.TCPEce | wire.TCPCwr // which have no effect
					}
					r := atSituation(t, q, cfg, stamp != notAgreed)
					r.src = fmt.Sprintf("%v %d:%d ack %d", s.flags, n, text, a)
					r.checkCase(q, s, r.build(s, nil))
				}
			}
		}
	}
}

// atSituation brings a new table into the situation. A peer that is stamped offers timestamps; it
// offers no other option.
func atSituation(t *testing.T, q situation, cfg Config, stamped bool) *runner {
	r := newRunner(t, cfg)
	r.stamped = stamped
	if q.rcvWnd == 0 && q.state == Established {
		r.opts.ReceiveBuffer = 2048
	}
	r.runLines(q.script)
	r.src = q.name
	return r
}

// irregularSegments is the sum of the counters of irregular segments.
func (t *Table) irregularSegments() (n uint64) {
	for c := BadLength; c <= NoMemory; c++ {
		switch c {
		case BadOptions, ResetsSent, ChallengeAcks, AcksLimited, DuplicateAcks, UrgentPointers:
		default:
			n += t.counts[c]
		}
	}
	return n
}

// checkCase receives b, which is the segment s in bytes, and compares the outcome with the oracle.
func (r *runner) checkCase(q situation, s incoming, b []byte) {
	r.t.Helper()
	before := r.bytesRead
	if r.c != nil && q.rcvWnd > 0 {
		before = r.c.Buffered()
	}
	irregular := r.tab.irregularSegments()
	r.process(b)
	r.drain()

	want := oracle(q, s)
	if want.irregular && r.tab.irregularSegments() == irregular {
		r.fatalf("the irregular segment is in no counter")
	}
	if got := r.state(); got != want.state {
		r.fatalf("state %v, want %v", got, want.state)
	}
	if want.flags == 0 {
		if len(r.out) > 0 {
			r.fatalf("sent %s, want nothing", r.describe(r.out[0]))
		}
	} else {
		if len(r.out) != 1 {
			r.fatalf("%d segments sent, want %+v", len(r.out), want)
		}
		got := view(r.out[0])
		wantSeq := r.iss + uint32(want.seq)
		if want.absSeq0 {
			wantSeq = 0
		}
		if got.Flags&^wire.TCPPsh != want.flags || !want.newISS && got.Seq != wantSeq ||
			want.flags&wire.TCPAck != 0 && got.Ack != peerISN+uint32(want.ack) {
			r.fatalf("sent %s, want %+v", r.describe(r.out[0]), want)
		}
	}
	if r.c != nil && q.rcvWnd > 0 {
		if got := r.c.Buffered() - before; got != want.read {
			r.fatalf("%d bytes to read, want %d", got, want.read)
		}
	}
}

// build makes the segment with the initial numbers of this run and these options, or the timestamp
// option of its stamp.
func (r *runner) build(s incoming, options []byte) []byte {
	f := wire.TCPFields{SrcPort: peerPort, DstPort: localPort, Flags: s.flags, Window: maxWindow,
		Seq: peerISN + uint32(s.seq), Ack: r.iss + uint32(s.ack), Urgent: 3}
	if s.stamp == goodStamp || s.stamp == oldStamp {
		options = make([]byte, wire.TCPTimestampsLen)
		wire.PutTCPTimestamps(options, map[stamp]uint32{goodStamp: 501, oldStamp: 499}[s.stamp], 0)
	}
	n := 20 + len(options)
	b := make([]byte, n+s.dataLen)
	copy(b[20:], options)
	for i := range s.dataLen {
		b[n+i] = pattern(1, s.seq+i-1)
	}
	wire.PutTCP(b, &f, n, wire.Sum(b[20:], wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, uint16(len(b)))))
	return b
}
