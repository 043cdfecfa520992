//go:build linux

package datapath

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/wire"
)

// loopback is an endpoint whose rings the test serves in place of the kernel: what is sent is
// received.
type loopback struct {
	*Endpoint
	fill       *queues.Consumer[uint64]
	completion *queues.Producer[uint64]
	rx         *queues.Producer[Desc]
	tx         *queues.Consumer[Desc]
}

func sharedRing[T queues.Entry](n uint32) queues.Shared[T] {
	return queues.Shared[T]{Producer: new(uint32), Consumer: new(uint32), Entries: make([]T, n)}
}

func newLoopback(tb testing.TB, geo endpoint.Geometry) *loopback {
	geo = geo.WithDefaults()
	fill, completion := sharedRing[uint64](geo.FillSize), sharedRing[uint64](geo.CompletionSize)
	rx, tx := sharedRing[Desc](geo.RxSize), sharedRing[Desc](geo.TxSize)
	prefill := queues.NewProducer(fill)
	for i := range geo.Prefilled() {
		prefill.Push(uint64(i) * uint64(geo.FrameSize))
	}
	prefill.Submit(geo.Prefilled())
	l := &loopback{
		Endpoint: &Endpoint{
			sock: &xsk.Socket{
				Fill: queues.NewProducer(fill), Completion: queues.NewConsumer(completion),
				RX: queues.NewConsumer(rx), TX: queues.NewProducer(tx),
			},
			closed: make(chan struct{}),
			grant:  endpoint.Grant{Geometry: geo, Identity: endpoint.Identity{MTU: 1500, LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 1}}},
		},
		fill: queues.NewConsumer(fill), completion: queues.NewProducer(completion),
		rx: queues.NewProducer(rx), tx: queues.NewConsumer(tx),
	}
	l.link = (*socket)(l.Endpoint)
	l.setThresholds()
	l.mem = make([]byte, geo.SegmentSize())
	seg, err := segment.New(l.mem, geo.FrameSize, int(geo.Prefilled()))
	if err != nil {
		tb.Fatal(err)
	}
	l.seg = seg
	return l
}

// kernel moves what was sent to the receive queue, as AF_XDP in copy mode does,
// as long as there is a frame to receive into and room in the rings.
func (l *loopback) kernel() {
	l.sock.TX.Submit(l.sock.TX.Reserved())
	for l.tx.Peek(1) == 1 && l.fill.Peek(1) == 1 && l.rx.Free() > 0 && l.completion.Free() > 0 {
		d, to := *l.tx.At(0), *l.fill.At(0)+256
		l.tx.Release(1)
		l.fill.Release(1)
		copy(l.mem[to:to+uint64(d.Len)], l.mem[d.Addr:])
		l.rx.Push(Desc{Addr: to, Len: d.Len})
		l.rx.Submit(1)
		l.completion.Push(d.Addr)
		l.completion.Submit(1)
	}
}

// TestCompletedFramesRefillTheFillRing: if all free frames are being sent and the fill ring is empty,
// frames whose sends complete go to the fill ring. Otherwise nothing more could be received.
func TestCompletedFramesRefillTheFillRing(t *testing.T) {
	l := newLoopback(t, endpoint.Geometry{FrameCount: 16, FillSize: 2, RxSize: 4, TxSize: 16, CompletionSize: 16})
	ch := l.NewChannel(wire.LinkAddr{2, 0, 0, 0, 0, 2}, 2, 1, 1500)
	var held []Message
	for range 2 { // two messages received and held: the fill ring is empty
		if err := l.Write(&ch, []byte("x")); err != nil {
			t.Fatal(err)
		}
		l.kernel()
		var m [1]Message
		if l.Borrow(m[:]) != 1 {
			t.Fatal("nothing received")
		}
		held = append(held, m[0])
	}
	for l.Write(&ch, []byte("y")) == nil { // all other frames are sent
	}
	l.sock.TX.Submit(l.sock.TX.Reserved())
	for n := l.tx.Peek(64); n > 0; n-- { // the kernel transmits without receiving
		l.completion.Push(l.tx.At(0).Addr)
		l.tx.Release(1)
	}
	l.completion.Submit(l.completion.Reserved())
	l.tidy()
	if got := l.fill.Peek(8); got != 2 {
		t.Fatalf("the kernel has %d frames to receive into, want 2: %v", got, l.Audit())
	}
	l.ReturnBatch(held)
}

// TestMessagesInAllSmallGeometries passes messages through endpoints of every small shape that is
// valid, at random, and checks order, content and that no frame is lost.
func TestMessagesInAllSmallGeometries(t *testing.T) {
	sizes := []uint32{1, 2, 4, 16}
	for _, frames := range []uint32{16, 17, 64} {
		for _, fill := range sizes {
			for _, rx := range sizes {
				for _, tx := range sizes {
					geo := endpoint.Geometry{FrameCount: frames, FillSize: fill, RxSize: rx, TxSize: tx, CompletionSize: tx}
					if err := geo.WithDefaults().Validate(); err != nil {
						t.Fatal(err)
					}
					pass(t, newLoopback(t, geo), rand.New(rand.NewPCG(uint64(frames), uint64(fill<<8|rx<<4|tx))))
				}
			}
		}
	}
}

// pass sends and receives 500 messages, with operations in random order.
func pass(t *testing.T, l *loopback, rng *rand.Rand) {
	t.Helper()
	ch := l.NewChannel(wire.LinkAddr{2, 0, 0, 0, 0, 2}, 2, 1, 1500)
	payload := make([]byte, 8)
	sent, received := uint64(0), uint64(0)
	var held []Message
	for received < 500 {
		switch rng.IntN(4) {
		case 0:
			binary.BigEndian.PutUint64(payload, sent)
			switch err := l.Write(&ch, payload); {
			case err == nil:
				sent++
			case !errors.Is(err, ErrQueueFull) && !errors.Is(err, ErrNoBuffers):
				t.Fatal(err)
			}
		case 1:
			l.kernel()
		case 2:
			m := make([]Message, 1+rng.IntN(8))
			for i := range m[:l.Borrow(m)] {
				if got := binary.BigEndian.Uint64(m[i].Payload()); got != received {
					t.Fatalf("%+v: received message %d, want %d", l.Geometry(), got, received)
				}
				received++
				held = append(held, m[i])
			}
			if len(held) > l.quota() {
				t.Fatalf("%+v: the application holds %d messages, its quota is %d", l.Geometry(), len(held), l.quota())
			}
		case 3:
			n := rng.IntN(len(held) + 1)
			l.ReturnBatch(held[:n])
			held = held[n:]
		}
	}
	l.ReturnBatch(held)
	if a := l.Audit(); a[segment.Application] != 0 || a[segment.Stack] != 0 {
		t.Fatalf("%+v: frames left: %v", l.Geometry(), a)
	}
}

// TestMisusePanics: Borrow into a message that was not returned, and Return of a message that was returned,
// panic.
func TestMisusePanics(t *testing.T) {
	mustPanic := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		f()
	}
	l := newLoopback(t, endpoint.Geometry{})
	ch := l.NewChannel(wire.LinkAddr{2, 0, 0, 0, 0, 2}, 2, 1, 1500)
	var m [1]Message
	for range 2 {
		if err := l.Write(&ch, nil); err != nil {
			t.Fatal(err)
		}
	}
	l.kernel()
	l.Borrow(m[:])
	mustPanic("Borrow into a message that was not returned", func() { l.Borrow(m[:]) })
	l.Return(&m[0])
	mustPanic("returned twice", func() { l.Return(&m[0]) })
}

// TestMalformedFramesAreCounted: each kind of malformed frame is counted and its frame is freed.
func TestMalformedFramesAreCounted(t *testing.T) {
	good := make([]byte, 60)
	wire.PutEthernet(good, wire.LinkAddr{2}, wire.LinkAddr{4}, wire.EtherTypeUNet)
	wire.PutMessage(good[wire.EthernetHeaderLen:], 1, 2, 8)
	change := func(at int, v byte) []byte {
		b := append([]byte(nil), good...)
		b[at] = v
		return b
	}
	for name, c := range map[string]struct {
		frame                 []byte
		malformed, notMessage uint64
	}{
		"truncated Ethernet": {good[:13], 1, 0},
		"truncated header":   {good[:wire.EthernetHeaderLen+5], 1, 0},
		"version":            {change(14, 9), 1, 0},
		"flags":              {change(15, 1), 1, 0},
		"length":             {change(16, 0xff), 1, 0},
		"IPv4":               {change(12, 0x08), 0, 1},
	} {
		l := newLoopback(t, endpoint.Geometry{})
		d, ok := l.Frames().Reserve(0)
		if !ok {
			t.Fatal("no frame")
		}
		d.Len = uint32(copy(l.Frames().Bytes(d), c.frame))
		l.Frames().Send(d)
		l.kernel()
		var m [4]Message
		if n := l.Borrow(m[:]); n != 0 {
			t.Errorf("%s: received %d messages", name, n)
		}
		if l.stats.Malformed != c.malformed || l.stats.NotMessage != c.notMessage {
			t.Errorf("%s: counters %+v", name, l.stats)
		}
		if a := l.Audit(); a[segment.Stack]+a[segment.Application] != 0 {
			t.Errorf("%s: frames left: %v", name, a)
		}
	}
}

// BenchmarkMessage writes one message of 64 bytes, and receives and frees one: this
// package's work and that of the test's kernel.
func BenchmarkMessage(b *testing.B) {
	l := newLoopback(b, endpoint.Geometry{})
	ch := l.NewChannel(wire.LinkAddr{2, 0, 0, 0, 0, 2}, 2, 1, 1500)
	payload := make([]byte, 64)
	var m [8]Message
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Write(&ch, payload); err != nil {
			b.Fatal(err)
		}
		l.kernel()
		if l.Borrow(m[:]) != 1 {
			b.Fatal("nothing received")
		}
		l.Return(&m[0])
	}
}

// BenchmarkTestKernel is the part of the test's kernel in BenchmarkMessage.
func BenchmarkTestKernel(b *testing.B) {
	l := newLoopback(b, endpoint.Geometry{})
	for b.Loop() {
		l.sock.TX.Push(Desc{Len: 90})
		l.kernel()
		l.sock.RX.Peek(1)
		l.sock.RX.Release(1)
		l.sock.Completion.Peek(1)
		l.sock.Completion.Release(1)
		l.sock.Fill.Push(0)
		l.sock.Fill.Submit(1)
	}
}
