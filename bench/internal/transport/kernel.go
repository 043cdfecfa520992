package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
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

// kernelTCP is a TCP connection of the kernel that never sleeps and never delays
// (TCP_NODELAY): the kernel at its best. As in kernelUDP its system calls are raw.
type kernelTCP struct {
	fd       int
	deadline time.Time
	share    bool // the processor, with other goroutines that spin
}

func openKernelTCP(ctx context.Context, j workload.Job) (workload.Conn, error) {
	if j.Role != workload.Server {
		var k *kernelTCP
		err := dialAgain(ctx, func() (err error) { k, err = dialKernelTCP(j); return err })
		if err != nil {
			return nil, err
		}
		return newStream(j, k, nil, func() error { return nil }), nil
	}
	fd, err := listenKernelTCP(j, 1)
	if err != nil {
		return nil, err
	}
	return newStream(j, nil, func() (byteConn, error) {
		conn, _, err := syscall.Accept4(fd, syscall.SOCK_CLOEXEC)
		if err != nil {
			return nil, os.NewSyscallError("accept", err)
		}
		return spinningTCP(conn)
	}, func() error { return os.NewSyscallError("close", syscall.Close(fd)) }), nil
}

func socketTCP() (int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	return fd, os.NewSyscallError("socket", err)
}

func dialKernelTCP(j workload.Job) (*kernelTCP, error) {
	fd, err := socketTCP()
	if err != nil {
		return nil, err
	}
	if err := syscall.Connect(fd, sockaddr(j.Remote.UDP)); err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("connect %v: %w", j.Remote.UDP, err)
	}
	return spinningTCP(fd)
}

func spinningTCP(fd int) (*kernelTCP, error) {
	err := errors.Join(syscall.SetNonblock(fd, true), syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1))
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return &kernelTCP{fd: fd}, nil
}

func (k *kernelTCP) Write(b []byte) (n int, err error) {
	for n < len(b) {
		sent, errno := sendStream(k.fd, b[n:])
		switch {
		case errno == 0:
			n += sent
		case errno != syscall.EAGAIN && errno != syscall.EINTR:
			return n, os.NewSyscallError("sendto", errno)
		}
	}
	return n, nil
}

func (k *kernelTCP) Read(b []byte) (int, error) {
	for looks := 1; ; looks++ {
		n, errno := recv(k.fd, b)
		switch {
		case errno == 0 && n == 0:
			return 0, io.EOF
		case errno == 0:
			return n, nil
		case errno != syscall.EAGAIN && errno != syscall.EINTR:
			return 0, os.NewSyscallError("recvfrom", errno)
		}
		if looks%looksPerClock == 0 && expired(k.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		k.pause()
	}
}

func (k *kernelTCP) SetReadDeadline(t time.Time) error { k.deadline = t; return nil }

// Close is a raw system call too: it does not wait for anything.
func (k *kernelTCP) Close() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(k.fd), 0, 0); errno != 0 {
		return os.NewSyscallError("close", errno)
	}
	return nil
}

// kernelDialer opens connections of the kernel without ever sleeping. TCP_NODELAY
// would change nothing for a connection that writes once, and is left out: the
// fewest system calls that there can be.
type kernelDialer struct {
	remote syscall.RawSockaddrInet4
	share  bool // the processor, with other goroutines that spin
}

func dialManyKernelTCP(_ context.Context, j workload.Job) (workload.Dialer, error) {
	return &kernelDialer{remote: rawSockaddr(j.Remote.UDP), share: j.Connections > 1}, nil
}

// rawSockaddr is struct sockaddr_in, whose port is in network order.
func rawSockaddr(ap netip.AddrPort) syscall.RawSockaddrInet4 {
	port := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, ap.Port()))
	return syscall.RawSockaddrInet4{Family: syscall.AF_INET, Addr: ap.Addr().As4(), Port: port}
}

func (d *kernelDialer) Dial(ctx context.Context) (workload.Stream, error) {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_SOCKET, syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("socket", errno)
	}
	c := &kernelTCP{fd: int(fd), share: d.share}
	for looks := 1; ; looks++ {
		switch errno := connect(c.fd, &d.remote); errno {
		case 0:
			return c, nil
		case syscall.EINPROGRESS, syscall.EALREADY, syscall.EINTR: // not yet
		default:
			return nil, errors.Join(os.NewSyscallError("connect", errno), c.Close())
		}
		if looks%looksPerClock == 0 && expired(expiry(ctx)) {
			return nil, errors.Join(os.ErrDeadlineExceeded, c.Close())
		}
		c.pause()
	}
}

func (d *kernelDialer) Close() error { return nil }

// pause lets other goroutines run if there are any that spin too.
func (k *kernelTCP) pause() {
	if k.share {
		runtime.Gosched()
	}
}

// CloseWrite sends a FIN.
func (k *kernelTCP) CloseWrite() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(k.fd), syscall.SHUT_WR, 0); errno != 0 {
		return os.NewSyscallError("shutdown", errno)
	}
	return nil
}

// kernelListener accepts connections of the kernel without ever sleeping.
type kernelListener struct {
	fd       int
	share    bool
	deadline atomic.Pointer[time.Time]
}

// backlog is for connections that come while another one is served.
const backlog = 1024

func listenManyKernelTCP(_ context.Context, j workload.Job) (workload.Listener, error) {
	fd, err := listenKernelTCP(j, backlog)
	if err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &kernelListener{fd: fd, share: j.Connections > 1}, nil
}

func (l *kernelListener) Accept() (workload.Stream, error) {
	for looks := 1; ; looks++ {
		fd, _, errno := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(l.fd), 0, 0, syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0, 0)
		switch errno {
		case 0:
			return &kernelTCP{fd: int(fd), share: l.share}, nil
		case syscall.EAGAIN, syscall.EINTR, syscall.ECONNABORTED:
		default:
			return nil, os.NewSyscallError("accept", errno)
		}
		if t := l.deadline.Load(); looks%looksPerClock == 0 && t != nil && expired(*t) {
			return nil, os.ErrDeadlineExceeded
		}
		if l.share {
			runtime.Gosched()
		}
	}
}

func (l *kernelListener) SetDeadline(t time.Time) error { l.deadline.Store(&t); return nil }
func (l *kernelListener) Close() error                  { return os.NewSyscallError("close", syscall.Close(l.fd)) }

// listenKernelTCP makes a listening socket.
func listenKernelTCP(j workload.Job, backlog int) (int, error) {
	fd, err := socketTCP()
	if err != nil {
		return 0, err
	}
	err = errors.Join(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), syscall.Bind(fd, sockaddr(j.Local.UDP)), syscall.Listen(fd, backlog))
	if err != nil {
		syscall.Close(fd)
		return 0, fmt.Errorf("listen at %v: %w", j.Local.UDP, err)
	}
	return fd, nil
}

// expiry is when ctx ends; the zero time: never.
func expiry(ctx context.Context) time.Time {
	t, _ := ctx.Deadline()
	return t
}
