package tcp

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// Text in frames: kept while it is queued or borrowed, and released once.
func TestFrames(t *testing.T) {
	var released []uint64
	p := newPair(t, Config{}, Options{})
	tab, c := p.tabs[1], p.conns[1]
	tab.pool.release = func(id uint64) { released = append(released, id) }
	deliver := func(n int, frame uint64, m Memory) Result {
		t.Helper()
		p.conns[0].Write(p.now, bytes.Repeat([]byte{byte(frame)}, n))
		data := make([]byte, 2000)
		data = data[:p.conns[0].Emit(p.now, data)]
		r := tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: data, Frame: frame, Memory: m})
		p.exchange()
		return r
	}
	if !deliver(1000, 1, MemoryFrame).Kept || deliver(100, 2, MemoryFrame).Kept || deliver(1000, 3, MemoryBorrowed).Kept ||
		!deliver(1000, 4, MemoryFrame).Kept || deliver(1000, 5, MemoryHeap).Kept {
		t.Fatal("the wrong frames are kept")
	}
	got := make([]byte, 600)
	if n, _ := c.Read(p.now, got); n != 600 || len(released) != 0 {
		t.Fatalf("read %d, released %v", n, released)
	}
	l, ok := c.Borrow(p.now) // the rest of the first
	if !ok || len(l.Text) != 400 || l.Text[0] != 1 || len(released) != 0 {
		t.Fatalf("borrowed %d, released %v", len(l.Text), released)
	}
	l2, ok := c.Borrow(p.now) // two that were copied
	if !ok || len(l2.Text) != 1100 || l2.Text[99] != 2 || l2.Text[100] != 3 {
		t.Fatalf("borrowed %d", len(l2.Text))
	}
	c.Close(p.now) // with the fourth and fifth unread
	if len(released) != 1 || released[0] != 4 {
		t.Errorf("released %v by Close", released)
	}
	tab.Return(&l)
	tab.Return(&l2)
	if len(released) != 2 || released[1] != 1 || tab.MemoryInUse() != 0 {
		t.Errorf("released %v, %d bytes in use", released, tab.MemoryInUse())
	}
	defer func() {
		if recover() == nil {
			t.Error("returned twice")
		}
	}()
	tab.Return(&l)
}

// When the table's memory is used up, text is dropped and comes again, and a
// writer is told.
func TestNoMemory(t *testing.T) {
	p := newPair(t, Config{Memory: 2 * ChunkSize}, Options{Cork: -1})
	src, dst := p.conns[0], p.conns[1]
	if n, err := src.Write(p.now, make([]byte, 3*ChunkSize)); n != 2*ChunkSize || err != nil {
		t.Fatal(n, err)
	}
	p.exchange()
	if got := dst.Buffered(); got != 2*ChunkSize {
		t.Fatalf("%d bytes came", got)
	}
	src.Write(p.now, make([]byte, 100))
	p.exchange()
	if dst.Buffered() != 2*ChunkSize || p.tabs[1].Count(NoMemory) != 1 || src.Unacknowledged() != 100 {
		t.Fatalf("%d bytes came beyond the memory", dst.Buffered())
	}
	if _, err := dst.Write(p.now, []byte{1}); err != syscall.ENOBUFS {
		t.Fatalf("a write without memory: %v", err)
	}
	dst.Read(p.now, make([]byte, ChunkSize))
	p.now = p.now.add(time.Second)
	p.tabs[0].Expire(p.now)
	p.exchange()
	if dst.Buffered() != ChunkSize+100 {
		t.Errorf("%d bytes after it was sent again", dst.Buffered())
	}
}

// The out-of-order queue takes no more chunks than its bound, whatever the
// segments, and SACK reports nothing that is not there.
func TestOutOfOrderBound(t *testing.T) {
	p := newPair(t, Config{}, Options{ReceiveBuffer: DefaultBuffer})
	c := p.conns[1]
	number := p.conns[0].sndNxt
	for i := range 3000 {
		b := make([]byte, 33)
		b[32] = byte(i)
		s := wire.PutTCPTimestamps(b[20:], p.conns[0].timestamp(p.now), 0)
		f := wire.TCPFields{SrcPort: p.conns[0].Local().Port, DstPort: 80, Seq: number.Add(uint32(2*i + 1)).Uint32(),
			Ack: p.conns[0].rcvNxt.Uint32(), Flags: wire.TCPAck, Window: 100}
		s = wire.Sum(b[32:], s)
		wire.PutTCP(b, &f, 32, addSums(s, wire.PseudoHeader4(hostA, hostB, wire.ProtocolTCP, 33)))
		p.tabs[1].Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b})
		if msg := c.invariant(); msg != "" {
			t.Fatal(msg)
		}
	}
	if limit := oooChunks(DefaultBuffer); c.outOfOrder.chunks != limit || p.tabs[1].MemoryInUse() != limit*ChunkSize {
		t.Errorf("%d chunks, want %d", c.outOfOrder.chunks, limit)
	}
	if p.tabs[1].Count(OutOfOrderFull) == 0 {
		t.Error("not counted")
	}
	c.Abort()
	if p.tabs[1].MemoryInUse() != 0 {
		t.Error("memory left")
	}
}

func TestTimeWaitBound(t *testing.T) {
	p := newPair(t, Config{MaxTimeWaits: 2}, Options{})
	l := p.tabs[1].listenerFor(makeTuple(AddrPort{Addr: hostB, Port: 80}, AddrPort{}))
	for i := range 5 {
		p.conns[0].Close(p.now)
		p.exchange()
		p.conns[1].Close(p.now)
		p.exchange()
		p.now += 1000
		if got := p.tabs[0].TimeWaits(); got != min(i+1, 2) {
			t.Fatalf("%d in TIME-WAIT after %d", got, i+1)
		}
		p.dial(t, l, Options{})
	}
	if got := p.tabs[0].Count(TimeWaitGone); got != 3 {
		t.Errorf("%d counted", got)
	}
}

// On a path that takes next to nothing, SACK blocks still leave room for text.
func TestSackOnTinyPath(t *testing.T) {
	p := newPair(t, Config{}, Options{Cork: -1})
	a, b := p.conns[0], p.conns[1]
	a.SetMTU(p.now, 68)
	b.SetMTU(p.now, 68)
	// Every second segment is lost.
	a.Write(p.now, make([]byte, 160))
	for i := 0; p.tabs[0].NextReady() != nil; i++ {
		if i%2 == 0 {
			a.Emit(p.now, p.buf)
		} else {
			p.carry(0, a)
		}
	}
	if b.Info().OutOfOrder == 0 {
		t.Fatal("nothing out of order")
	}
	b.Write(p.now, make([]byte, 100))
	sent := 0
	for p.tabs[1].NextReady() != nil {
		n := b.Emit(p.now, p.buf)
		if n > 68-20 {
			t.Errorf("a segment of %d bytes", n)
		}
		sent += n - wire.TCP(p.buf[:n]).HeaderLen()
	}
	if sent != 100 {
		t.Errorf("%d bytes sent", sent)
	}
}
