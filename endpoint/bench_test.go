package endpoint

import (
	"testing"

	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/wire"
)

// loop is an endpoint whose kernel is this test: what is sent is received.
type loop struct {
	*Endpoint
	fill       *queues.Consumer[uint64]
	completion *queues.Producer[uint64]
	rx         *queues.Producer[Desc]
	tx         *queues.Consumer[Desc]
}

func sharedRing[T queues.Entry](n uint32) queues.Shared[T] {
	return queues.Shared[T]{Producer: new(uint32), Consumer: new(uint32), Entries: make([]T, n)}
}

func newLoop(tb testing.TB) *loop {
	geo := Geometry{}.WithDefaults()
	fill, completion := sharedRing[uint64](geo.FillSize), sharedRing[uint64](geo.CompletionSize)
	rx, tx := sharedRing[Desc](geo.RxSize), sharedRing[Desc](geo.TxSize)
	prefill := queues.NewProducer(fill)
	for i := range geo.Prefilled() {
		prefill.Push(uint64(i) * uint64(geo.FrameSize))
	}
	prefill.Submit(geo.Prefilled())
	l := &loop{
		Endpoint: &Endpoint{
			sock: &xsk.Socket{
				Fill: queues.NewProducer(fill), Completion: queues.NewConsumer(completion),
				RX: queues.NewConsumer(rx), TX: queues.NewProducer(tx),
			},
			refillAt: refillBatch, publishAt: refillBatch, reclaimAt: reclaimBatch,
			grant: Grant{Geometry: geo, Identity: Identity{MTU: 1500, LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 1}}},
		},
		fill: queues.NewConsumer(fill), completion: queues.NewProducer(completion),
		rx: queues.NewProducer(rx), tx: queues.NewConsumer(tx),
	}
	l.mem = make([]byte, geo.SegmentSize())
	seg, err := segment.New(l.mem, geo.FrameSize, int(geo.Prefilled()))
	if err != nil {
		tb.Fatal(err)
	}
	l.seg = seg
	return l
}

// kernel moves one frame from TX to RX as AF_XDP in copy mode does, without
// copying more than the headers and 64 bytes.
func (l *loop) kernel() {
	l.sock.TX.Submit(l.sock.TX.Reserved())
	for n := l.tx.Peek(64); n > 0; n-- {
		d := *l.tx.At(0)
		l.tx.Release(1)
		l.fill.Peek(1)
		to := *l.fill.At(0) + 256
		l.fill.Release(1)
		copy(l.mem[to:to+uint64(d.Len)], l.mem[d.Addr:])
		l.rx.Push(Desc{Addr: to, Len: d.Len})
		l.rx.Submit(1)
		l.completion.Push(d.Addr)
		l.completion.Submit(1)
	}
}

// BenchmarkMessage is one 64-byte message written and one received and freed:
// all of unet's work on it, and the pretended kernel's.
func BenchmarkMessage(b *testing.B) {
	l := newLoop(b)
	ch := l.NewChannel(wire.LinkAddr{2, 0, 0, 0, 0, 2}, 2, 1, 1500)
	payload := make([]byte, 64)
	var m [8]Message
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Write(&ch, payload); err != nil {
			b.Fatal(err)
		}
		l.kernel()
		if l.Recv(m[:]) != 1 {
			b.Fatal("nothing received")
		}
		l.Free(&m[0])
	}
}

// BenchmarkPretendedKernel is what of BenchmarkMessage is not unet's.
func BenchmarkPretendedKernel(b *testing.B) {
	l := newLoop(b)
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
