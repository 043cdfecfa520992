package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// maxMessage is room for any message of the benchmark, in bytes.
const maxMessage = 2048

// pollsPerClock is how often a spinning receiver polls between two readings of the clock.
const pollsPerClock = 256

// receiveBuffer is what a kernel socket is asked to have, in bytes; the kernel
// grants at most net.core.rmem_max.
const receiveBuffer = 4 << 20

// kernelUDP is a connected UDP socket of the kernel that never sleeps, the fastest way to
// use it. Its system calls are raw ones: they do not block, and the runtime's preparation
// for a call that may block costs time.
type kernelUDP struct {
	fd       int
	deadline time.Time
	buf      []byte
	last     []byte // what Recv lent
	out, in  mmsg
}

func openKernelUDP(_ context.Context, j workload.Job, _ func()) (workload.Conn, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	k := &kernelUDP{fd: fd, buf: make([]byte, maxMessage)}
	k.out.init(max(j.Batch, 1), 0)
	k.in.init(workload.RecvBatchSize, maxMessage)
	// The kernel grants at most net.core.rmem_max, without an error; what is lost because
	// the buffer is full is counted.
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

// transient reports whether the same call on a connected UDP socket may succeed if it is repeated.
func transient(errno syscall.Errno) bool {
	return errno == syscall.EAGAIN || errno == syscall.EINTR || errno == syscall.ENOBUFS
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
	for polls := 1; ; polls++ {
		n, errno := recv(k.fd, k.buf)
		if errno == 0 {
			k.last = k.buf[:n]
			return k.last, nil
		}
		if !transient(errno) {
			return nil, os.NewSyscallError("recvfrom", errno)
		}
		if polls%pollsPerClock == 0 && expired(k.deadline) {
			return nil, os.ErrDeadlineExceeded
		}
	}
}

func (k *kernelUDP) RecvBatch(bs [][]byte) (int, error) {
	for polls := 1; ; polls++ {
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
		if polls%pollsPerClock == 0 && expired(k.deadline) {
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

// kernelStream is a TCP connection of the kernel, or one of unix sockets, that never sleeps. Its system
// calls are raw ones, as in kernelUDP.
type kernelStream struct {
	fd       int
	deadline time.Time
	share    bool // other goroutines spin too
}

func (k *kernelStream) Write(b []byte) (n int, err error) {
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

func (k *kernelStream) Read(b []byte) (int, error) {
	for polls := 1; ; polls++ {
		n, errno := recv(k.fd, b)
		switch {
		case errno == 0 && n == 0:
			return 0, io.EOF
		case errno == 0:
			return n, nil
		case errno != syscall.EAGAIN && errno != syscall.EINTR:
			return 0, os.NewSyscallError("recvfrom", errno)
		}
		if polls%pollsPerClock == 0 && expired(k.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		k.pause()
	}
}

func (k *kernelStream) SetReadDeadline(t time.Time) error { k.deadline = t; return nil }

// Close does not linger, so it is a raw system call too.
func (k *kernelStream) Close() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(k.fd), 0, 0); errno != 0 {
		return os.NewSyscallError("close", errno)
	}
	return nil
}

// noDelay reports whether the connections of a job have TCP_NODELAY. In connect it would cost a system
// call and make no difference to a single write; bandwidth leaves it to the kernel.
func noDelay(j workload.Job) bool {
	return j.Bench != workload.Connect && j.Bench != workload.Bandwidth
}

// newKernelStream is a connection of a non-blocking socket of a job.
func newKernelStream(fd uintptr, j workload.Job, noDelay bool) (workload.Stream, error) {
	k := &kernelStream{fd: int(fd), share: j.Connections > 1}
	if !noDelay {
		return k, nil
	}
	if err := syscall.SetsockoptInt(k.fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func dialKernel(_ context.Context, j workload.Job) (workload.Dialer, error) {
	return kernelDialer(j, rawInet(j.Remote.UDP), noDelay(j)), nil
}

func dialUnix(_ context.Context, j workload.Job) (workload.Dialer, error) {
	return kernelDialer(j, rawUnix(unixName(j.Remote)), false), nil
}

// unixName is the unix socket of a side: an abstract name, which the network namespace has, not the file
// system.
func unixName(a workload.Address) string { return fmt.Sprintf("@unetbench-%d", a.UDP.Port()) }

// kernelDialer opens connections of the kernel and never sleeps.
func kernelDialer(j workload.Job, remote rawAddress, noDelay bool) workload.Dialer {
	dial := func(ctx context.Context) (workload.Stream, error) {
		fd, _, errno := syscall.RawSyscall(syscall.SYS_SOCKET, uintptr(remote.family()), syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if errno != 0 {
			return nil, os.NewSyscallError("socket", errno)
		}
		c, err := newKernelStream(fd, j, noDelay)
		if err != nil {
			return nil, err
		}
		deadline, _ := ctx.Deadline()
		for polls := 1; ; polls++ {
			switch errno := connect(int(fd), &remote); errno {
			case 0:
				return c, nil
			case syscall.EINPROGRESS, syscall.EALREADY, syscall.EINTR: // not yet
			case syscall.EAGAIN: // a unix socket whose backlog is full
			default:
				return nil, errors.Join(os.NewSyscallError("connect", errno), c.Close())
			}
			if polls%pollsPerClock == 0 && expired(deadline) {
				return nil, errors.Join(os.ErrDeadlineExceeded, c.Close())
			}
			if j.Connections > 1 {
				runtime.Gosched()
			}
		}
	}
	return workload.Dialer{Dial: dial, Close: func() error { return nil }}
}

// pause lets other goroutines that spin run.
func (k *kernelStream) pause() {
	if k.share {
		runtime.Gosched()
	}
}

// CloseWrite sends a FIN.
func (k *kernelStream) CloseWrite() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(k.fd), syscall.SHUT_WR, 0); errno != 0 {
		return os.NewSyscallError("shutdown", errno)
	}
	return nil
}

// backlog is the number of connections that wait while another one is served.
const backlog = 1024

func listenKernel(_ context.Context, j workload.Job) (workload.Listener, error) {
	return kernelListener(j, syscall.AF_INET, sockaddr(j.Local.UDP), noDelay(j))
}

func listenUnix(_ context.Context, j workload.Job) (workload.Listener, error) {
	return kernelListener(j, syscall.AF_UNIX, &syscall.SockaddrUnix{Name: unixName(j.Local)}, false)
}

// kernelListener accepts connections of the kernel and never sleeps.
func kernelListener(j workload.Job, family int, at syscall.Sockaddr, noDelay bool) (l workload.Listener, err error) {
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return l, os.NewSyscallError("socket", err)
	}
	err = errors.Join(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), syscall.Bind(fd, at), syscall.Listen(fd, backlog))
	if err != nil {
		syscall.Close(fd)
		return l, fmt.Errorf("listen at %v: %w", j.Local.UDP, err)
	}
	accept := func() (workload.Stream, error) {
		for {
			conn, _, errno := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(fd), 0, 0, syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0, 0)
			switch errno {
			case 0:
				return newKernelStream(conn, j, noDelay)
			case syscall.EAGAIN, syscall.EINTR, syscall.ECONNABORTED:
			default:
				return nil, os.NewSyscallError("accept", errno)
			}
			if j.Connections > 1 {
				runtime.Gosched()
			}
		}
	}
	return workload.Listener{Accept: accept, Close: func() error { return os.NewSyscallError("close", syscall.Close(fd)) }}, nil
}

// udpConn is a connected UDP socket with package net's methods.
type udpConn interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
}

// blockingUDP is a socket as Go programs use it: with blocking calls.
type blockingUDP struct {
	udpConn
	buf  []byte
	last []byte
}

func newBlockingUDP(c udpConn) blockingUDP {
	return blockingUDP{udpConn: c, buf: make([]byte, maxMessage)}
}

func openGoUDP(_ context.Context, j workload.Job, _ func()) (workload.Conn, error) {
	c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(j.Local.UDP), net.UDPAddrFromAddrPort(j.Remote.UDP))
	if err != nil {
		return nil, err
	}
	_ = c.SetReadBuffer(receiveBuffer) // if it fails the default stays
	g := newBlockingUDP(c)
	return &g, nil
}

func (g *blockingUDP) Send(b []byte) error {
	_, err := g.Write(b)
	return err
}

func (g *blockingUDP) SendBatch(bs [][]byte) error { return sendEach(g, bs) }

func (g *blockingUDP) Recv() ([]byte, error) {
	n, err := g.Read(g.buf)
	g.last = g.buf[:n]
	return g.last, err
}

func (g *blockingUDP) RecvBatch(bs [][]byte) (int, error) { return recvOne(g, bs) }
func (g *blockingUDP) Reply() error                       { return g.Send(g.last) }
func (g *blockingUDP) SetDeadline(t time.Time) error      { return g.SetReadDeadline(t) }

// sendEach and recvOne are SendBatch and RecvBatch of transports without batches.

func sendEach(c workload.Conn, bs [][]byte) error {
	for _, b := range bs {
		if err := c.Send(b); err != nil {
			return err
		}
	}
	return nil
}

func recvOne(c workload.Conn, bs [][]byte) (int, error) {
	b, err := c.Recv()
	if err != nil {
		return 0, err
	}
	bs[0] = b
	return 1, nil
}

func dialGoTCP(_ context.Context, j workload.Job) (workload.Dialer, error) {
	return goDialer("tcp4", j.Remote.UDP.String()), nil
}

func dialGoUnix(_ context.Context, j workload.Job) (workload.Dialer, error) {
	return goDialer("unix", unixName(j.Remote)), nil
}

// goDialer is the one of package net.
func goDialer(network, remote string) workload.Dialer {
	var d net.Dialer
	return workload.Dialer{Dial: func(ctx context.Context) (workload.Stream, error) {
		return asStream(d.DialContext(ctx, network, remote))
	},
		Close: func() error { return nil }}
}

func listenGoTCP(_ context.Context, j workload.Job) (workload.Listener, error) {
	return listenGo("tcp4", j.Local.UDP.String())
}

func listenGoUnix(_ context.Context, j workload.Job) (workload.Listener, error) {
	return listenGo("unix", unixName(j.Local))
}

func listenGo(network, at string) (of workload.Listener, err error) {
	l, err := net.Listen(network, at)
	if err != nil {
		return of, err
	}
	return workload.Listener{Accept: func() (workload.Stream, error) { return asStream(l.Accept()) }, Close: l.Close}, nil
}

// asStream is a connection of TCP or of unix sockets of package net, or of gonet.
func asStream(c net.Conn, err error) (workload.Stream, error) {
	if err != nil {
		return nil, err
	}
	return c.(workload.Stream), nil
}
