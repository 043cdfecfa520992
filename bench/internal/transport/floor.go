package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/wire"
)

// floor is AF_XDP without a stack: the four rings of a granted socket, and frames whose
// headers were written before the measurement began. It checks nothing that it receives,
// does not track who owns a frame, and always spins. No stack over the same attachment can
// be faster.
//
// The first half of the frames receives, the second half sends; frames never
// change sides.
type floor struct {
	sock     *xsk.Socket
	segment  []byte
	grant    *endpoint.Grant
	lease    endpoint.Lease
	deadline time.Time

	frameMask uint64   // clears the offset within a frame
	free      []uint64 // send frames that are not in flight
	inFlight  int      // frames on the TX ring or not yet completed
	returning []uint64 // receive frames to put on the fill ring
	last      queues.Desc
}

const (
	floorHeader  = wire.EthernetHeaderLen + wire.MessageHeaderLen
	floorRefill  = 64 // frames that go back to the fill ring at once
	floorReclaim = 32 // frames in flight at which completions are taken
)

func openFloor(ctx context.Context, j workload.Job, _ func()) (workload.Conn, error) {
	g, lease, err := openGrant(ctx, j, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(j.Local.Tag)}, NoMemoryPaths: true})
	if err != nil {
		return nil, err
	}
	geo := g.Geometry
	sock, err := xsk.Attach(g.XSK, xsk.Params{
		FrameSize:      geo.FrameSize,
		FrameCount:     geo.FrameCount,
		FillSize:       geo.FillSize,
		CompletionSize: geo.CompletionSize,
		RxSize:         geo.RxSize,
		TxSize:         geo.TxSize,
	})
	if err != nil {
		return nil, errors.Join(err, g.Close(), lease.Close())
	}
	segment, err := xsk.MapSegment(g.Segment, int(geo.SegmentSize()))
	if err != nil {
		return nil, errors.Join(err, sock.Close(), g.Segment.Close(), lease.Close())
	}
	f := &floor{
		sock: sock, segment: segment, grant: g, lease: lease,
		frameMask: ^uint64(geo.FrameSize - 1),
		returning: make([]uint64, 0, geo.FrameCount),
	}
	for i := geo.Prefilled(); i < geo.FrameCount; i++ {
		addr := uint64(i) * uint64(geo.FrameSize)
		frame := f.frame(addr, floorHeader)
		wire.PutEthernet(frame, j.Remote.LinkAddr, j.Local.LinkAddr, wire.EtherTypeUNet)
		wire.PutMessage(frame[wire.EthernetHeaderLen:], j.Remote.Tag, j.Local.Tag, j.Size)
		f.free = append(f.free, addr)
	}
	return f, nil
}

func (f *floor) frame(addr uint64, n int) []byte { return f.segment[addr : addr+uint64(n)] }

// reclaim takes completed frames back.
func (f *floor) reclaim() {
	cq := f.sock.Completion
	n := cq.Peek(cq.Size())
	for i := range n {
		f.reclaimFrame(*cq.At(i))
	}
	cq.Release(n)
	f.inFlight -= int(n)
}

// reclaimFrame returns a transmitted frame to the half of the segment that it belongs to:
// Reply sends frames of the receiving half.
func (f *floor) reclaimFrame(addr uint64) {
	addr &= f.frameMask
	if addr < uint64(f.grant.Geometry.Prefilled())*uint64(f.grant.Geometry.FrameSize) {
		f.returning = append(f.returning, addr)
	} else {
		f.free = append(f.free, addr)
	}
}

// refill gives receive frames to the kernel, many at once.
func (f *floor) refill() {
	if len(f.returning) < floorRefill {
		return
	}
	fill := f.sock.Fill
	n := fill.Reserve(uint32(len(f.returning)))
	for i := range n {
		*fill.At(i) = f.returning[i]
	}
	fill.Submit(n)
	f.returning = f.returning[:copy(f.returning, f.returning[n:])]
}

// push puts one frame on the TX ring, without a kick.
func (f *floor) push(d queues.Desc) error {
	for f.inFlight >= int(f.sock.Completion.Size()) || !f.sock.TX.Push(d) {
		if err := f.kick(); err != nil {
			return err
		}
		f.reclaim()
	}
	f.inFlight++
	return nil
}

func (f *floor) kick() error {
	f.sock.TX.Submit(f.sock.TX.Reserved())
	return f.sock.Kick()
}

// stage copies one message behind the headers of a free frame.
func (f *floor) stage(b []byte) error {
	if f.inFlight >= floorReclaim {
		f.reclaim()
	}
	for len(f.free) == 0 {
		if err := f.kick(); err != nil {
			return err
		}
		f.reclaim()
	}
	addr := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	copy(f.segment[addr+floorHeader:], b)
	return f.push(queues.Desc{Addr: addr, Len: uint32(floorHeader + len(b))})
}

func (f *floor) Send(b []byte) error {
	if err := f.stage(b); err != nil {
		return err
	}
	return f.kick()
}

func (f *floor) SendBatch(bs [][]byte) error {
	for _, b := range bs {
		if err := f.stage(b); err != nil {
			return err
		}
	}
	return f.kick()
}

// returnFrames takes back what Recv lent, unless Reply has sent it.
func (f *floor) returnFrames() {
	if f.last.Len != 0 {
		f.returning = append(f.returning, f.last.Addr&f.frameMask)
		f.last = queues.Desc{}
	}
	f.sock.RX.Publish() // here, because the next frame has not arrived yet
	f.refill()
}

// poll spins until a frame has arrived.
func (f *floor) poll(limit uint32) (uint32, error) {
	for polls := 1; ; polls++ {
		if n := f.sock.RX.Peek(limit); n > 0 {
			return n, nil
		}
		if polls%pollsPerClock == 0 && expired(f.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (f *floor) Recv() ([]byte, error) {
	f.returnFrames()
	if _, err := f.poll(1); err != nil {
		return nil, err
	}
	f.last = *f.sock.RX.At(0)
	f.sock.RX.Take(1)
	return f.payload(f.last), nil
}

func (f *floor) RecvBatch(bs [][]byte) (int, error) {
	f.returnFrames()
	n, err := f.poll(uint32(len(bs)))
	if err != nil {
		return 0, err
	}
	for i := range n {
		d := *f.sock.RX.At(i)
		bs[i] = f.payload(d)
		// Lent until the next call, and refill runs only there.
		f.returning = append(f.returning, d.Addr&f.frameMask)
	}
	f.sock.RX.Take(n)
	return int(n), nil
}

// payload is the message in a received frame.
func (f *floor) payload(d queues.Desc) []byte {
	if d.Len < floorHeader {
		return nil
	}
	return f.segment[d.Addr+floorHeader : d.Addr+uint64(d.Len)]
}

// Reply sends the received frame back, with its addresses exchanged in place.
func (f *floor) Reply() error {
	d := f.last
	f.last = queues.Desc{}
	frame := f.segment[d.Addr : d.Addr+uint64(d.Len)]
	swapAddresses(frame)
	if f.inFlight >= floorReclaim {
		f.reclaim()
	}
	if err := f.push(d); err != nil {
		return err
	}
	return f.kick()
}

// swapAddresses exchanges source and destination: two MAC addresses and two tags.
func swapAddresses(frame []byte) {
	src := [6]byte(frame[6:12])
	copy(frame[6:12], frame[0:6])
	copy(frame[0:6], src[:])
	tags := frame[wire.EthernetHeaderLen+4 : floorHeader]
	both := binary.BigEndian.Uint64(tags)
	binary.BigEndian.PutUint64(tags, both<<32|both>>32)
}

func (f *floor) SetDeadline(t time.Time) error { f.deadline = t; return nil }

func (f *floor) Close() error {
	return errors.Join(f.sock.Close(), xsk.UnmapSegment(f.segment), f.grant.Segment.Close(), f.lease.Close())
}

// flood is floor for full frames: the most that its attachment carries one way.
// Only the workload's header of a payload is written and read. A packet that is longer
// than a frame of the segment has several descriptors.
type flood struct {
	*floor
	size  int // of a packet with its Ethernet header, bytes
	parts int // descriptors each
}

// FloodPayload is the payload of a full frame of the MTU, in bytes.
func FloodPayload(mtu int) int { return mtu - wire.MessageHeaderLen }

func openFlood(ctx context.Context, j workload.Job, listening func()) (workload.Conn, error) {
	c, err := openFloor(ctx, j, listening)
	if err != nil {
		return nil, err
	}
	f := &flood{floor: c.(*floor), size: floorHeader + j.Size}
	room := int(f.grant.Geometry.FrameSize)
	f.parts = (f.size + room - 1) / room
	return f, nil
}

// stage pushes one packet.
func (f *flood) stage(b []byte) error {
	if f.inFlight >= floorReclaim {
		f.reclaim()
	}
	for len(f.free) < f.parts || f.inFlight+f.parts > int(f.sock.Completion.Size()) || int(f.sock.TX.Free()) < f.parts {
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
		f.inFlight++
	}
	return nil
}

func (f *flood) Send(b []byte) error { return f.SendBatch([][]byte{b}) }

func (f *flood) SendBatch(bs [][]byte) error {
	for _, b := range bs {
		if err := f.stage(b); err != nil {
			return err
		}
	}
	return f.kick()
}

// Recv takes a packet.
func (f *flood) Recv() ([]byte, error) {
	var b [1][]byte
	_, err := f.RecvBatch(b[:])
	return b[0], err
}

// RecvBatch lends the first frame of each packet.
func (f *flood) RecvBatch(bs [][]byte) (int, error) {
	f.returnFrames()
	if _, err := f.poll(uint32(f.parts)); err != nil {
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
