package datapath

import (
	"testing"

	"github.com/unet-go/unet/endpoint"
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

func newLoop(tb testing.TB, geo endpoint.Geometry) *loop {
	geo = geo.WithDefaults()
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
			closed: make(chan struct{}),
			grant:  endpoint.Grant{Geometry: geo, Identity: endpoint.Identity{MTU: 1500, LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 1}}},
		},
		fill: queues.NewConsumer(fill), completion: queues.NewProducer(completion),
		rx: queues.NewProducer(rx), tx: queues.NewConsumer(tx),
	}
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
func (l *loop) kernel() {
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
