package transport

import (
	"context"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/wire"
)

// flood is floor for full frames: the most that its attachment carries one way.
// Payloads were written before the measurement, but for the workload's header, and
// nobody reads them. A frame that is longer than one of the segment's has several
// descriptors.
type flood struct {
	*floor
	size  int // of a link frame, bytes
	parts int // descriptors each
}

// FloodPayload is the workload's part of a full frame of the MTU.
func FloodPayload(mtu int) int { return mtu - wire.MessageHeaderLen }

func openFlood(ctx context.Context, j workload.Job) (workload.Conn, error) {
	c, err := openFloor(ctx, j)
	if err != nil {
		return nil, err
	}
	f := &flood{floor: c.(*floor), size: floorHeader + j.Size}
	room := int(f.grant.Geometry.FrameSize)
	f.parts = (f.size + room - 1) / room
	return f, nil
}

// stage pushes one frame.
func (f *flood) stage(b []byte) error {
	if f.flying >= floorReclaim {
		f.reclaim()
	}
	for len(f.free) < f.parts || f.flying+f.parts > int(f.sock.Completion.Size()) || int(f.sock.TX.Free()) < f.parts {
		if err := f.kick(); err != nil {
			return err
		}
		f.reclaim()
	}
	left, room := f.size, int(f.grant.Geometry.FrameSize)
	for i := range f.parts {
		addr := f.free[len(f.free)-1]
		f.free = f.free[:len(f.free)-1]
		if i == 0 {
			copy(f.segment[addr+floorHeader:], b[:workload.MinSize])
		}
		d := queues.Desc{Addr: addr, Len: uint32(min(left, room))}
		if left -= room; left > 0 {
			d.Options = queues.Continued
		}
		f.sock.TX.Push(d)
		f.flying++
	}
	return nil
}

func (f *flood) Send(b []byte) error {
	if err := f.stage(b); err != nil {
		return err
	}
	return f.kick()
}

func (f *flood) SendBatch(bs [][]byte) error {
	for _, b := range bs {
		if err := f.stage(b); err != nil {
			return err
		}
	}
	return f.kick()
}

// Recv takes a frame, and the descriptors that it has beside its first.
func (f *flood) Recv() ([]byte, error) {
	var b [1][]byte
	_, err := f.RecvBatch(b[:])
	return b[0], err
}

// RecvBatch lends the first parts of frames.
func (f *flood) RecvBatch(bs [][]byte) (int, error) {
	f.takeBack()
	if _, err := f.look(uint32(f.parts)); err != nil {
		return 0, err
	}
	n, taken, rx := 0, uint32(0), f.sock.RX
	for have := rx.Peek(rx.Size()); n < len(bs) && taken+uint32(f.parts) <= have; n++ {
		bs[n] = f.payload(*rx.At(taken))
		for more := true; more && taken < have; taken++ {
			d := *rx.At(taken)
			more = d.Options&queues.Continued != 0
			f.returning = append(f.returning, d.Addr&f.frameMask)
		}
	}
	rx.Take(taken)
	return n, nil
}

// Reply answers a mark with a frame of its own.
func (f *flood) Reply() error { return f.Send(make([]byte, workload.MinSize)) }
