package xsk

import "golang.org/x/sys/unix"

// Mode is how frames cross between the driver and the segment.
type Mode uint8

const (
	ModeAny      Mode = iota // zero copy where the driver can, else copy
	ModeCopy                 // the kernel copies; works on every device
	ModeZeroCopy             // the device reads and writes the segment itself, or bind fails
)

// rxHeadroom is how far behind the kernel's own 256 bytes of headroom a
// received packet begins. Six bytes: four for the mux's metadata, which so lies
// in the cache line of the headers and not in the one before, which the other
// core has just written too; and two that align the IP header behind 14 bytes of
// Ethernet header.
const rxHeadroom = 6

// kernelHeadroom is XDP_PACKET_HEADROOM (linux/bpf.h).
const kernelHeadroom = 256

// RxRoom is how long a packet may be that is received into one frame of so many
// bytes.
func RxRoom(frameSize uint32) uint32 { return frameSize - kernelHeadroom - rxHeadroom }

// Params describe a socket. Sizes must be valid; nothing is defaulted here.
type Params struct {
	Ifindex int    // device to bind to, in the network namespace of the caller's thread
	Queue   uint32 // of that device

	FrameSize      uint32 // bytes, 2048 or 4096
	FrameCount     uint32 // frames in the segment
	FillSize       uint32 // entries, a power of two, as the next three
	CompletionSize uint32
	RxSize         uint32
	TxSize         uint32
	Prefill        uint32 // frames 0 up to this one are put on the fill ring before bind

	Charge     *Charge // whose memory the segment is; nil: this process's
	Mode       Mode
	SG         bool // packets may span several descriptors
	NeedWakeup bool // the kernel says when it wants a kick
}

func (p *Params) segmentSize() int { return int(p.FrameSize) * int(p.FrameCount) }

func (p *Params) bindFlags() uint16 {
	var f uint16
	switch p.Mode {
	case ModeCopy:
		f |= unix.XDP_COPY
	case ModeZeroCopy:
		f |= unix.XDP_ZEROCOPY
	}
	if p.SG {
		f |= unix.XDP_USE_SG
	}
	if p.NeedWakeup {
		f |= unix.XDP_USE_NEED_WAKEUP
	}
	return f
}
