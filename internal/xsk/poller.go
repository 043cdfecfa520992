//go:build linux

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
// If the socket itself were in the Go runtime's poller, each frame would wake a thread, also
// while another goroutine spins on the ring. And if a socket is in any epoll instance, the
// kernel calls that instance for each frame, even if it is not armed: about 100 ns for the
// sender. So a goroutine that is about to sleep adds the socket to a private epoll instance,
// and removes it when it has woken, unless the next wait will sleep too. That instance, a pollable file, is in the runtime's
// poller.
type Poller struct {
	ep      *os.File // the private epoll instance
	raw     syscall.RawConn
	sock    int32
	pending func() bool                 // a frame is in the socket's ring
	also    atomic.Pointer[func() bool] // of Watch
	parked  bool                        // the runtime has called check in this Sleep
	ready   func(fd uintptr) bool       // the method check; made once, like leave, so that Sleep does not allocate
	leave   func(fd uintptr)            // the method takeOut
	joined  bool                        // the socket is in the instance
	failed  error                       // why it could not be added
	until   time.Time                   // the deadline that is set; the zero time: none
	set     bool                        // until is known to be set
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
		ep:   os.NewFile(uintptr(fd), "epoll"),
		sock: int32(s.fd),
	}
	p.pending = func() bool { return s.RX.Pending() > 0 }
	p.ready, p.leave = p.check, p.takeOut
	if p.raw, err = p.ep.SyscallConn(); err != nil {
		p.ep.Close()
		return nil, fmt.Errorf("epoll instance in the runtime's poller: %w", err)
	}
	return p, nil
}

// Sleep returns nil when there is a frame in the RX ring or Wake was called. It may also
// return nil without either. It returns os.ErrDeadlineExceeded if until passes first; a zero
// until is no deadline. again keeps the socket in the private instance for the next Sleep. One
// goroutine at a time may sleep.
//
// A deadline costs a timer of the runtime, and a new earliest one a thread that is woken. So an
// earlier deadline stays until it has passed.
func (p *Poller) Sleep(until time.Time, again bool) error {
	if !p.set || !until.IsZero() && (p.until.IsZero() || until.Before(p.until)) {
		if err := p.ep.SetReadDeadline(until); err != nil {
			return err
		}
		p.until, p.set = until, true
	}
	// Wake sets the flag before the deadline. So if this load misses a Wake, that Wake
	// replaces the deadline set above.
	woken := p.woken.Swap(false)
	var err error
	if !woken {
		p.parked = false
		err = p.raw.Read(p.ready)
	}
	if p.joined && !again {
		if e := p.raw.Control(p.leave); err == nil {
			err = e
		}
	}
	if woken {
		p.set = false
		return err
	}
	if err == nil {
		err, p.failed = p.failed, nil
	}
	// The deadline of an earlier Sleep has passed, or a Wake, perhaps one for which an earlier Sleep
	// has returned, has replaced it.
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.set = false
		if p.woken.Swap(false) || until.IsZero() || time.Now().Before(until) {
			return nil
		}
	}
	return err
}

// Watch makes Sleep return also when pending reports true, for which fd, the read end of a pipe, calls Sleep's
// attention. Sleep calls pending in its own goroutine. All descriptors have the same pending.
func (p *Poller) Watch(fd int, pending func() bool) error {
	p.also.Store(&pending)
	// Edge-triggered: what was not read yet must not end each Sleep.
	return p.control(unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
}

// Unwatch ends a Watch. It must be called before fd is closed.
func (p *Poller) Unwatch(fd int) error { return p.control(unix.EPOLL_CTL_DEL, fd, nil) }

func (p *Poller) control(op, fd int, ev *unix.EpollEvent) error {
	var err error
	ctlErr := p.raw.Control(func(ep uintptr) { err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(ep), op, fd, ev)) })
	return errors.Join(ctlErr, err)
}

// Wake ends the Sleep in progress, or the next one. It may be called from any goroutine.
func (p *Poller) Wake() {
	p.woken.Store(true)
	p.ep.SetReadDeadline(time.Unix(1, 0)) // fails only when closed, and then no goroutine sleeps
}

// check reports whether Sleep can return. The runtime calls it before it parks the goroutine
// and after it has woken it. Then Sleep returns, also if what has woken it is not there any more: another end of a
// pipe may ring once for a sleep. check reads the ring again after it has added the socket: a
// frame that came before causes no event.
func (p *Poller) check(fd uintptr) bool {
	if p.parked || p.pending() {
		return true
	}
	p.parked = true
	if also := p.also.Load(); also != nil && (*also)() {
		return true
	}
	if p.joined {
		return false
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: p.sock}
	if err := unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, int(p.sock), &ev); err != nil {
		p.failed = os.NewSyscallError("epoll_ctl ADD of an AF_XDP socket", err) // ENOSPC: max_user_watches
		return true
	}
	p.joined = true
	return p.pending() // what Watch watches was in the instance before, so the runtime calls check again for that
}

func (p *Poller) takeOut(fd uintptr) {
	if err := unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, int(p.sock), nil); err != nil {
		panic(fmt.Sprintf("BUG: epoll_ctl DEL of an AF_XDP socket: %v", err))
	}
	p.joined = false
}

// Close ends a Sleep with an error and frees the instance.
func (p *Poller) Close() error { return p.ep.Close() }
