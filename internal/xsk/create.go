//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/queues"
)

// rxHeadroom is the number of bytes between the kernel's own headroom of 256 bytes and the
// beginning of a received packet. It aligns the IP header, which follows 14 bytes of Ethernet
// header, to 16 bytes.
const rxHeadroom = 2

// kernelHeadroom is XDP_PACKET_HEADROOM (linux/bpf.h).
const kernelHeadroom = 256

// rxUnit: newer kernels round the room for a packet in a frame down to a multiple of it, in bytes
// (xsk_pool_get_rx_frame_size, include/net/xdp_sock_drv.h of Linux 7.0 and of later updates of
// older series). They drop longer packets, also where the kernel copies.
const rxUnit = 128

// RxRoom is the length of the longest packet, with its Ethernet header, that can be received
// into one frame of a segment on every kernel. Both are in bytes.
func RxRoom(frameSize uint32) uint32 {
	return (frameSize - kernelHeadroom - rxHeadroom) / rxUnit * rxUnit
}

// Params describe a socket. Sizes must be valid; there are no defaults.
type Params struct {
	Ifindex int    // device to bind to, in the network namespace of the caller's thread
	Queue   uint32 // of that device

	FrameSize      uint32 // bytes, 2048 or 4096
	FrameCount     uint32 // frames in the segment
	FillSize       uint32 // entries, a power of two, as the next three
	CompletionSize uint32
	RxSize         uint32
	TxSize         uint32
	Prefill        uint32 // number of frames, the first of the segment, that are put on the fill ring before bind

	Charge     *Charge // the user for whom the segment's memory is counted; nil: this process's
	ZeroCopy   bool    // the device reads and writes the segment itself, or bind fails; false: the kernel copies
	SG         bool    // packets may span several descriptors
	NeedWakeup bool    // the kernel sets a flag when it needs a kick
}

func (p *Params) segmentSize() int { return int(p.FrameSize) * int(p.FrameCount) }

// What the kernel allocates for a socket and its UMEM, in bytes (net/xdp of Linux 6.18): struct
// xdp_ring before the entries of a ring, struct xdp_buff_xsk for each frame, and a pointer and an
// entry of a page table for each page of the segment.
const (
	ringHead   = 320
	bufferHead = 128
	pageEntry  = 16
	pageSize   = 4096
)

// KernelMemory is the memory that the kernel allocates for the rings, and to describe the frames
// of the segment, in whole pages. It belongs to no user and to no memory cgroup.
func (p *Params) KernelMemory() (bytes int64) {
	const desc, addr = 16, 8 // bytes of an entry
	for _, n := range []int64{
		ringHead + desc*int64(p.RxSize), ringHead + desc*int64(p.TxSize), ringHead + addr*int64(p.FillSize), ringHead + addr*int64(p.CompletionSize),
		desc * int64(p.TxSize), // xsk_buff_pool.tx_descs
		bufferHead * int64(p.FrameCount), pageEntry * int64(p.segmentSize()/pageSize),
	} {
		bytes += (n + pageSize - 1) / pageSize * pageSize
	}
	return bytes
}

func (p *Params) bindFlags() uint16 {
	f := uint16(unix.XDP_COPY)
	if p.ZeroCopy {
		f = unix.XDP_ZEROCOPY
	}
	if p.SG {
		f |= unix.XDP_USE_SG
	}
	if p.NeedWakeup {
		f |= unix.XDP_USE_NEED_WAKEUP
	}
	return f
}

const (
	busyRetry = 5 * time.Millisecond
	busyLimit = 2 * time.Second
)

// kickBudget is the largest number of frames that one system call of a kick moves: the
// largest batch that package stack receives or sends at a time, so that a batch takes one
// call. It also limits the time for which the garbage collector cannot stop the thread
// (ADR 30).
const kickBudget = 64

// Create makes a socket whose UMEM is segment and binds it to a queue of a device: [New] and
// then [Bind].
func Create(p Params, segment *os.File) (*os.File, error) {
	sock, err := New(p, segment)
	if err != nil {
		return nil, err
	}
	if err := Bind(sock, p); err != nil {
		sock.Close()
		return nil, err
	}
	return sock, nil
}

// New makes a socket whose UMEM is segment, to be bound. Afterwards only the returned descriptor
// keeps the socket open: nothing stays mapped in this process, and the caller may close segment.
//
// With a Charge the calling goroutine must be locked to its thread.
func New(p Params, segment *os.File) (*os.File, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	sock := os.NewFile(uintptr(fd), "xsk")
	if err := configure(sock, &p, segment); err != nil {
		sock.Close()
		return nil, err
	}
	return sock, nil
}

func newSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("socket AF_XDP: %w (CAP_NET_RAW is needed)", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		err = errNoAFXDP
	case err != nil:
		err = os.NewSyscallError("socket AF_XDP", err)
	}
	return fd, err
}

func configure(sock *os.File, p *Params, segment *os.File) error {
	fd := int(sock.Fd())
	if err := p.register(sock, segment); err != nil {
		return err
	}
	for _, r := range []struct {
		name string
		opt  int
		size uint32
	}{
		{"XDP_UMEM_FILL_RING", unix.XDP_UMEM_FILL_RING, p.FillSize},
		{"XDP_UMEM_COMPLETION_RING", unix.XDP_UMEM_COMPLETION_RING, p.CompletionSize},
		{"XDP_RX_RING", unix.XDP_RX_RING, p.RxSize},
		{"XDP_TX_RING", unix.XDP_TX_RING, p.TxSize},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, r.opt, int(r.size)); err != nil {
			return fmt.Errorf("setsockopt %s to %d entries: %w", r.name, r.size, err)
		}
	}
	// Since Linux 6.17. Older kernels reject the option, and move 32 frames with each call.
	err := unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, int(min(kickBudget, p.TxSize)))
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINVAL) {
		return os.NewSyscallError("setsockopt XDP_MAX_TX_SKB_BUDGET", err)
	}
	return prefill(fd, p)
}

// register makes the segment the socket's UMEM, counted for this process or for the user of
// p.Charge.
func (p *Params) register(sock, segment *os.File) error {
	if p.Charge != nil && p.Charge.UID != 0 {
		return p.Charge.register(sock, segment, p)
	}
	return registerSegment(int(sock.Fd()), int(segment.Fd()), p.segmentSize(), p.FrameSize)
}

func registerSegment(fd, memory, size int, frameSize uint32) error {
	mem, err := unix.Mmap(memory, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return memoryError("mmap of the segment", err, hugePages(memory))
	}
	defer unix.Munmap(mem)
	if err := registerUMEM(fd, mem, frameSize); err != nil {
		return memoryError("register the segment", err, hugePages(memory))
	}
	return nil
}

// prefill puts the first frames on the fill ring. Without them the socket would drop the
// frames that arrive before its owner attaches.
func prefill(fd int, p *Params) error {
	off, err := sockOffsets(fd)
	if err != nil {
		return err
	}
	mem, shared, err := mapRing[uint64](fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, p.FillSize)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	fill := queues.NewProducer(shared)
	n := fill.Reserve(p.Prefill)
	if n != p.Prefill {
		return fmt.Errorf("fill ring of %d entries cannot take %d frames", p.FillSize, p.Prefill)
	}
	for i := range n {
		*fill.At(i) = uint64(i) * uint64(p.FrameSize)
	}
	fill.Submit(n)
	return nil
}

// Bind binds a socket that [New] has made with the same memory and sizes. It must run in the
// device's network namespace, and that namespace then exists as long as the socket. After an
// error it may be called again, with other flags.
//
// The kernel frees the queue of a closed socket some time later. So Bind repeats a bind
// that fails with EBUSY for up to two seconds, and then returns [ErrQueueBusy].
func Bind(sock *os.File, p Params) error {
	fd := int(sock.Fd())
	addr := &unix.SockaddrXDP{Flags: p.bindFlags(), Ifindex: uint32(p.Ifindex), QueueID: p.Queue}
	for deadline := time.Now().Add(busyLimit); ; time.Sleep(busyRetry) {
		err := unix.Bind(fd, addr)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EBUSY) && time.Now().Before(deadline):
			continue
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("bind to queue %d: %w", p.Queue, ErrQueueBusy)
		case errors.Is(err, unix.EINVAL) && p.SG && !p.ZeroCopy && !sgSupported(fd, &p):
			return errNoSG
		}
		return fmt.Errorf("bind AF_XDP socket to interface %d queue %d: %w", p.Ifindex, p.Queue, err)
	}
}

// sgSupported finds out why bind returned EINVAL: a kernel without scatter-gather accepts
// the same address without the flag. The caller closes the socket.
func sgSupported(fd int, p *Params) bool {
	return unix.Bind(fd, &unix.SockaddrXDP{
		Flags: p.bindFlags() &^ unix.XDP_USE_SG, Ifindex: uint32(p.Ifindex), QueueID: p.Queue,
	}) != nil
}

// ErrNotSupported: every [UnsupportedError] wraps it.
var ErrNotSupported = errors.New("not supported by this kernel")

// ErrQueueBusy: another socket is bound to the queue. Sockets with different UMEMs cannot
// share a queue, so the other one must be closed first.
var ErrQueueBusy = errors.New("queue is bound to another AF_XDP socket")

// ErrHugePages: the system has too few reserved huge pages (vm.nr_hugepages).
var ErrHugePages = errors.New("not enough huge pages of 2 MiB: set more aside (sysctl vm.nr_hugepages), or ask for none")

// UnsupportedError names a missing feature of the kernel and the first version that has it.
type UnsupportedError struct {
	Feature   string
	MinKernel string // major.minor, as in 6.6
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported by this kernel: Linux %s or newer is needed", e.Feature, e.MinKernel)
}

func (e *UnsupportedError) Unwrap() error { return ErrNotSupported }

// Features that a socket may ask for.
var (
	errNoAFXDP = &UnsupportedError{"AF_XDP (CONFIG_XDP_SOCKETS)", "4.18"}
	errNoSG    = &UnsupportedError{"AF_XDP scatter-gather (XDP_USE_SG)", "6.6"}
	errNoRings = &UnsupportedError{"the AF_XDP need-wakeup flag", "5.4"}
)
