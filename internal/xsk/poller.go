package xsk

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Poller lets a goroutine sleep until a socket has received something.
//
// A socket in the Go runtime's poller itself would wake a thread for
// every frame, also while another goroutine spins on the ring. And a socket
// that is in any epoll instance makes the kernel call that instance for every
// frame, even if it is not armed: about 100 ns for the sender. So a goroutine that is
// about to sleep adds the socket to a private epoll instance and removes it when it
// has woken. That instance, a pollable file, is in the runtime's poller.
type Poller struct {
	ep      *os.File // the private epoll instance
	raw     syscall.RawConn
	sock    int32
	pending func() bool
	ready   func(fd uintptr) bool // bound once, as the next, so that Sleep allocates nothing
	leave   func(fd uintptr)
	joined  bool  // the socket is in the instance
	failed  error // why it could not be put in
	woken   atomic.Bool
}

// NewPoller makes a poller for s's receive queue.
func NewPoller(s *Socket) (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // os.NewFile gives only such a file to the runtime's poller
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	p := &Poller{
		ep:      os.NewFile(uintptr(fd), "epoll"),
		sock:    int32(s.fd),
		pending: func() bool { return s.RX.Pending() > 0 },
	}
	p.ready, p.leave = p.check, p.takeOut
	if p.raw, err = p.ep.SyscallConn(); err != nil {
		p.ep.Close()
		return nil, fmt.Errorf("epoll instance in the runtime's poller: %w", err)
	}
	return p, nil
}

// Sleep returns nil when a frame waits or Wake was called, or perhaps for no
// reason, and os.ErrDeadlineExceeded when until has passed first; a zero until
// is never. One goroutine at a time may sleep.
func (p *Poller) Sleep(until time.Time) error {
	if err := p.ep.SetReadDeadline(until); err != nil {
		return err
	}
	// Wake sets the flag before the deadline, so a Wake that this load misses
	// moves the deadline set above.
	if p.woken.Swap(false) {
		return nil
	}
	err := p.raw.Read(p.ready)
	if p.joined {
		if e := p.raw.Control(p.leave); err == nil {
			err = e
		}
	}
	if err == nil {
		err, p.failed = p.failed, nil
	}
	// A Wake that another Sleep has answered already can move the deadline of
	// this one: what ends before its time was woken, too.
	if errors.Is(err, os.ErrDeadlineExceeded) && (p.woken.Swap(false) || until.IsZero() || time.Now().Before(until)) {
		return nil
	}
	return err
}

// Wake ends the Sleep under way, or the next one. It may be called from any
// goroutine.
func (p *Poller) Wake() {
	p.woken.Store(true)
	p.ep.SetReadDeadline(time.Unix(1, 0)) // fails only when closed, and then no goroutine sleeps
}

// check is what the runtime calls before it parks the goroutine and after it
// was woken. The socket is looked at again after it was put in: a frame that
// came before is no event.
func (p *Poller) check(fd uintptr) bool {
	if p.joined {
		p.takeOut(fd) // which also ends the instance's being readable
	}
	if p.pending() {
		return true
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: p.sock}
	if err := unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, int(p.sock), &ev); err != nil {
		p.failed = os.NewSyscallError("epoll_ctl ADD of an AF_XDP socket", err) // ENOSPC: max_user_watches
		return true
	}
	p.joined = true
	return p.pending()
}

func (p *Poller) takeOut(fd uintptr) {
	if err := unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, int(p.sock), nil); err != nil {
		panic(fmt.Sprintf("BUG: epoll_ctl DEL of an AF_XDP socket: %v", err))
	}
	p.joined = false
}

// Close ends a Sleep with an error and frees the instance.
func (p *Poller) Close() error { return p.ep.Close() }
