//go:build linux

package datapath

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/wire"
)

// longLoopback is a loopback of MTU 9000.
func longLoopback(t *testing.T, geo endpoint.Geometry) *loopback {
	t.Helper()
	l := newLoopback(t, geo)
	l.grant.Identity.MTU = 9000
	if room := l.Frames().PrepareLong(); room != 9014 {
		t.Fatalf("room of %d bytes", room)
	}
	return l
}

// TestLongPackets: a packet that was composed in one piece is sent in parts, and all its
// frames are freed.
func TestLongPackets(t *testing.T) {
	for _, size := range []uint32{2048, 4096} {
		l := longLoopback(t, endpoint.Geometry{FrameSize: size, FrameCount: 256})
		r := rand.New(rand.NewPCG(7, uint64(size)))
		for _, n := range []int{1, 14, int(size), int(size) + 1, 2 * int(size), 2*int(size) + 1, 9013, 9014} {
			d, ok := l.Frames().Reserve(9014)
			if !ok {
				t.Fatal("no memory")
			}
			b := l.Frames().Bytes(d)
			if len(b) != 9014 || l.seg.InRun(d.Addr) == 0 {
				t.Fatalf("%d bytes, %d frames in a run", len(b), l.seg.InRun(d.Addr))
			}
			for i := range b[:n] {
				b[i] = byte(r.Uint32())
			}
			want := bytes.Clone(b[:n])
			d.Len = uint32(n)
			if !l.Frames().Send(d) {
				t.Fatalf("%d bytes: Send has not taken the packet", n)
			}
			l.sock.TX.Submit(l.sock.TX.Reserved())
			var got []byte
			parts := l.tx.Peek(64)
			for i := range parts {
				part := *l.tx.At(i)
				got = append(got, l.mem[part.Addr:part.Addr+uint64(part.Len)]...)
				if more := part.Options&queues.Continued != 0; more != (i < parts-1) {
					t.Errorf("%d bytes: part %d of %d has the flag Continued: %v", n, i, parts, more)
				}
				if part.Addr/uint64(size) != (part.Addr+uint64(part.Len)-1)/uint64(size) {
					t.Errorf("%d bytes: part %d leaves its frame", n, i)
				}
				l.completion.Push(part.Addr)
			}
			if want := (n + int(size) - 1) / int(size); int(parts) != want {
				t.Errorf("%d bytes in %d parts, want %d", n, parts, want)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes: the bytes on the TX ring are not those that were composed", n)
			}
			if a := l.Audit(); a[segment.KernelTransmit] != int(parts) || a[segment.Stack] != 0 {
				t.Errorf("%d bytes: %v", n, a)
			}
			l.tx.Release(parts)
			l.completion.Submit(l.completion.Reserved())
			l.tidy()
			if a := l.Audit(); a[segment.Pool] != 128 {
				t.Errorf("%d bytes: frames are missing: %v", n, a)
			}
		}
	}
}

// TestLongPacketsAreSentWholeOrNotAtAll: if there is no room for all parts none is staged,
// and the packet is still the caller's.
func TestLongPacketsAreSentWholeOrNotAtAll(t *testing.T) {
	for _, geo := range []endpoint.Geometry{
		{FrameCount: 128, TxSize: 16, CompletionSize: 64},
		{FrameCount: 128, TxSize: 64, CompletionSize: 16},
	} {
		l := longLoopback(t, geo)
		for range 12 { // of 16: there is room for four parts, and a packet has five
			if d, ok := l.Frames().Reserve(0); !ok || !l.Frames().Send(Desc{Addr: d.Addr, Len: 60}) {
				t.Fatal("no room for a frame")
			}
		}
		d, ok := l.Frames().Reserve(9014)
		if !ok {
			t.Fatal("no memory")
		}
		before := l.Audit()
		if l.Frames().Send(d) {
			t.Fatalf("%+v: Send has taken five parts although there is room for four", geo)
		}
		if staged, after := l.sock.TX.Reserved(), l.Audit(); staged != 12 || after != before {
			t.Errorf("%+v: %d parts are staged of a packet that was not taken: %v", geo, staged-12, after)
		}
		l.sock.TX.Submit(l.sock.TX.Reserved())
		l.tx.Peek(1)
		l.completion.Push(l.tx.At(0).Addr) // the kernel has sent one frame: there is room for five
		l.completion.Submit(1)
		l.tx.Release(1)
		if !l.Frames().Send(d) {
			t.Fatalf("%+v: Send has not taken five parts although there is room", geo)
		}
		released, ok := l.Frames().Reserve(9014)
		if !ok {
			t.Fatal("no memory")
		}
		l.Frames().Cancel(released)
		if a := l.Audit(); a[segment.Stack] != 0 || a[segment.KernelTransmit] != 11+5 {
			t.Errorf("%+v: %v", geo, a)
		}
	}
}

// TestNoMemoryIsSetAsideIfPacketsFitAFrame: an endpoint with an MTU of one frame sets
// nothing aside, nor does one whose segment is too small.
func TestNoMemoryIsSetAsideIfPacketsFitAFrame(t *testing.T) {
	for _, c := range []struct {
		mtu uint32
		geo endpoint.Geometry
	}{
		{1500, endpoint.Geometry{}},
		{2034, endpoint.Geometry{}},
		{4082, endpoint.Geometry{FrameSize: 4096}},
		{9000, endpoint.Geometry{FrameCount: 16}},
		{9000, endpoint.Geometry{TxSize: 4}},
		{65535, endpoint.Geometry{}}, // in more parts than the kernel takes
	} {
		l := newLoopback(t, c.geo)
		l.grant.Identity.MTU = c.mtu
		before := l.Audit()
		if room := l.Frames().PrepareLong(); room != 0 || l.Audit() != before {
			t.Errorf("MTU %d, %+v: room of %d bytes", c.mtu, c.geo, room)
		}
		if d, ok := l.Frames().Reserve(9014); !ok || d.Len != l.Geometry().FrameSize {
			t.Errorf("MTU %d, %+v: Reserve returned %d bytes although none were set aside", c.mtu, c.geo, d.Len)
		}
	}
}

// TestGSOSize: the mark of a super-frame is read once, and the destination address is restored. All other
// frames are as they were sent.
func TestGSOSize(t *testing.T) {
	l := newLoopback(t, endpoint.Geometry{})
	own := l.Identity().LinkAddr
	for _, c := range []struct {
		dst  [6]byte
		want uint16
	}{
		{own, 0},
		{wire.Broadcast, 0},
		{[6]byte{0x33, 0x33, 0xff, 0, 0, 1}, 0},
		{[6]byte{1, 0, 0, 1, 1, 1}, 0},
		{[6]byte{1, 0, 0, 0, 0x12, 0x34}, binary.NativeEndian.Uint16([]byte{0x12, 0x34})},
	} {
		d := Desc{Addr: 258, Len: 60}
		after := c.dst
		if c.want != 0 {
			after = own
		}
		copy(l.Frames().Bytes(d), c.dst[:])
		if got := l.Frames().GSOSize(d); got != c.want || [6]byte(l.Frames().Bytes(d)) != after {
			t.Errorf("%x: size %d, want %d; then to %x, want %x", c.dst, got, c.want, l.Frames().Bytes(d)[:6], after)
		}
		if got := l.Frames().GSOSize(d); got != 0 {
			t.Errorf("%x: size %d at the second call", c.dst, got)
		}
	}
}
