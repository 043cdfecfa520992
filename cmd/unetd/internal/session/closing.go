package session

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/protocol"
)

// How long a thread may wait in the kernel for a file of a peer's making before
// it is interrupted, and, each time twice as long up to the longest, interrupted
// again: a signal that comes just before the wait begins ends nothing.
const (
	firstInterrupt   = 2 * time.Millisecond
	longestInterrupt = time.Second
)

// letGo calls f, a system call that may drop the last reference to a file of a
// peer's making, and interrupts what that waits for. A TCP socket that lingers
// would otherwise hold the thread up for as long as its owner has set, and goes
// on by itself when it is interrupted. The signal is the one that the Go runtime
// preempts goroutines with, so it has a handler and means nothing to the program.
// A wait that signals do not end lasts as long as it does: the thread is given up.
//
// f must not wait for anything but the kernel: it keeps the thread.
func letGo(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var mu sync.Mutex
	done := false
	pid, tid, pause := os.Getpid(), unix.Gettid(), firstInterrupt
	mu.Lock()
	var timer *time.Timer
	timer = time.AfterFunc(pause, func() {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return
		}
		// The thread is there until done is set, so this cannot fail.
		_ = unix.Tgkill(pid, tid, unix.SIGURG)
		pause = min(2*pause, longestInterrupt)
		timer.Reset(pause)
	})
	mu.Unlock()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		done = true
		timer.Stop()
	}()
	f()
}

// hangUp closes a connection such that the other end reads all that was sent
// to it and then the end of the stream. A unix socket that is closed with
// records unread would give it ECONNRESET instead; no record can arrive once
// the reading side is shut down, so what is there can be discarded first.
//
// Nobody may be reading from the connection any more: the last one to use a
// descriptor is who closes it, and that has to be in letGo.
func hangUp(c *net.UnixConn) {
	defer letGo(func() { _ = c.Close() })
	if c.CloseRead() != nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for discard(int(fd)) {
		}
	})
}

// discard takes one record off a connection, if there is one. Only one that has
// descriptors with it can block.
func discard(fd int) (more bool) {
	take := func() {
		n, _, err := unix.Recvfrom(fd, nil, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		more = err == unix.EINTR || err == nil && n != 0
	}
	_, _, flags, _, err := unix.Recvmsg(fd, nil, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err == nil && flags&unix.MSG_CTRUNC == 0 {
		take()
	} else {
		letGo(take)
	}
	return more
}

// refusals answers connections that are one too many, and closes them, which can block
// for as long as the peer likes. Each user has a line of them, which takes the user's
// turns to close connections. Those that wait cost a descriptor each and nothing else:
// who is refused and connects again at once has to wait, too.
//
// When too many wait, the listener takes no descriptors any more, and then closing
// a new connection cannot block: it is refused at once. So no more wait than
// Limits.Waiting and the listener's backlog together (before Linux 6.16: there is no
// bound). Sessions take descriptors all the same.
type refusals struct {
	limits  Limits
	ln      *net.UnixListener
	closing *turns
	work    *sync.WaitGroup // the goroutines

	mu    sync.Mutex
	open  int                  // connections, of all lines and being closed
	full  bool                 // until half of them are gone
	lines map[uint32][]refused // users with none have no entry
}

type refused struct {
	conn *net.UnixConn
	why  error
}

func newRefusals(l Limits, ln *net.UnixListener, closing *turns, work *sync.WaitGroup) *refusals {
	return &refusals{limits: l, ln: ln, closing: closing, work: work, lines: make(map[uint32][]refused)}
}

// add takes a connection over. It does not block.
func (r *refusals) add(uid uint32, c refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open >= r.limits.Waiting {
		r.setFull(true)
		if !passesRights(c.conn) {
			r.tell(c)
			hangUp(c.conn)
			return
		}
	}
	r.open++
	line, served := r.lines[uid]
	r.lines[uid] = append(line, c)
	if !served {
		r.work.Go(func() { r.serve(uid) })
	}
}

// setFull notes whether as many connections are open as may be. r.mu is held.
func (r *refusals) setFull(full bool) {
	if r.full != full {
		r.full = full
		passRights(r.ln, !full)
	}
}

// serve works a user's line off.
func (r *refusals) serve(uid uint32) {
	for c, ok := r.next(uid); ok; c, ok = r.next(uid) {
		_ = r.closing.take(context.Background(), uid)
		r.work.Go(func() {
			defer r.closing.give(uid)
			r.tell(c)
			hangUp(c.conn)
			r.closed()
		})
	}
}

// next takes the first of a user's line, or the line away if there is none.
func (r *refusals) next(uid uint32) (c refused, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := r.lines[uid]
	if len(line) == 0 {
		delete(r.lines, uid)
		return refused{}, false
	}
	r.lines[uid] = line[1:]
	return line[0], true
}

func (r *refusals) closed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open--; r.open <= r.limits.Waiting/2 {
		r.setFull(false)
	}
}

func (r *refusals) tell(c refused) {
	record, err := json.Marshal(protocol.Answer{Version: protocol.Version, Error: protocol.NewError(c.why)})
	if err == nil {
		// Nothing was sent on this connection before, so this fits its buffer.
		_ = protocol.WriteRecord(c.conn, record, r.limits.WriteTimeout)
	}
}

// passRights lets descriptors come on a connection, or not: whoever sends one gets
// EPERM then, and nothing of it waits to be read and closed. A connection has what its
// listener had when it was made. Kernels before 6.16 do not know this, and let
// descriptors come always.
func passRights(c syscall.Conn, on bool) {
	value := 0
	if on {
		value = 1
	}
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value) })
	}
}

// passesRights reports whether descriptors may come on a connection.
func passesRights(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	value := 1
	ctlErr := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS) })
	return ctlErr != nil || err != nil || value != 0
}
