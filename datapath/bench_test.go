package datapath

import (
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// BenchmarkMessage is one 64-byte message written and one received and freed:
// all of unet's work on it, and the pretended kernel's.
func BenchmarkMessage(b *testing.B) {
	l := newLoop(b, endpoint.Geometry{})
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
	l := newLoop(b, endpoint.Geometry{})
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
