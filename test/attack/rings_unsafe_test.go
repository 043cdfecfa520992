//go:build linux

package attack

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/queues"
)

// ring is a descriptor ring in memory, without checks, so that a test can write
// invalid values.
type ring[T queues.Entry] struct {
	producer, consumer, flags *uint32
	entries                   []T
	mem                       []byte // the mapping, which holds the socket
}

func (r *ring[T]) at(i uint32) *T { return &r.entries[i&uint32(len(r.entries)-1)] }

func (r *ring[T]) size() uint32 { return uint32(len(r.entries)) }

// pending is how many entries the ring has by its indices.
func (r *ring[T]) pending() uint32 {
	return atomic.LoadUint32(r.producer) - atomic.LoadUint32(r.consumer)
}

func mapRing[T queues.Entry](fd int, pgoff int64, off unix.XDPRingOffset, size uint32) (ring[T], error) {
	var entry T
	mem, err := unix.Mmap(fd, pgoff, int(off.Desc)+int(size)*int(unsafe.Sizeof(entry)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring[T]{}, os.NewSyscallError("mmap of a ring", err)
	}
	base := unsafe.Pointer(unsafe.SliceData(mem))
	return ring[T]{
		producer: (*uint32)(unsafe.Add(base, off.Producer)),
		consumer: (*uint32)(unsafe.Add(base, off.Consumer)),
		flags:    (*uint32)(unsafe.Add(base, off.Flags)),
		entries:  unsafe.Slice((*T)(unsafe.Add(base, off.Desc)), size),
		mem:      mem,
	}, nil
}

// rings are the four of a socket.
type rings struct {
	fill, completion ring[uint64]
	rx, tx           ring[queues.Desc]
}

func mapRings(fd int, g endpoint.Geometry) (r rings, err error) {
	var off unix.XDPMmapOffsets
	if err := getsockopt(fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off)); err != nil {
		return r, os.NewSyscallError("getsockopt XDP_MMAP_OFFSETS", err)
	}
	if r.fill, err = mapRing[uint64](fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, g.FillSize); err != nil {
		return r, err
	}
	if r.completion, err = mapRing[uint64](fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr, g.CompletionSize); err != nil {
		return r, err
	}
	if r.rx, err = mapRing[queues.Desc](fd, unix.XDP_PGOFF_RX_RING, off.Rx, g.RxSize); err != nil {
		return r, err
	}
	r.tx, err = mapRing[queues.Desc](fd, unix.XDP_PGOFF_TX_RING, off.Tx, g.TxSize)
	return r, err
}

// unmapRings unmaps the rings. They must not be used afterwards.
func (r *rings) unmapRings() error {
	var errs []error
	for _, mem := range [][]byte{r.fill.mem, r.completion.mem, r.rx.mem, r.tx.mem} {
		errs = append(errs, unix.Munmap(mem))
	}
	return errors.Join(errs...)
}

// statistics are the kernel's, of a socket.
func statistics(fd int) (st unix.XDPStatistics, err error) {
	err = getsockopt(fd, unix.SOL_XDP, unix.XDP_STATISTICS, unsafe.Pointer(&st), unsafe.Sizeof(st))
	return st, os.NewSyscallError("getsockopt XDP_STATISTICS", err)
}

func getsockopt(fd, level, name int, val unsafe.Pointer, size uintptr) error {
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(val), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setsockopt sets an option of any type.
func setsockopt[T any](fd, level, name int, v T) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// addressOf is where a mapping begins.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// kick is sendto with nothing to send.
func kick(fd int) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// bpf is bpf(2) with an attribute given word by word.
func bpf(cmd uintptr, attr *[16]uint64) (uintptr, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// pathAddress is the address of a path for the kernel. The caller keeps b alive.
func pathAddress(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// socketDrops reads SK_MEMINFO_DROPS, the last word of SO_MEMINFO.
func socketDrops(fd int) (uint64, error) {
	var words [9]uint32
	err := getsockopt(fd, unix.SOL_SOCKET, unix.SO_MEMINFO, unsafe.Pointer(&words), unsafe.Sizeof(words))
	return uint64(words[8]), os.NewSyscallError("getsockopt SO_MEMINFO", err)
}
