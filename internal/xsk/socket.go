//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/queues"
)

// Socket is a bound AF_XDP socket with its rings mapped. It is not safe for
// concurrent use, unless the method states it.
type Socket struct {
	Fill       *queues.Producer[uint64]
	Completion *queues.Consumer[uint64]
	RX         *queues.Consumer[queues.Desc]
	TX         *queues.Producer[queues.Desc]

	file  *os.File
	fd    int
	lazy  bool // bound with the need-wakeup flag: the kernel may need no kick
	kicks uint64
	idle  uint64 // of these, those after which the TX ring had as many frames as before
	maps  [][]byte
}

// Attach maps the rings of a bound socket. The sizes and the need-wakeup flag in p are those
// that [Create] got. After a success the Socket owns sock. Attach needs no capability.
func Attach(sock *os.File, p Params) (*Socket, error) {
	s := &Socket{file: sock, fd: int(sock.Fd()), lazy: p.NeedWakeup}
	if err := isXSK(s.fd); err != nil {
		return nil, err
	}
	off, err := sockOffsets(s.fd)
	if err != nil {
		return nil, err
	}
	fill, err1 := keep[uint64](s, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, p.FillSize)
	completion, err2 := keep[uint64](s, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr, p.CompletionSize)
	rx, err3 := keep[queues.Desc](s, unix.XDP_PGOFF_RX_RING, off.Rx, p.RxSize)
	tx, err4 := keep[queues.Desc](s, unix.XDP_PGOFF_TX_RING, off.Tx, p.TxSize)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, errors.Join(err, s.Detach())
	}
	s.Fill = queues.NewProducer(fill)
	s.Completion = queues.NewConsumer(completion)
	s.RX = queues.NewConsumer(rx)
	s.TX = queues.NewProducer(tx)
	return s, nil
}

// keep maps a ring and records the mapping for Detach.
func keep[T queues.Entry](s *Socket, pgoff int64, off unix.XDPRingOffset, size uint32) (queues.Shared[T], error) {
	mem, shared, err := mapRing[T](s.fd, pgoff, off, size)
	if err == nil {
		s.maps = append(s.maps, mem)
	}
	return shared, err
}

// Detach undoes Attach: it unmaps the rings and leaves the descriptor to the
// caller.
func (s *Socket) Detach() error {
	var err error
	for _, m := range s.maps {
		err = errors.Join(err, unix.Munmap(m))
	}
	s.maps = nil
	return err
}

// Close unmaps the rings and closes the descriptor. The kernel frees the queue when all
// mappings and descriptors are gone. The rings must not be used afterwards.
func (s *Socket) Close() error { return errors.Join(s.Detach(), s.file.Close()) }

// Kicks is the number of system calls that Kick and KickReceive have made.
func (s *Socket) Kicks() uint64 { return s.kicks }

// IdleKicks is the number of system calls of Kick after which the kernel had taken no frame. With
// zero copy a driver may take them later.
func (s *Socket) IdleKicks() uint64 { return s.idle }

// Kick makes the kernel read the TX ring. One system call moves at most 64 frames (32 before
// Linux 6.17). Kick repeats it until the ring is empty, or until a call moves no frame because
// the device or the completion ring is full. The garbage collector can stop the goroutine
// between two calls. Frames that are left stay in the ring, and the next Kick moves them. If
// the kernel has cleared the need-wakeup flag, as a driver that polls does, Kick makes no
// call. Other errors of sendto are returned: ENETDOWN and ENXIO mean that the device is down
// or removed.
func (s *Socket) Kick() error {
	if s.lazy && !s.TX.NeedWakeup() {
		return nil
	}
	for before := s.TX.InFlight(); before > 0; {
		s.kicks++
		errno := sendtoKick(s.fd)
		switch errno {
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		default:
			return os.NewSyscallError("sendto of an AF_XDP socket", errno)
		}
		left := s.TX.InFlight()
		if left == before {
			s.idle++
			return nil // no progress: the completion ring or the device is full
		}
		before = left
	}
	return nil
}

// KickReceive makes a driver that has run out of frames read the fill ring again. It is
// needed when Fill.NeedWakeup is true, which is never the case in copy mode.
func (s *Socket) KickReceive() error {
	s.kicks++
	switch errno := recvfromKick(s.fd); errno {
	case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		return nil
	default:
		return os.NewSyscallError("recvfrom of an AF_XDP socket", errno)
	}
}

// Statistics are the kernel's own counters (XDP_STATISTICS).
type Statistics struct {
	RxDropped      uint64 // the kernel had no memory, or the frame did not fit
	RxInvalidDescs uint64 // fill entries outside the segment
	TxInvalidDescs uint64 // TX entries outside the segment or of impossible length
	RxRingFull     uint64 // dropped: the RX ring was full
	FillRingEmpty  uint64 // dropped: no frame to receive into
	TxRingEmpty    uint64 // times that the kernel found the TX ring empty; not an error
}

// Statistics reads the statistics from the kernel. It may be called from any goroutine.
func (s *Socket) Statistics() (Statistics, error) {
	st, err := sockStatistics(s.fd)
	return Statistics{
		RxDropped:      st.Rx_dropped,
		RxInvalidDescs: st.Rx_invalid_descs,
		TxInvalidDescs: st.Tx_invalid_descs,
		RxRingFull:     st.Rx_ring_full,
		FillRingEmpty:  st.Rx_fill_ring_empty_descs,
		TxRingEmpty:    st.Tx_ring_empty_descs,
	}, err
}

// Cookie is the kernel's number of a socket (SO_COOKIE). It is the same for all descriptors of
// the socket, also in other processes. It returns an error if f is not an AF_XDP socket. It
// does not change the flags of f.
func Cookie(f *os.File) (cookie uint64, err error) {
	ctlErr := control(f, func(fd int) { cookie, err = cookieOf(fd) })
	return cookie, errors.Join(ctlErr, err)
}

// ZeroCopy reports whether a socket is bound with zero copy (XDP_OPTIONS). It returns an error
// if f is not an AF_XDP socket. It does not change the flags of f.
func ZeroCopy(f *os.File) (zeroCopy bool, err error) {
	ctlErr := control(f, func(fd int) {
		if err = isXSK(fd); err == nil {
			var options uint32
			options, err = sockOptions(fd)
			zeroCopy = options&unix.XDP_OPTIONS_ZEROCOPY != 0
		}
	})
	return zeroCopy, errors.Join(ctlErr, err)
}

// control calls do with the descriptor of f. f.Fd may change flags that all descriptors of the
// socket share.
func control(f *os.File, do func(fd int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { do(int(fd)) })
}

func cookieOf(fd int) (uint64, error) {
	if err := isXSK(fd); err != nil {
		return 0, err
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	return cookie, os.NewSyscallError("getsockopt SO_COOKIE", err)
}

// isXSK returns an error if fd is not an AF_XDP socket.
func isXSK(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	if domain != unix.AF_XDP {
		return fmt.Errorf("descriptor is a socket of family %d, not AF_XDP", domain)
	}
	return nil
}

// NewUnbound makes an AF_XDP socket without a segment that is not bound. It sends and receives
// nothing. With it the caller can find out whether an entry of an XSKMAP is in use. It has an RX
// ring, because from Linux 7.3 on a socket without one cannot be put into a map: the error is
// ENOBUFS, also if the entry is in use.
func NewUnbound() (*os.File, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_RX_RING, unboundRing); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt XDP_RX_RING", err)
	}
	return os.NewFile(uintptr(fd), "xsk"), nil
}

// unboundRing is the size of the RX ring of NewUnbound, in entries.
const unboundRing = 64
