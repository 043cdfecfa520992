package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

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
