package datapath

import (
	"encoding/binary"
	"time"

	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/wire"
)

// Frames sends and receives whole link-layer frames on an endpoint. Whoever has reserved or
// borrowed a frame owns it until it sends it or gives it back, exactly once.
type Frames Endpoint

// Frames are the same endpoint for a protocol stack, which has headers of its own.
func (e *Endpoint) Frames() *Frames { return (*Frames)(e) }

// Reserve takes room for a packet of n bytes: Addr is its first byte, Len its size. That is
// a frame, or what PrepareLong has set aside if n is more. It is false when there is none,
// also after completed sends have been taken back.
func (f *Frames) Reserve(n int) (Desc, bool) {
	e := (*Endpoint)(f)
	if n > int(e.seg.FrameSize()) && e.longRoom > 0 {
		return e.reserveLong()
	}
	addr, ok := e.seg.Alloc(segment.Stack)
	if !ok {
		addr, ok = e.allocAgain()
	}
	return Desc{Addr: addr, Len: e.seg.FrameSize()}, ok
}

// Bytes are the bytes that d names.
func (f *Frames) Bytes(d Desc) []byte { return f.seg.Bytes(d.Addr, d.Len) }

// Send stages d, cut to what is to be sent, on the send queue: it leaves with the next Flush.
// When the queue is full it is false, and d stays the caller's.
func (f *Frames) Send(d Desc) bool {
	e := (*Endpoint)(f)
	if e.longRoom > 0 && e.seg.InRun(d.Addr) > 0 {
		return e.sendLong(d)
	}
	if e.outstanding >= e.reclaimAt {
		e.reclaim()
	}
	// The kernel needs a completion entry for every frame that it has sent.
	if e.outstanding >= e.grant.Geometry.CompletionSize || !e.sock.TX.Push(d) {
		e.stats.QueueFull++
		return false
	}
	e.seg.Move(d.Addr, segment.Stack, segment.KernelTransmit)
	e.outstanding++
	return true
}

// Cancel gives back unsent what Reserve has given.
func (f *Frames) Cancel(d Desc) {
	parts := 1
	if f.longRoom > 0 {
		parts = max(1, f.seg.InRun(d.Addr))
	}
	for range parts {
		f.Return(d)
		d.Addr += uint64(f.seg.FrameSize())
	}
}

// Borrow takes the descriptors of received packets, at most packets of
// them and at most len(ds) descriptors, and returns how many descriptors. A
// packet of several is never split between two calls, so ds should have room
// for one (a 64 KiB super-frame has 37 in frames of 2048). The free queue is
// topped up from the pool.
func (f *Frames) Borrow(ds []Desc, packets int) int {
	e := (*Endpoint)(f)
	rx := e.sock.RX
	avail := rx.Peek(uint32(len(ds)))
	n := uint32(0) // descriptors of whole packets
	for i := uint32(0); i < avail && packets > 0; i++ {
		ds[i] = *rx.At(i)
		if ds[i].Options&queues.Continued == 0 {
			n = i + 1
			packets--
		}
	}
	if n == 0 {
		e.tidy()
		return 0
	}
	for i := range n {
		e.seg.Move(ds[i].Addr, segment.KernelReceive, segment.Stack)
	}
	rx.Take(n)
	e.stats.Received += uint64(n)
	e.deficit += n
	if e.deficit >= e.refillAt {
		e.refill()
	}
	if rx.Taken() >= e.publishAt {
		rx.Publish()
	}
	return int(n)
}

// Return gives a borrowed frame back to the pool.
func (f *Frames) Return(d Desc) {
	e := (*Endpoint)(f)
	e.seg.Free(d.Addr, segment.Stack)
	if e.deficit >= e.refillAt {
		e.refill()
	}
}

// superFrame are the first four bytes of the destination MAC address of a received UDP
// super-frame: UNET_SUPER_FRAME in bpf/. The other two are its GSOSize, in host byte order.
const superFrame = 0x01000000

// GSOSize is, for the first descriptor of a received packet, the payload size
// of the datagrams that a UDP super-frame is made of, or 0 for any other packet.
// The mux has put the size in place of the destination MAC address. GSOSize restores
// the address, so it returns the size once.
func (f *Frames) GSOSize(d Desc) uint16 {
	dst := f.seg.Bytes(d.Addr, wire.EthernetHeaderLen)
	if binary.BigEndian.Uint32(dst) != superFrame {
		return 0
	}
	size := nativeEndian.Uint16(dst[4:])
	copy(dst, f.grant.Identity.LinkAddr[:])
	return size
}

// Queued is the number of descriptors that wait in the receive queue.
func (f *Frames) Queued() int { return int(f.sock.RX.Peek(f.sock.RX.Size())) }

// Pending reports whether a received frame waits. It may be called from any
// goroutine until Close. It can be true for no reason after Borrow has
// returned something, and until it has returned nothing.
func (f *Frames) Pending() bool { return f.sock.RX.Pending() > 0 }

// allocAgain takes a frame from the pool after one Alloc has failed.
func (e *Endpoint) allocAgain() (addr uint64, ok bool) {
	e.reclaim()
	if addr, ok = e.seg.Alloc(segment.Stack); !ok {
		e.stats.NoBuffers++
	}
	return addr, ok
}

// Flush submits all staged frames, with one kick. Errors are the
// device's (ENETDOWN, ENXIO): the frames stay queued, and may be sent later. If the lease
// that was given to Attach has ended, the error is its Err.
func (e *Endpoint) Flush() error {
	e.paths.serve()
	return e.link.Flush()
}

// flush is Flush for the socket.
func (e *Endpoint) flush() error {
	n := e.sock.TX.Reserved()
	if n == 0 && e.sock.TX.InFlight() == 0 {
		return nil
	}
	e.sock.TX.Submit(n)
	e.stats.Sent += uint64(n)
	err := e.sock.Kick()
	if err != nil && e.lease != nil {
		if ended := e.lease.Err(); ended != nil {
			return ended
		}
	}
	return err
}

// tidy does what is otherwise done in batches: it hands back slots of the receive queue,
// fills the free queue and takes completions. It is called when there is nothing to
// receive, so that it delays no frame: its stores are to cache lines that another core
// holds, and are slow.
func (e *Endpoint) tidy() {
	if e.sock.RX.Taken() > 0 {
		e.sock.RX.Publish()
	}
	if e.outstanding > 0 {
		e.reclaim()
	}
	if e.deficit > 0 && e.deficit >= e.refillAt/2 {
		e.refill() // now, and not with a frame to be received
	}
	// Frames that the device did not take, and a refill for which the pool was
	// empty, are tried again soon, even if nothing arrives.
	stuck := e.sock.TX.InFlight() > 0
	if stuck {
		e.retryKick()
	}
	if unfinished := stuck || e.deficit >= e.refillAt && e.outstanding > 0; unfinished != e.unfinished.Load() {
		e.unfinished.Store(unfinished)
	}
}

// retryKick kicks for frames that the device has not taken, at most once in a pause. The pause
// begins with 1 us and doubles up to retryInterval, until a kick moves a frame. The next Flush
// reports the error.
func (e *Endpoint) retryKick() {
	now := time.Now()
	if now.Before(e.retryAt) {
		return
	}
	before := e.sock.TX.InFlight()
	if err := e.sock.Kick(); err == nil && e.sock.TX.InFlight() < before {
		e.retryPause = 0
	} else {
		e.retryPause = min(max(2*e.retryPause, time.Microsecond), retryInterval)
	}
	e.retryAt = now.Add(e.retryPause)
}

// refill replaces frames on the fill ring as far as the pool has any.
func (e *Endpoint) refill() {
	n := min(e.deficit, uint32(e.seg.Available()))
	n = e.sock.Fill.Reserve(n)
	for i := range n {
		addr, _ := e.seg.Alloc(segment.KernelReceive)
		*e.sock.Fill.At(i) = addr
	}
	e.sock.Fill.Submit(n)
	e.deficit -= n
	if e.sock.Fill.NeedWakeup() {
		e.sock.KickReceive() // fails when the device is down, and then there is nothing to receive
	}
}

// reclaim takes completed frames back into the pool.
func (e *Endpoint) reclaim() {
	cq := e.sock.Completion
	n := cq.Peek(cq.Size())
	for i := range n {
		e.seg.Free(*cq.At(i), segment.KernelTransmit)
	}
	if n > 0 {
		cq.Release(n)
		e.outstanding -= n
	}
}

// Packets that are longer than a frame are sent in several descriptors (XDP_USE_SG).
// They are composed in one piece, in adjacent frames.

const (
	// longShare: long packets get a quarter of the pool.
	longShare = 4
	maxLong   = 128 // packets
	// maxParts is how many descriptors of one packet every kernel takes: each becomes
	// a fragment of an skb (MAX_SKB_FRAGS, 17).
	maxParts = 17
)

// PrepareLong sets memory aside for packets of up to the uplink's MTU, and returns the
// room that Reserve gives at most from then on, in bytes: 0 if every packet fits a frame, and
// on a socket without scatter-gather, whose MTU does. It is called once, before the
// endpoint is used.
func (f *Frames) PrepareLong() int {
	geo := &f.grant.Geometry
	room := wire.EthernetHeaderLen + int(f.grant.Identity.MTU)
	size := int(geo.FrameSize)
	length := (room + size - 1) / size
	if length < 2 || length > maxParts {
		return 0
	}
	pool := int(geo.FrameCount - geo.Prefilled())
	limit := min(maxLong, pool/longShare/length, int(geo.TxSize)/length, int(geo.CompletionSize)/length)
	if f.seg.MakeRuns(limit, length) > 0 {
		f.longRoom = room
	}
	return f.longRoom
}

// reserveLong takes a run from the pool.
func (e *Endpoint) reserveLong() (Desc, bool) {
	addr, ok := e.seg.AllocRun(segment.Stack)
	if !ok {
		e.reclaim()
		if addr, ok = e.seg.AllocRun(segment.Stack); !ok {
			e.stats.NoBuffers++
			return Desc{}, false
		}
	}
	return Desc{Addr: addr, Len: uint32(e.longRoom)}, true
}

// sendLong stages all of a packet that lies in a run, in several descriptors, or nothing.
// Frames that the packet does not need go back to the pool.
func (e *Endpoint) sendLong(d Desc) bool {
	size := e.seg.FrameSize()
	parts := max(1, (d.Len+size-1)/size)
	e.reclaim() // now: there are few runs
	if e.outstanding+parts > e.grant.Geometry.CompletionSize || e.sock.TX.Free() < parts {
		e.stats.QueueFull++
		return false
	}
	end := d.Addr + uint64(e.seg.InRun(d.Addr))*uint64(size)
	for left := d.Len; parts > 0; parts-- {
		part := Desc{Addr: d.Addr, Len: min(left, size)}
		if parts > 1 {
			part.Options = queues.Continued
		}
		e.sock.TX.Push(part)
		e.seg.Move(part.Addr, segment.Stack, segment.KernelTransmit)
		e.outstanding++
		left -= part.Len
		d.Addr += uint64(size)
	}
	for ; d.Addr < end; d.Addr += uint64(size) {
		e.seg.Free(d.Addr, segment.Stack)
	}
	return true
}
