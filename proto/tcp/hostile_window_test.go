package tcp

import (
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// A peer that plays with its window.

// A window that opens by a byte and closes again, is always tiny, or is now and then
// large for a moment: we send no more segments than come, apart from probes that become
// rarer, and what is queued is bounded.
func TestWindowGames(t *testing.T) {
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
		p.attack(f)
		p.sends(total)
		start := tab.Count(SegmentsSent)
		const rounds = 2000
		for i := range rounds {
			p.now = p.now.add(100 * time.Microsecond)
			f := p.ackUpTo(0)
			if windows[0] == 1 && c.sndMax != c.sndUna { // this one takes what it asks for
				f = p.ackUpTo(1)
			}
			f.fields.Window = windows[i%len(windows)]
			p.attack(f)
			tab.Expire(p.now)
			for c := tab.NextReady(); c != nil; c = tab.NextReady() {
				c.Emit(p.now, p.buf)
			}
			if msg := c.invariant(); msg != "" {
				t.Fatal(msg)
			}
		}
		if n := tab.Count(SegmentsSent) - start; n > rounds+20000/uint64(c.mss)+50 {
			t.Errorf("%s: %d segments for %d", name, n, rounds)
		}
		if n := tab.MemoryInUse(); n > total+2*ChunkSize {
			t.Errorf("%s: %d bytes in use", name, n)
		}
		if c.State() != Established {
			t.Errorf("%s: %v, %v", name, c.State(), c.Err())
		}
	}
}

// A window that never opens is probed ever less often while the peer answers. When the
// owner has gone it ends, answers or not, and its memory is free.
func TestWindowClosedForEver(t *testing.T) {
	p := newPair(t, noOptions, Options{})
	c, tab := p.conns[1], p.tabs[1]
	closed := func() {
		f := p.ackUpTo(0)
		f.fields.Window = 0
		p.attack(f)
	}
	closed()
	p.sends(50_000)
	probes := tab.Count(WindowProbes)
	hour := func() {
		for end := p.now.add(time.Hour); tab.NextDeadline() < end && tab.Len() > 0; {
			p.now = tab.NextDeadline()
			tab.Expire(p.now)
			for c := tab.NextReady(); c != nil; c = tab.NextReady() {
				c.Emit(p.now, p.buf)
			}
			closed()
		}
		p.now = p.now.add(time.Hour)
	}
	hour()
	if n := tab.Count(WindowProbes) - probes; n < 50 || n > 100 || c.State() != Established {
		t.Errorf("%d probes in an hour, %v", n, c.State())
	}
	c.Close(p.now)
	hour()
	if tab.Len() != 0 || tab.MemoryInUse() != 0 {
		t.Errorf("%v, %d bytes in use", c.State(), tab.MemoryInUse())
	}
}

// Text for connections that nobody accepts: each holds no more than what
// its buffer begins with, and the listener no more than its queue of them.
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
		c.Write(p.now, make([]byte, 200_000))
		p.exchange()
	}
	if l.Len() != 16 || tab.Count(AcceptOverflows)+tab.Count(SynDropped) == 0 {
		t.Errorf("%d wait to be accepted", l.Len())
	}
	if n, most := tab.MemoryInUse(), 16*(initialReceiveBuffer+ChunkSize); n > most || n < most/2 {
		t.Errorf("%d bytes in use, at most %d expected", n, most)
	}
	p.works(t)
	c := l.Accept()
	got, to := 0, make([]byte, 1<<20)
	for range 1000 {
		n, _ := c.Read(p.now, to)
		got += n
		p.exchange()
	}
	if got != 200_000 {
		t.Errorf("%d bytes came once it was accepted", got)
	}
	l.Close()
}

// What follows the peer's FIN is counted and answered, and goes nowhere.
func TestTextAfterFin(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	c := p.conns[1]
	f := p.peer(nil)
	f.fields.Flags |= wire.TCPFin
	p.attack(f)
	for i := range 100 {
		f = p.peer(make([]byte, 1000))
		f.fields.Seq += uint32(i) // from the FIN on
		p.attack(f)
	}
	if c.State() != CloseWait || c.Buffered() != 0 || p.tabs[1].MemoryInUse() != 0 || p.tabs[1].Count(TextAfterFin) == 0 {
		t.Errorf("%v, %d bytes to read, %d counted", c.State(), c.Buffered(), p.tabs[1].Count(TextAfterFin))
	}
}

// A packet in parts, whose memory is the heap's, may be much larger than the text that
// it says it has: that is copied out of it, and what is kept is charged in full.
func TestPaddedPackets(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	tab, c := p.tabs[1], p.conns[1]
	deliver := func(text, size int) {
		p.conns[0].Write(p.now, make([]byte, text))
		b := make([]byte, size)
		n := p.conns[0].Emit(p.now, b)
		tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b[:n], Memory: MemoryHeap})
		p.exchange()
	}
	deliver(1000, 60000)
	if n := tab.MemoryInUse(); n != ChunkSize {
		t.Errorf("%d bytes in use for 1000 in a packet of 60000", n)
	}
	c.Read(p.now, make([]byte, 1000))
	deliver(1000, 1500)
	if n := tab.MemoryInUse(); n < 1000 || n > 1500 {
		t.Errorf("%d bytes in use for 1000 in a packet of 1500", n)
	}
	if n, _ := c.Read(p.now, make([]byte, 2000)); n != 1000 || tab.MemoryInUse() != 0 {
		t.Errorf("%d bytes in use when all is read", tab.MemoryInUse())
	}
}
