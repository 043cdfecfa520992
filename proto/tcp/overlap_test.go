package tcp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/wire"
)

// TestOverlaps sends segments that overlap at random, each with bytes of its own,
// and holds what is read against a model: of every byte in the window the first
// that came counts, and each that differs from it is counted.
func TestOverlaps(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		overlaps(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func overlaps(t *testing.T, seed uint64) {
	const window = 2048
	rnd := rand.New(rand.NewPCG(seed, 5))
	cfg := noOptions
	cfg.InPlace = 1 + rnd.IntN(100)
	cfg.ReleaseFrame = func(uint64) {}
	p := newPair(t, cfg, Options{ReceiveBuffer: window})
	tab, c, peer := p.tabs[1], p.conns[1], p.conns[0]
	first := peer.sndNxt
	var (
		stream, known [1 << 16]byte
		next, edge    = 0, window // as the peer knows them
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
			if !c.Post(post) {
				post = nil
			}
		}
		b := make([]byte, 20+len(text))
		copy(b[20:], text)
		f := wire.TCPFields{SrcPort: peer.Local().Port, DstPort: 80, Flags: wire.TCPAck, Window: 9000,
			Seq: first.Add(uint32(at)).Uint32(), Ack: peer.rcvNxt.Uint32()}
		wire.PutTCP(b, &f, 20, wire.Sum(b[20:], wire.PseudoHeader4(hostA, hostB, wire.ProtocolTCP, uint16(len(b)))))
		tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b, Memory: Memory(rnd.IntN(3)), Frame: 1})
		if msg := c.invariant(); msg != "" {
			t.Fatal(msg)
		}
		check := func(got []byte) {
			if !bytes.Equal(got, stream[read:read+len(got)]) {
				t.Fatalf("bytes from %d on differ", read)
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
		for tab.NextReady() == c {
			b := make([]byte, 100)
			s := wire.TCP(b[:c.Emit(p.now, b)])
			if got := int(s.Ack() - first.Uint32()); got != next {
				t.Fatalf("acknowledges %d, want %d", got, next)
			}
			edge = max(edge, next+int(s.Window()))
		}
	}
	if tab.Count(OutOfOrderFull) != 0 || tab.Count(NoMemory) != 0 {
		t.Fatal("something was dropped, and the model knows nothing of it")
	}
	if got := tab.Count(OverlapMismatch); got != mismatches {
		t.Errorf("%d bytes that differ were counted, there were %d", got, mismatches)
	}
	c.Abort()
	if tab.MemoryInUse() != 0 {
		t.Errorf("%d bytes in use", tab.MemoryInUse())
	}
}

// TestDuplicatesModel holds the SACK option against RFC 2883, section 4, and a model of
// what has come: the first block is the first part of the segment that had come before,
// if there is one, and the next is the run around it unless that is acknowledged. Every
// other block is a run.
func TestDuplicatesModel(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		p := newPair(t, withSack, Options{})
		tab, c, peer := p.tabs[1], p.conns[1], p.conns[0]
		first := peer.sndNxt
		var known [1 << 16]bool
		run := func(n int) (left, right int) { // that n lies in
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
			wire.PutTCP(b, &f, 20, wire.PseudoHeader4(hostA, hostB, wire.ProtocolTCP, uint16(len(b))))
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
			if tab.NextReady() != c {
				t.Fatalf("seed %d: no ACK", seed)
			}
			ack := make([]byte, 100)
			s := wire.TCP(ack[:c.Emit(p.now, ack)])
			var o wire.TCPOptions
			s.ReadOptions(&o)
			if got := int(s.Ack() - first.Uint32()); got != next {
				t.Fatalf("seed %d: acknowledges %d, want %d", seed, got, next)
			}
			for i, b := range o.SACK[:o.SACKBlocks] {
				l, r := int(b.Left-first.Uint32()), int(b.Right-first.Uint32())
				wantL, wantR := run(l)
				switch {
				case i == 0 && right > 0:
					wantL, wantR = left, right
				case i == 1 && right > next:
					wantL, wantR = run(left)
				case r <= next:
					t.Fatalf("seed %d: block %d is %d to %d, and %d is acknowledged", seed, i, l, r, next)
				}
				if l != wantL || r != wantR {
					t.Fatalf("seed %d: block %d is %d to %d, want %d to %d", seed, i, l, r, wantL, wantR)
				}
			}
			if right > 0 && o.SACKBlocks == 0 || right > next && o.SACKBlocks < 2 {
				t.Fatalf("seed %d: %d blocks, and %d to %d came twice", seed, o.SACKBlocks, left, right)
			}
			for c.recv.bytes > 0 {
				c.Read(p.now, make([]byte, 4096))
			}
		}
		c.Abort()
	}
}
