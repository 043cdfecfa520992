package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

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
