package tcp

import (
	"bytes"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// A send queue that was filled and emptied uses the same chunks again.
func TestSendQueueReusesChunks(t *testing.T) {
	var p pool
	p.divide(DefaultMemory, 1)
	var q queue
	b := make([]byte, DefaultMaxSendBuffer)
	if n := testing.AllocsPerRun(3, func() {
		if n := q.write(&p, b); n < len(b) {
			t.Fatalf("wrote %d bytes of %d", n, len(b))
		}
		q.clear(&p)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A frame is kept while its data is queued or borrowed, and is released once.
func TestFramesAreKeptAndReleased(t *testing.T) {
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
	l, ok := c.Borrow(p.now) // the rest of the first frame
	if !ok || len(l.Data) != 400 || l.Data[0] != 1 || len(released) != 0 {
		t.Fatalf("borrowed %d, released %v", len(l.Data), released)
	}
	l2, ok := c.Borrow(p.now) // the second and third, which were copied
	if !ok || len(l2.Data) != 1100 || l2.Data[99] != 2 || l2.Data[100] != 3 {
		t.Fatalf("borrowed %d", len(l2.Data))
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

// When the memory of a table is used up, received data is dropped, which the peer sends again later, and
// Write fails with ENOBUFS.
func TestNoMemory(t *testing.T) {
	p := newPair(t, Config{Memory: 2 * ChunkSize}, Options{Cork: -1})
	src, dst := p.conns[0], p.conns[1]
	data := patternBytes(0, 0, 3*ChunkSize)
	if n, err := src.Write(p.now, data); n != 2*ChunkSize || err != nil {
		t.Fatal(n, err)
	}
	p.exchange()
	if got := dst.Buffered(); got != 2*ChunkSize {
		t.Fatalf("%d bytes came", got)
	}
	src.Write(p.now, data[2*ChunkSize:][:100])
	p.exchange()
	if dst.Buffered() != 2*ChunkSize || p.tabs[1].Count(NoMemory) != 1 || src.Unacknowledged() != 100 {
		t.Fatalf("%d bytes came beyond the memory", dst.Buffered())
	}
	if _, err := dst.Write(p.now, []byte{1}); err != syscall.ENOBUFS {
		t.Fatalf("a write without memory: %v", err)
	}
	to := make([]byte, ChunkSize)
	n, _ := dst.Read(p.now, to)
	checkPattern(t, 0, 0, to[:n])
	p.now = p.now.add(time.Second)
	p.tabs[0].Expire(p.now)
	p.exchange()
	if dst.Buffered() != ChunkSize+100 {
		t.Errorf("%d bytes to read after the retransmission, want %d", dst.Buffered(), ChunkSize+100)
	}
	for got := ChunkSize; dst.Buffered() > 0; got += n {
		n, _ = dst.Read(p.now, to)
		checkPattern(t, 0, got, to[:n])
	}
}

// The out-of-order queue takes no more chunks than its bound, and each SACK block is one of its runs.
func TestOutOfOrderBound(t *testing.T) {
	p := newPair(t, Config{}, Options{ReceiveBuffer: DefaultBuffer})
	c, tab := p.conns[1], p.tabs[1]
	for i := range 3000 { // every second byte
		f := p.validSegment([]byte{byte(i)})
		f.fields.DstPort = 80
		f.fields.Seq += uint32(2*i + 1)
		tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: f.put(make([]byte, 100))})
		if msg := c.invariant(); msg != "" {
			t.Fatal(msg)
		}
		for tab.Ready == c {
			var o wire.TCPOptions
			if !view(p.buf[:c.Emit(p.now, p.buf)]).ReadOptions(&o) || o.SACKBlocks == 0 {
				t.Fatalf("segment %d is answered without SACK", i)
			}
			for _, b := range o.SACK[:o.SACKBlocks] {
				if r, ok := c.outOfOrder.runAt(seq.New(b.Left)); !ok || r.left.Uint32() != b.Left || r.right.Uint32() != b.Right {
					t.Fatalf("segment %d: SACK of %d to %d, which is no run", i, b.Left, b.Right)
				}
			}
		}
	}
	if limit := oooChunks(DefaultBuffer); c.outOfOrder.chunks != limit || p.tabs[1].MemoryInUse() != limit*ChunkSize {
		t.Errorf("%d chunks, want %d", c.outOfOrder.chunks, limit)
	}
	if p.tabs[1].Count(OutOfOrderFull) == 0 {
		t.Error("dropped segments are not counted")
	}
	c.Abort()
	if p.tabs[1].MemoryInUse() != 0 {
		t.Error("memory left")
	}
}

// With MaxTimeWaits records in TIME-WAIT a new one replaces an old one, which is counted.
func TestTimeWaitBound(t *testing.T) {
	p := newPair(t, Config{MaxTimeWaits: 2}, Options{})
	for i := range 5 {
		p.conns[0].Close(p.now)
		p.exchange()
		p.conns[1].Close(p.now)
		p.exchange()
		p.now += 1000
		if got := p.tabs[0].TimeWaits(); got != min(i+1, 2) {
			t.Fatalf("%d in TIME-WAIT after %d", got, i+1)
		}
		p.dial(t, Options{})
	}
	if got := p.tabs[0].Count(TimeWaitGone); got != 3 {
		t.Errorf("%d replaced records counted, want 3", got)
	}
}

// With a very small MTU, SACK blocks still leave room for data.
func TestSackBlocksWithSmallMTU(t *testing.T) {
	p := newPair(t, Config{}, Options{Cork: -1})
	a, b := p.conns[0], p.conns[1]
	a.SetMTU(p.now, 68, false)
	b.SetMTU(p.now, 68, false)
	// Every second segment is lost.
	a.Write(p.now, make([]byte, 160))
	for i := 0; p.tabs[0].Ready != nil; i++ {
		if i%2 == 0 {
			a.Emit(p.now, p.buf)
		} else {
			p.carry(0, a)
		}
	}
	if b.Info().OutOfOrder == 0 {
		t.Fatal("no data is out of order")
	}
	b.Write(p.now, make([]byte, 100))
	sent := 0
	for p.tabs[1].Ready != nil {
		n := b.Emit(p.now, p.buf)
		if n > 68-20 {
			t.Errorf("a segment of %d bytes", n)
		}
		sent += n - (wire.TCPHeaderLen + len(view(p.buf[:n]).Options))
	}
	if sent != 100 {
		t.Errorf("%d bytes of data sent, want 100", sent)
	}
}

// memoryHeld is how much of the table's memory the queues of the connection hold.
func (c *Conn) memoryHeld() int {
	n := c.chunksHeld() * ChunkSize
	for b := c.recv.head; b != nil; b = b.next {
		n += int(b.cost)
	}
	return n
}

// Many connections share too little memory over a bad network, and the applications make random calls.
// After each step MemoryInUse is the sum of what the connections hold and what is borrowed, and at most
// the limit. In the end it is 0.
func TestMemoryModel(t *testing.T) {
	skipUnderRace(t)
	seeds := uint64(12)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 9))
		limit := []int{40 << 10, 200 << 10, 1 << 20}[seed%3]
		net := newNetwork(t, seed, [2]Config{{Memory: limit, InPlace: 200}, {Memory: limit, InPlace: 200}})
		net.hosts[0].memory, net.hosts[1].memory = Memory(seed%3), Memory(2-seed%3)
		for i := range net.hosts {
			net.impair(i, linksim.Rule{Loss: 0.05, Duplicate: 0.02, Delay: 100 * time.Microsecond, Reorder: 0.2, HoldBack: time.Millisecond})
		}
		l := net.listen(Options{})
		var conns [2][]*Conn
		var loans [2][]Loan
		most := [2]int{} // bytes in use, at most, of each host
		check := func() {
			t.Helper()
			for i, h := range net.hosts {
				sum := 0
				for _, c := range conns[i] {
					sum += c.memoryHeld()
				}
				if i == 1 {
					for c := l.accepts.first; c != nil; c = c.waiting.next {
						sum += c.memoryHeld()
					}
					for c := l.syns.first; c != nil; c = c.waiting.next {
						sum += c.memoryHeld()
					}
				}
				for _, loan := range loans[i] {
					if sum += int(loan.block.cost); loan.block.kind == chunkBlock {
						sum += ChunkSize
					}
				}
				used := h.tab.MemoryInUse()
				if sum != used || used > limit || used < 0 {
					net.fatalf("seed %d, host %d: %d bytes in use, held %d of %d", seed, i, used, sum, limit)
				}
				most[i] = max(most[i], used)
			}
		}
		text := make([]byte, 20000)
		for range 6000 {
			if rnd.IntN(100) == 0 && len(conns[0]) < 40 {
				c, err := net.hosts[0].tab.Dial(net.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, Options{})
				if err == nil {
					conns[0] = append(conns[0], c)
				} else if err != syscall.ENOBUFS {
					net.fatalf("%v", err)
				}
			}
			if c := l.Accept(); c != nil {
				conns[1] = append(conns[1], c)
			}
			i := rnd.IntN(2)
			if n := len(conns[i]); n > 0 {
				c := conns[i][rnd.IntN(n)]
				switch rnd.IntN(12) {
				case 0, 1, 2, 3, 4, 5:
					c.Write(net.now, text[:1+rnd.IntN(len(text))]) // it may fail with ENOBUFS or EPIPE
				case 6:
					c.Lend(net.now, text[:1+rnd.IntN(5000)])
				case 7, 8:
					c.Read(net.now, text[:1+rnd.IntN(len(text))])
				case 9:
					if loan, ok := c.Borrow(net.now); ok {
						loans[i] = append(loans[i], loan)
					}
				case 10:
					if len(loans[i]) > 0 {
						net.hosts[i].tab.Return(&loans[i][0])
						loans[i] = loans[i][1:]
					}
				default:
					if rnd.IntN(20) == 0 {
						c.Close(net.now)
					}
				}
			}
			check()
			net.step(net.now.add(time.Duration(rnd.IntN(int(200 * time.Microsecond)))))
			check()
		}
		for i, h := range net.hosts {
			if most[i] < limit/2 {
				t.Errorf("seed %d, host %d: at most %d bytes of %d were in use, want half of them", seed, i, most[i], limit)
			}
			for _, c := range conns[i] {
				c.Abort()
			}
			for k := range loans[i] {
				h.tab.Return(&loans[i][k])
			}
		}
		l.Close()
		for _, h := range net.hosts {
			if n := h.tab.MemoryInUse(); n != 0 || h.tab.outOfOrder.first != nil || h.tab.outOfOrder.last != nil {
				t.Errorf("seed %d: %d bytes in use in the end", seed, n)
			}
		}
	}
}

// fillMemory makes connections that fill the memory of the second host with data that nobody
// reads, until no more is taken.
func (p *pair) fillMemory(t *testing.T, n int) (conns []*Conn) {
	t.Helper()
	old := p.conns
	for range n {
		p.dial(t, Options{SendBuffer: 1 << 20})
		conns = append(conns, p.conns[0])
	}
	for _, c := range conns {
		c.Write(p.now, make([]byte, 1<<20))
		p.exchange()
	}
	for range 200 {
		p.now = p.now.add(time.Millisecond)
		for _, tab := range p.tabs {
			tab.Expire(p.now)
		}
		p.exchange()
	}
	p.conns = old
	return conns
}

// When the memory is used up, a connection with little data in its queues still works and none of its
// segments is dropped. When the reserve is used up too, no connection is opened.
func TestMemoryPressure(t *testing.T) {
	const limit = 2 << 20
	p := newPair(t, Config{}, Options{})
	tab := p.tabs[1]
	tab.pool.divide(limit, 0)
	first := p.conns
	p.dial(t, Options{})
	second := p.conns
	p.conns = first
	p.fillMemory(t, 40)
	if n := tab.MemoryInUse(); n > limit || n < limit/2 {
		t.Fatalf("%d of %d bytes in use", n, limit)
	}
	p.checkDataBothWays(t)
	p.conns = second
	lost := tab.Count(NoMemory)
	to := make([]byte, 1<<20)
	for i := range 50 { // requests and answers of several segments
		data := patternBytes(0, 12000*i, 12000)
		p.conns[0].Write(p.now, data)
		p.exchange()
		if n, err := p.conns[1].Read(p.now, to); !bytes.Equal(to[:n], data) || err != nil {
			t.Fatalf("request %d: read %d bytes, or wrong ones, %v", i, n, err)
		}
		if n, err := p.conns[1].Write(p.now, data); n != len(data) || err != nil {
			t.Fatalf("answer %d: wrote %d bytes, %v", i, n, err)
		}
		p.exchange()
		if n, err := p.conns[0].Read(p.now, to); !bytes.Equal(to[:n], data) || err != nil {
			t.Fatalf("answer %d: read %d bytes, or wrong ones, %v", i, n, err)
		}
		p.exchange()
	}
	if n := tab.Count(NoMemory) - lost; n != 0 {
		t.Errorf("%d segments of a connection with little data were dropped", n)
	}

	// The reserve is used up too.
	used := tab.pool.used
	tab.pool.used = limit
	if _, err := tab.Dial(p.now, AddrPort{Addr: hostB}, AddrPort{Addr: hostA, Port: 1}, Options{}); err != syscall.ENOBUFS {
		t.Errorf("Dial: %v", err)
	}
	n := tab.Len()
	if _, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, Options{}); err != nil {
		t.Fatal(err)
	}
	p.exchange()
	if tab.Len() != n || tab.Count(NotOpened) != 2 {
		t.Errorf("%d connections more, %d refusals counted, want 2", tab.Len()-n, tab.Count(NotOpened))
	}
	tab.pool.used = used
	p.now = p.now.add(2 * time.Second)
	p.tabs[0].Expire(p.now)
	tab.pool.divide(2*limit, 0) // there is memory again
	p.exchange()
	if tab.Len() != n+1 {
		t.Error("the retransmitted SYN has opened no connection")
	}
}

// More than 1 GiB at once can never be lent: EINVAL.
func TestLendTooMuch(t *testing.T) {
	skipUnderRace(t) // the race detector would touch shadow memory of that size
	p := newPair(t, Config{}, Options{})
	if ok, err := p.conns[0].Lend(p.now, make([]byte, maxBuffer+1)); ok || err != syscall.EINVAL {
		t.Errorf("lent %v, %v", ok, err)
	}
	if lent, _ := p.conns[0].Lent(); lent != 0 || p.conns[0].send.bytes != 0 {
		t.Errorf("%d pieces lent, %d bytes queued", lent, p.conns[0].send.bytes)
	}
}
