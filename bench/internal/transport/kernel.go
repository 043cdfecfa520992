package transport

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// maxMessage is room for any message of the benchmark, in bytes.
const maxMessage = 2048

// looksPerClock is how often a spinning receiver looks for a message before it
// looks at the clock.
const looksPerClock = 256

// receiveBuffer is what a kernel socket is asked to have, in bytes; the kernel
// grants at most net.core.rmem_max.
const receiveBuffer = 4 << 20

// kernelUDP is a connected UDP socket of the kernel that never sleeps: the
// kernel at its best. Its system calls are raw ones, because the runtime's
// book-keeping around a call that may block would be paid for nothing.
type kernelUDP struct {
	fd       int
	deadline time.Time
	buf      []byte
	last     []byte // what Recv lent
	out, in  mmsg
}

func openKernelUDP(_ context.Context, j workload.Job) (workload.Conn, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	k := &kernelUDP{fd: fd, buf: make([]byte, maxMessage)}
	k.out.init(max(j.Batch, 1), 0)
	k.in.init(workload.RecvBatchSize, maxMessage)
	// The kernel caps it at net.core.rmem_max without a word; what is lost for
	// want of room is counted.
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer)
	if err := syscall.Bind(fd, sockaddr(j.Local.UDP)); err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("bind %v: %w", j.Local.UDP, err)
	}
	if err := syscall.Connect(fd, sockaddr(j.Remote.UDP)); err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("connect %v: %w", j.Remote.UDP, err)
	}
	return k, nil
}

func sockaddr(ap netip.AddrPort) syscall.Sockaddr {
	return &syscall.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
}

// transient are answers of a connected UDP socket after which the same call
// may work. ECONNREFUSED reports an earlier message, to a peer that was not
// there yet; the workload sends it again.
func transient(errno syscall.Errno) bool {
	return errno == syscall.EAGAIN || errno == syscall.EINTR || errno == syscall.ENOBUFS || errno == syscall.ECONNREFUSED
}

func (k *kernelUDP) Send(b []byte) error {
	for {
		errno := send(k.fd, b)
		if errno == 0 {
			return nil
		}
		if !transient(errno) {
			return os.NewSyscallError("sendto", errno)
		}
	}
}

func (k *kernelUDP) SendBatch(bs [][]byte) error {
	k.out.point(bs)
	for from := 0; from < len(bs); {
		n, errno := k.out.send(k.fd, from, len(bs))
		if errno != 0 && !transient(errno) {
			return os.NewSyscallError("sendmmsg", errno)
		}
		from += n
	}
	return nil
}

func (k *kernelUDP) Recv() ([]byte, error) {
	for looks := 1; ; looks++ {
		n, errno := recv(k.fd, k.buf)
		if errno == 0 {
			k.last = k.buf[:n]
			return k.last, nil
		}
		if !transient(errno) {
			return nil, os.NewSyscallError("recvfrom", errno)
		}
		if looks%looksPerClock == 0 && expired(k.deadline) {
			return nil, os.ErrDeadlineExceeded
		}
	}
}

func (k *kernelUDP) RecvBatch(bs [][]byte) (int, error) {
	for looks := 1; ; looks++ {
		n, errno := k.in.recv(k.fd, min(len(bs), workload.RecvBatchSize))
		if errno == 0 {
			for i := range n {
				bs[i] = k.in.message(i)
			}
			return n, nil
		}
		if !transient(errno) {
			return 0, os.NewSyscallError("recvmmsg", errno)
		}
		if looks%looksPerClock == 0 && expired(k.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (k *kernelUDP) Reply() error                  { return k.Send(k.last) }
func (k *kernelUDP) SetDeadline(t time.Time) error { k.deadline = t; return nil }
func (k *kernelUDP) Close() error                  { return os.NewSyscallError("close", syscall.Close(k.fd)) }

// expired reports whether a deadline has passed; the zero time never does.
func expired(deadline time.Time) bool {
	return !deadline.IsZero() && time.Now().After(deadline)
}
