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
//
// Several pollers can share an instance (With): then Sleep of one is a sleep of all.
type Poller struct {
	*instance
	source *source // the poller's own
}

// instance is a private epoll instance.
type instance struct {
	ep      *os.File
	raw     syscall.RawConn
	sources []*source
	parked  bool                  // the runtime has called check in this Sleep
	ready   func(fd uintptr) bool // the method check; made once, like leave, so that Sleep does not allocate
	leave   func(fd uintptr)      // the method takeOut
	failed  error                 // why a socket could not be added
	until   time.Time             // the deadline that is set; the zero time: none
	set     bool                  // until is known to be set
	woken   atomic.Bool
}

// source is a socket of an instance.
type source struct {
	sock   *Socket
	also   atomic.Pointer[func() bool] // of Watch
	joined bool                        // the socket is in the instance; the goroutine that sleeps has this
	left   atomic.Bool                 // Leave was called
}

func (s *source) pending() bool { return s.sock.RX.Pending() > 0 && !s.left.Load() }

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
	own := &source{sock: s}
	p := &instance{ep: os.NewFile(uintptr(fd), "epoll"), sources: []*source{own}}
	p.ready, p.leave = p.check, p.takeOut
	if p.raw, err = p.ep.SyscallConn(); err != nil {
		p.ep.Close()
		return nil, fmt.Errorf("epoll instance in the runtime's poller: %w", err)
	}
	return &Poller{p, own}, nil
}

// With makes a poller for s's receive queue that shares p's instance. It must be called before the first Sleep.
func (p *Poller) With(s *Socket) *Poller {
	own := &source{sock: s}
	p.sources = append(p.sources, own)
	return &Poller{p.instance, own}
}

// Leave ends what the poller's own socket means for a Sleep. The pollers that share the instance sleep without it.
func (p *Poller) Leave() {
	p.source.left.Store(true)
	p.Wake()
}

// Sleep returns nil when there is a frame in the RX ring or Wake was called. It may also
// return nil without either. It returns os.ErrDeadlineExceeded if until passes first; a zero
// until is no deadline. again keeps the socket in the private instance for the next Sleep. One
// goroutine at a time may sleep.
//
// A deadline costs a timer of the runtime, and a new earliest one a thread that is woken. So an
// earlier deadline stays until it has passed.
func (p *instance) Sleep(until time.Time, again bool) error {
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
	if p.mustTakeOut(again) {
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

// mustTakeOut reports whether a socket is in the instance that is to be taken out at the end of a Sleep.
func (p *instance) mustTakeOut(again bool) bool {
	for _, s := range p.sources {
		if s.joined && (!again || s.left.Load()) {
			return true
		}
	}
	return false
}

// Watch makes Sleep return also when pending reports true, for which fd, the read end of a pipe, calls Sleep's
// attention. Sleep calls pending in its own goroutine. All descriptors have the same pending.
func (p *Poller) Watch(fd int, pending func() bool) error {
	p.source.also.Store(&pending)
	// Edge-triggered: what was not read yet must not end each Sleep.
	return p.control(unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
}

// Unwatch ends a Watch. It must be called before fd is closed.
func (p *Poller) Unwatch(fd int) error { return p.control(unix.EPOLL_CTL_DEL, fd, nil) }

func (p *instance) control(op, fd int, ev *unix.EpollEvent) error {
	var err error
	ctlErr := p.raw.Control(func(ep uintptr) { err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(ep), op, fd, ev)) })
	return errors.Join(ctlErr, err)
}

// Wake ends the Sleep in progress, or the next one. It may be called from any goroutine.
func (p *instance) Wake() {
	p.woken.Store(true)
	p.ep.SetReadDeadline(time.Unix(1, 0)) // fails only when closed, and then no goroutine sleeps
}

// check reports whether Sleep can return. The runtime calls it before it parks the goroutine
// and after it has woken it. Then Sleep returns, also if what has woken it is not there any more: another end of a
// pipe may ring once for a sleep. check reads the ring again after it has added the socket: a
// frame that came before causes no event.
func (p *instance) check(fd uintptr) bool {
	if p.parked {
		return true
	}
	for _, s := range p.sources {
		if s.pending() {
			return true
		}
	}
	p.parked = true
	for _, s := range p.sources {
		if also := s.also.Load(); also != nil && (*also)() {
			return true
		}
	}
	pending := false
	for _, s := range p.sources {
		if s.joined || s.left.Load() {
			continue
		}
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.sock.fd)}
		if err := unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, s.sock.fd, &ev); err != nil {
			p.failed = os.NewSyscallError("epoll_ctl ADD of an AF_XDP socket", err) // ENOSPC: max_user_watches
			return true
		}
		s.joined = true
		pending = pending || s.pending() // what Watch watches was in the instance before, so the runtime calls check again for that
	}
	return pending
}

func (p *instance) takeOut(fd uintptr) {
	for _, s := range p.sources {
		if !s.joined {
			continue
		}
		if err := unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, s.sock.fd, nil); err != nil {
			panic(fmt.Sprintf("BUG: epoll_ctl DEL of an AF_XDP socket: %v", err))
		}
		s.joined = false
	}
}

// Close ends a Sleep with an error and frees the instance. A poller that [Poller.With] has made leaves that to the first.
func (p *Poller) Close() error {
	if p.source != p.sources[0] {
		return nil
	}
	return p.ep.Close()
}
