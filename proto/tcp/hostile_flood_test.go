package tcp

import (
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Whatever a single segment is, and whoever it is for, it is answered with one at most,
// of no more than a header, and takes no memory: nobody can have us flood another.
func TestNoAmplification(t *testing.T) {
	for flags := range wire.TCPFlags(64) {
		for name, port := range map[string]uint16{"nobody": 9, "listener": 80, "connection": 80} {
			p := newPair(t, Config{}, Options{})
			c, tab := p.conns[1], p.tabs[1]
			for _, offset := range []uint32{0, 1, 1000, 1 << 20, 1 << 31} {
				for _, text := range []int{0, 1, 1000} {
					if c.State() != Established {
						continue // it was killed with the right number, or has closed
					}
					f := p.peer(make([]byte, text))
					if name != "connection" {
						f.from = AddrPort{Addr: [4]byte{10, 9, 9, 9}, Port: 1000}
					} else if offset == 0 {
						continue // that is the peer
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

// What a stranger must guess: for a RST the one right number, for text a number in the
// window and an acknowledgment of what is or was in flight. No SYN does anything.
func TestGuesses(t *testing.T) {
	const window = 2048
	guess := func(flags wire.TCPFlags, number, ack int, text int) (effect bool) {
		p := newPair(t, noOptions, Options{ReceiveBuffer: window})
		c := p.conns[1]
		f := p.peer(make([]byte, text))
		f.fields.Flags = flags
		f.fields.Seq = c.rcvNxt.Add(uint32(number)).Uint32()
		f.fields.Ack = c.sndUna.Add(uint32(ack)).Uint32()
		p.attack(f)
		return c.State() != Established || c.Buffered() > 0 || !c.outOfOrder.empty() || c.sndUna != p.conns[0].rcvNxt
	}
	for number := -window; number <= 2*window; number += 8 {
		if guess(wire.TCPRst, number, 0, 0) != (number == 0) {
			t.Errorf("a RST at %d", number)
		}
		if guess(wire.TCPSyn, number, 0, 0) || guess(wire.TCPSyn|wire.TCPAck, number, 0, 0) {
			t.Errorf("a SYN at %d", number)
		}
		if guess(wire.TCPAck, number, 0, 1) != (number >= 0 && number < window) {
			t.Errorf("text at %d", number)
		}
		if guess(wire.TCPAck, number, 1, 1) || guess(wire.TCPAck, number, -0x10000-1, 1) || guess(0, number, 0, 1) {
			t.Errorf("text at %d with an acknowledgment that cannot be", number)
		}
	}
}

// The limit of challenges is each connection's own. What a stranger has one connection
// answer he cannot read off another (CVE-2016-5696).
func TestChallengesAreNotShared(t *testing.T) {
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
func TestNeighbours(t *testing.T) {
	oneGoroutine(t)
	const limit, total = 8 << 20, 2 << 20
	elapsed := map[bool]time.Duration{}
	for _, attacked := range []bool{false, true} {
		w := newWorld(t, 3, [2]Config{{}, {Memory: limit}})
		for i := range w.hosts {
			w.impair(i, fate.Rule{Delay: 100 * time.Microsecond, Rate: 1e9, Queue: 4 << 20})
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
		t.Errorf("%v, and %v when others are attacked", elapsed[false], elapsed[true])
	}
}
