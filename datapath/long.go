package datapath

import (
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/wire"
)

// Packets that are longer than a frame leave in several descriptors, which the kernel
// takes from a socket with scatter-gather. Their owner composes them in one piece, in
// frames that lie side by side.

const (
	// longShare is what long packets may take of the pool: a quarter.
	longShare = 4
	maxLong   = 128 // packets
	// maxParts is how many descriptors the kernel is sure to take for one packet: they
	// become fragments of an skb (MAX_SKB_FRAGS, 17).
	maxParts = 17
)

// PrepareLong sets memory aside for packets of up to the uplink's MTU, and returns the
// room that AllocLong gives from then on, in bytes: 0 if every packet fits a frame, and
// on a socket without scatter-gather, whose MTU does. It is called once, before the
// endpoint is used.
func (e *Endpoint) PrepareLong() int {
	geo := &e.grant.Geometry
	room := wire.EthernetHeaderLen + int(e.grant.Identity.MTU)
	size := int(geo.FrameSize)
	length := (room + size - 1) / size
	if length < 2 || length > maxParts {
		return 0
	}
	pool := int(geo.FrameCount - geo.Prefilled())
	limit := min(maxLong, pool/longShare/length, int(geo.TxSize)/length, int(geo.CompletionSize)/length)
	if e.seg.MakeRuns(limit, length) > 0 {
		e.longRoom = room
	}
	return e.longRoom
}

// AllocLong takes memory for one packet that is longer than a frame: as many frames
// side by side as the uplink's MTU needs. Addr is its first byte, Len its whole room. It
// is false when there is none.
func (e *Endpoint) AllocLong() (Desc, bool) {
	addr, ok := e.seg.AllocRun(segment.Stack)
	if !ok {
		e.reclaim()
		if addr, ok = e.seg.AllocRun(segment.Stack); !ok {
			e.stats.noBuffers++
			return Desc{}, false
		}
	}
	return Desc{Addr: addr, Len: uint32(e.longRoom)}, true
}

// LongBytes are the bytes of what AllocLong has given, Len of them at most.
func (e *Endpoint) LongBytes(d Desc) []byte { return e.seg.RunBytes(d.Addr)[:d.Len] }

// SendLong is SendFrame for what AllocLong has given, cut to what is to be sent. All of
// it is staged, in several descriptors, or nothing. Frames that the packet does not need
// go back to the pool.
func (e *Endpoint) SendLong(d Desc) bool {
	size := e.seg.FrameSize()
	parts := max(1, (d.Len+size-1)/size)
	e.reclaim() // at once: the packets of a batch wait for few runs
	if e.outstanding+parts > e.grant.Geometry.CompletionSize || e.sock.TX.Free() < parts {
		e.stats.queueFull++
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

// ReleaseLong gives back what AllocLong has given.
func (e *Endpoint) ReleaseLong(d Desc) {
	size := uint64(e.seg.FrameSize())
	for range e.seg.InRun(d.Addr) {
		e.seg.Free(d.Addr, segment.Stack)
		d.Addr += size
	}
}

// IsLong reports whether AllocLong has given what begins at addr.
func (e *Endpoint) IsLong(addr uint64) bool { return e.seg.InRun(addr) > 0 }
